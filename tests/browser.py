"""Looking at pages in a real browser without a screen: how wide they are, their colours, whom they ask."""

from __future__ import annotations

import http.server
import json
import re
import shutil
import subprocess
import tempfile
import threading
from dataclasses import dataclass
from functools import partial
from html import unescape
from pathlib import Path
from typing import NamedTuple

# Loads the pages one after another into a frame of the width, and writes what it found into itself.
LOOK = """<!doctype html><meta charset="utf-8"><pre id="found"></pre><script>
const names = %s, width = %d, found = {};
const light = color => { const [r, g, b] = color.match(/[\\d.]+/g).map(Number); return (r + g + b) / 3; };
async function look() {
  for (const name of names) {
    const frame = document.createElement("iframe");
    frame.style = `width: ${width}px; height: 800px; border: 0`;
    const loaded = new Promise(done => { frame.onload = done; });
    frame.src = name;
    document.body.append(frame);
    await loaded;
    const page = frame.contentDocument, style = frame.contentWindow.getComputedStyle(page.body);
    found[name] = [page.documentElement.scrollWidth, light(style.backgroundColor), light(style.color)];
    frame.remove();
  }
  document.getElementById("found").textContent = JSON.stringify(found);
}
look();
</script>"""


class Page(NamedTuple):
    """What was found of a page: its width in pixels, how light its background and letters are (0 … 255)."""

    scroll_width: float
    background: float
    ink: float


class Seen(NamedTuple):
    """What was found of some pages, and the hosts other than ours that they asked for something."""

    pages: dict[str, Page]
    elsewhere: list[str]


@dataclass(frozen=True)
class Browser:
    """A Chromium or one of its kin."""

    program: str

    @classmethod
    def find(cls) -> Browser | None:
        """Return the browser of this machine, if there is one."""
        for name in ("chromium", "chromium-browser", "google-chrome", "chrome"):
            program = shutil.which(name)
            if program is not None:
                return cls(program)
        return None

    def dump(self, url: str, proxy: str) -> str:
        """Return the page at an address after its scripts have run, in the dark."""
        with tempfile.TemporaryDirectory() as profile:
            command = [
                self.program,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
                "--no-first-run",
                "--blink-settings=preferredColorScheme=0",
                f"--user-data-dir={profile}",
                # Everything goes through us, our own pages too: so we see whom a page asks.
                f"--proxy-server={proxy}",
                "--proxy-bypass-list=<-loopback>",
                "--virtual-time-budget=120000",
                "--timeout=120000",
                "--dump-dom",
                url,
            ]
            result = subprocess.run(command, capture_output=True, text=True, timeout=150, check=True)
        return result.stdout


class _Proxy(http.server.SimpleHTTPRequestHandler):
    """Serves a folder as the host ``pages.invalid``, and notes every other host that is asked for."""

    host = "pages.invalid"

    def __init__(self, *arguments: object, asked: list[str], extra: dict[str, bytes], **more: object) -> None:
        self.asked, self.extra = asked, extra
        super().__init__(*arguments, **more)  # type: ignore[arg-type]

    def do_CONNECT(self) -> None:
        self.asked.append(self.path)
        self.send_error(502)

    def do_GET(self) -> None:
        found = re.match(r"http://([^/]+)(/[^?]*)", self.path)
        if found is None or found[1] != self.host:
            self.asked.append(self.path)
            self.send_error(502)
        elif found[2] in self.extra:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(self.extra[found[2]])
        else:
            self.path = found[2]
            super().do_GET()

    def log_message(self, *arguments: object) -> None:
        pass


def narrow_pages(browser: Browser, folder: Path, names: list[str], *, width: int) -> Seen:
    """Open pages of a folder in a narrow frame, in the dark."""
    asked: list[str] = []
    look = (LOOK % (json.dumps(names), width)).encode()
    handler = partial(_Proxy, directory=str(folder), asked=asked, extra={"/look": look})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        text = browser.dump(f"http://{_Proxy.host}/look", f"127.0.0.1:{server.server_port}")
        server.shutdown()
    found = re.search(r'<pre id="found">(.*?)</pre>', text, flags=re.DOTALL)
    assert found is not None, text[-2000:]
    measured = {name: Page(*page) for name, page in json.loads(unescape(found[1]) or "{}").items()}
    # A browser looks for its own news whatever one says.
    own = re.compile(r"(google|gstatic|googleapis|chromium)\.\w+")
    return Seen(measured, [place for place in asked if not own.search(place)])
