"""The page at home behind a real nginx: with TLS, under a path, in another site's frame, and when its server
is killed. `make hosting`

python tests/hosting/behind_nginx.py [NODE]     NODE, a Node 24 or newer: with server-side rendering
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path

from gradio_client import Client
from model_folders import write_gpt2
from nginx import Nginx, nginx_before
from playwright.sync_api import Browser, Page, sync_playwright
from visit import begin, visit, wait_for, watched

from browser import FLAGS, find_chromium
from kshipra.ui import words
from serving import App

PATIENCE_MS = 90_000
QUERY = "?prompts=Framed&max_new_tokens=7"


def new_tab(browser: Browser) -> Page:
    context = browser.new_context(ignore_https_errors=True, viewport={"width": 1440, "height": 1000})
    context.set_default_timeout(PATIENCE_MS)
    return context.new_page()


def at_its_own_address(browser: Browser, nginx: Nginx) -> None:
    tab = new_tab(browser)
    with watched(tab, nginx.address):
        tab.goto(nginx.address)
        for seen in visit(tab, tab, nginx.address):
            print(f"  {seen}", flush=True)
    tab.context.close()


def in_a_frame(browser: Browser, nginx: Nginx) -> None:
    tab = new_tab(browser)
    tab.goto(nginx.other)
    with watched(tab, nginx.address):
        frame = tab.wait_for_selector("iframe").content_frame()
        assert frame is not None
        frame.wait_for_function("document.querySelector('#prompts textarea')?.value === 'Framed'")
        print("  the query reached the frame", flush=True)
        for seen in visit(tab, frame, nginx.address):
            print(f"  {seen}", flush=True)
    tab.context.close()


def by_programs(nginx: Nginx) -> None:
    client = Client(nginx.address, ssl_verify=False, verbose=False)
    assert client.predict(["One"], ["kv_cache"], 3, api_name="/compare")["ways"]
    print("  gradio_client compares", flush=True)


def killed(browser: Browser, nginx: Nginx, app: App, start) -> App:
    """kill -9 in the middle of a run, and a new server afterwards."""
    tab = new_tab(browser)
    tab.goto(nginx.address)
    tab.wait_for_selector("#stop:disabled")
    begin(tab, 240)
    app.kill()
    killed_s = time.monotonic()
    assert wait_for(tab, "failed") == words.PAGE["gone"]
    print(f"  said {time.monotonic() - killed_s:.1f} s after kill -9: {words.PAGE['gone']}", flush=True)
    text = tab.inner_text("#column-no_cache .new >> nth=0")
    assert text
    again = start()
    tab.wait_for_timeout(5_000)  # Gradio asks every two seconds
    assert tab.inner_text("#column-no_cache .new >> nth=0") == text
    tab.reload()
    wait_for(tab, "idle")
    begin(tab, 3)
    wait_for(tab, "done")
    print("  the text stayed until a reload, after which the page works", flush=True)
    tab.context.close()
    return again


def main(node: str | None = None) -> None:
    found = find_chromium()
    missing = [name for name in ("nginx", "openssl") if not shutil.which(name)]
    assert not missing, f"Install {' and '.join(missing)} first."
    assert found, "Install Chromium first: python tests/browser.py."
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        folder = Path(place)
        write_gpt2(folder / "tiny", n_layer=3)  # slow enough to be seen streaming
        # At the host's root: under a path Gradio 6.31 does not start with it. A page's head takes 8 KiB then.
        more = "proxy_buffer_size 16k; proxy_buffers 8 16k;" if node else ""
        if node:
            script, path, environment = "tests/hosting/rendered_app.py", "/", {"GRADIO_NODE_PATH": node}
        else:
            script, path, environment = "app.py", "/kshipra/", {"GRADIO_ROOT_PATH": "/kshipra"}

        def start(port: int | None = None) -> App:
            started = App(
                "--model", str(folder / "tiny"), log=folder / "log", script=script, port=port, **environment
            )
            started.wait()
            return started

        app = start()
        browser = playwright.chromium.launch(executable_path=found, args=list(FLAGS))
        try:
            with nginx_before(app.port, folder / "nginx", path, QUERY, more) as nginx:
                print(f"{'with' if node else 'without'} server-side rendering, at {path}", flush=True)
                at_its_own_address(browser, nginx)
                print("in a frame of another site", flush=True)
                in_a_frame(browser, nginx)
                print("by programs", flush=True)
                by_programs(nginx)
                print("killed", flush=True)
                app = killed(browser, nginx, app, lambda: start(app.port))
        finally:
            app.kill()
            print(app.log.read_text()[-2000:] if "Traceback" in app.log.read_text() else "", end="")
            browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
