"""A headless Chromium, spoken to over two pipes in its DevTools protocol."""

import contextlib
import json
import os
import shutil
import subprocess
import sys

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FOUND = next(filter(None, map(shutil.which, NAMES)), None)
MISSING = pytest.mark.skipif(FOUND is None, reason="no Chromium on PATH; apt-get install chromium")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
# The browser reads descriptor 3 and writes 4, whichever numbers the pipes have here.
ON_PIPES = """
import os, sys
for number, descriptor in ((63, sys.argv[1]), (64, sys.argv[2])):
    os.dup2(int(descriptor), number)
os.dup2(63, 3)
os.dup2(64, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def in_browser(test):
    """A test that needs a browser, and so takes long."""
    return pytest.mark.slow(MISSING(test))


class Browser:
    """One tab. `requested` holds the address of whatever a page has asked for."""

    def __init__(self, commands, answers):
        self._commands, self._answers = commands, answers
        self._number, self._session = 0, {}
        self.requested, self._events = [], []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Network", "Runtime"):
            self.send(f"{domain}.enable")

    def send(self, method, **params):
        """The result of a command."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params} | self._session
        self._commands.write(json.dumps(message).encode() + b"\0")
        self._commands.flush()
        while (answer := self._read()).get("id") != self._number:
            pass
        assert "error" not in answer, answer
        return answer["result"]

    def _read(self):
        read = bytearray()
        while (byte := self._answers.read(1)) != b"\0":
            assert byte, "the browser has ended"
            read += byte
        message = json.loads(read)
        if message.get("method") == "Network.requestWillBeSent":
            self.requested.append(message["params"]["request"]["url"])
        self._events.append(message.get("method"))
        return message

    def open(self, path, width=1400, dark=False):
        """Show a file, and wait until it is loaded."""
        self.requested.clear()
        size = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self._events.clear()
        self.send("Page.navigate", url=path.as_uri())
        while "Page.loadEventFired" not in self._events:
            self._read()

    def value(self, expression):
        """What JavaScript makes of an expression."""
        found = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def point_at(self, x, y):
        """Move the pointer."""
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)


@contextlib.contextmanager
def browsing(profile):
    """A browser with a profile of its own, ended behind."""
    commands_out, commands_in = os.pipe()
    answers_out, answers_in = os.pipe()

    flags = [*FLAGS, "--remote-debugging-pipe", f"--user-data-dir={profile}"]
    process = subprocess.Popen(
        [sys.executable, "-c", ON_PIPES, str(commands_out), str(answers_in), FOUND, *flags],
        pass_fds=(commands_out, answers_in),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(commands_out)
    os.close(answers_in)
    try:
        with os.fdopen(commands_in, "wb") as commands, os.fdopen(answers_out, "rb") as answers:
            yield Browser(commands, answers)
    finally:
        process.terminate()
        process.wait(20)
