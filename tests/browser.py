"""Find a Chromium for the browser tests, or install one where that is allowed: python tests/browser.py.

Looked for: Debian's and other systems' browsers, then Playwright's own. Installed: Debian's package as root,
else Playwright's download. With CI=true a missing browser is a failure, so that no gap hides behind a skip.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


def find_chromium() -> str | None:
    """The path of a Chromium that is there already."""
    if (given := os.environ.get("CHROMIUM")) and Path(given).exists():
        return given
    for name in NAMES:
        if (found := shutil.which(name)) is not None:
            return found
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
    return own if Path(own).exists() else None


def install_chromium() -> None:
    """Debian's package where this process may install it, else Playwright's own download."""
    if shutil.which("apt-get") and os.geteuid() == 0:
        subprocess.run(["apt-get", "update", "-qq"], check=False)
        command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium"]
        if subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode == 0:
            return
    subprocess.run([sys.executable, "-m", "playwright", "install", "chromium"], check=False)


def main() -> int:
    if find_chromium() is None:
        print("no Chromium found: installing one", flush=True)
        install_chromium()
    found = find_chromium()
    if found is None and os.environ.get("CI") == "true":
        print("The browser tests need Chromium and none could be installed.", file=sys.stderr)
        return 1
    print(f"browser for the tests: {found or 'none, those tests will be skipped'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
