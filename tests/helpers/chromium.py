"""A headless Chromium spoken to over a pipe (DevTools protocol): pages at a given width and theme, what they say.

The protocol: JSON messages that end in a zero byte, ours on file descriptor 3 of the browser, its on 4.
https://chromedevtools.github.io/devtools-protocol/
"""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "headless_shell")
_TIMEOUT_S = 60.0


def find_chromium() -> str | None:
    """The browser in PATH, or None."""
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


class Chromium:
    """One browser with one page. `problems`: what the console and the network complained of since the last `open`."""

    def __init__(self, executable: str) -> None:
        self.problems: list[str] = []
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        from_us, self._write_fd = os.pipe()
        self._read_fd, to_us = os.pipe()
        self._process = _start(executable, self._profile.name, from_us, to_us)
        os.close(from_us)
        os.close(to_us)
        self._buffer = b""
        self._last_id = 0
        self._session: str | None = None

    def __enter__(self) -> Self:
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._write_fd)
        os.close(self._read_fd)
        self._profile.cleanup()

    def open(self, path: Path, *, width: int, theme: Literal["light", "dark"], height: int = 900) -> None:
        """Show the page in `path` and wait until it is loaded."""
        self.problems.clear()
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
        self._call("Page.navigate", url=path.resolve().as_uri())
        self._wait_for("Page.loadEventFired")

    def evaluate(self, expression: str) -> Any:
        """What a JavaScript expression says, as JSON."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def picture(self, path: Path, clip: tuple[float, float, float, float] | None = None) -> None:
        """A PNG of the whole page, or of (x, y, width, height) of it."""
        size = self._call("Page.getLayoutMetrics")["cssContentSize"]
        x, y, width, height = clip or (0, 0, size["width"], size["height"])
        area = {"x": x, "y": y, "width": width, "height": height, "scale": 1}
        shot = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=area)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _call(self, method: str, **parameters: object) -> dict[str, Any]:
        self._last_id += 1
        message: dict[str, object] = {"id": self._last_id, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write_fd, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._last_id:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result

    def _wait_for(self, event: str) -> None:
        while self._read().get("method") != event:
            pass

    def _read(self) -> dict[str, Any]:
        deadline = time.monotonic() + _TIMEOUT_S
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read_fd], [], [], max(0.0, deadline - time.monotonic()))
            piece = os.read(self._read_fd, 1 << 20) if ready else b""
            if not piece:
                raise RuntimeError(f"Chromium {'closed its pipe' if ready else f'said nothing for {_TIMEOUT_S:.0f} s'}")
            self._buffer += piece
        text, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(text)
        self._note(message)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        method, parameters = message.get("method"), message.get("params", {})
        if method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.problems.append(f"console: {[argument.get('value') for argument in parameters['args']]}")
        elif method == "Runtime.exceptionThrown":
            self.problems.append(f"exception: {parameters['exceptionDetails']['text']}")
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.problems.append(f"log: {parameters['entry']['text']}")
        elif method == "Network.requestWillBeSent" and not parameters["request"]["url"].startswith("file:"):
            self.problems.append(f"request: {parameters['request']['url']}")


def _start(executable: str, profile: str, from_us: int, to_us: int) -> subprocess.Popen[bytes]:
    """The browser with `from_us` as its descriptor 3 and `to_us` as its 4 (a shell moves them there)."""
    redirect = f'exec "$@" 3<&{from_us} 4>&{to_us}'
    options = (
        "--headless=new",
        "--remote-debugging-pipe",
        "--no-sandbox",  # it shows one file of ours, and a container may not make a sandbox
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--disable-extensions",
        "--disable-background-networking",
        f"--user-data-dir={profile}",
    )
    return subprocess.Popen(
        ["/bin/bash", "-c", redirect, "bash", executable, *options, "about:blank"],
        pass_fds=(from_us, to_us),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
