"""app.py with server-side rendering, which Kshipra never asks for: to see what a page would be with it.

GRADIO_NODE_PATH=NODE python tests/hosting/rendered_app.py [what app.py takes]
"""

from __future__ import annotations

from app import main
from kshipra.ui import build

if __name__ == "__main__":
    options = build.launch_options
    build.launch_options = lambda: options() | {"ssr_mode": True}
    main()
