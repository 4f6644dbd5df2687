"""A headless Chromium before the view, and a stand-in for the router on loopback.

What the rpc answers comes from a function of the test; nothing leaves this machine.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.support import ROOT

VIEW = Path(
    ROOT,
    "qinglong_edge/kit/openwrt/www/luci-static/resources/view/qinglong-edge/overview.js",
)
HERE = Path(__file__).parent
Answer = Callable[[str, dict[str, str]], dict[str, Any]]
Steps = list[list[Any]]
_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # root may not make Chromium's own namespaces everywhere
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--proxy-server=direct://",
)
_TOLD = re.compile(r'<script type="application/json" id="told">(.*?)</script>', re.DOTALL)


def chromium() -> str | None:
    """The browser, or None where there is none."""
    return shutil.which("chromium")


@contextlib.contextmanager
def router(answer: Answer) -> Iterator[str]:
    """The address of a router whose plugin answers so."""
    files = {"/": HERE / "frame.html", "/frame.js": HERE / "frame.js", "/view.js": VIEW}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            file = files.get(self.path.partition("?")[0])
            self.reply(b"" if file is None else file.read_bytes(), 404 if file is None else 200)

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            name, method, given = json.loads(self.rfile.read(length))
            known = name == "luci.qinglong-edge"
            told = json.dumps(answer(method, given)).encode() if known else b""
            self.reply(told, 200 if known else 500)

        def reply(self, content: bytes, status: int) -> None:
            self.send_response(status)
            kind = "text/html" if content.startswith(b"<!DOCTYPE") else "text/javascript"
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_arguments: object) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def told(home: Path, address: str, steps: Steps, *, lang: str = "en") -> dict[str, Any]:
    """What the page tells after the steps: texts that were asked for, and every rpc call."""
    page = _run(home, f"{address}?lang={lang}&steps={quote(json.dumps(steps))}", "--dump-dom")
    found = _TOLD.search(page)
    assert found is not None, page[:2_000]
    document: dict[str, Any] = json.loads(found[1])
    assert "<title>frame</title>" in page, page[:500]
    return document


def shot(
    home: Path,
    address: str,
    file: Path,
    *,
    lang: str,
    dark: bool,
    size: tuple[int, int],
    steps: str,
) -> None:
    """A picture of the page at a window's size."""
    file.parent.mkdir(parents=True, exist_ok=True)
    query = f"?lang={lang}&dark={int(dark)}&steps={quote(steps)}"
    _run(
        home,
        address + query,
        f"--screenshot={file}",
        f"--window-size={size[0]},{size[1]}",
    )


def _run(home: Path, address: str, *options: str) -> str:
    browser = chromium()
    assert browser is not None
    done = subprocess.run(
        [
            browser,
            *_FLAGS,
            f"--user-data-dir={home / 'chromium'}",
            "--virtual-time-budget=6000",
            *options,
            address,
        ],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=240,
        env={"PATH": "/usr/bin:/bin", "HOME": str(home), "TZ": "Asia/Shanghai"},
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    return done.stdout
