"""`trainyard serve` on a port of its own, as a context manager."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
import unittest
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import ClassVar

ROOT = Path(__file__).resolve().parent.parent
BINARY = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "debug" / "trainyard"
MINILM = ROOT / ".cache" / "minilm"
EXPECTED = ROOT.parent / "shared" / "models" / "expected.json"
PATIENCE_S = 60.0


class Serving:
    """A server of one or several models (`[NAME=]DIRECTORY`); it answers when `with` is entered."""

    def __init__(self, *arguments: str | Path) -> None:
        self.command = [str(BINARY), "serve", "--port", "0", "--threads", "1", *map(str, arguments)]
        self.url = ""
        self._text = ""

    def __enter__(self) -> Serving:
        self._log = tempfile.TemporaryFile()
        # Nothing of the environment configures it.
        environment = {"PATH": os.environ.get("PATH", "")}
        self._process = subprocess.Popen(self.command, stdout=self._log, stderr=self._log, env=environment)
        try:
            self._await(self._listens, "did not listen")
            self._await(self._answers, "was never ready")
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        code = self._end()
        if kind is None and code != 0:
            raise AssertionError(f"the server ended with code {code}:\n{self.log()}")

    def log(self) -> str:
        """What the server has written so far."""
        if self._log.closed:
            return self._text
        return os.pread(self._log.fileno(), 1 << 24, 0).decode(errors="replace")

    def _await(self, happened, complaint: str) -> None:
        end = time.monotonic() + PATIENCE_S
        while not happened():
            if self._process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"{' '.join(self.command)} {complaint}:\n{self.log()}")
            time.sleep(0.01)

    def _listens(self) -> bool:
        found = re.search(r'listening.*url="(http://[^"]+)"', self.log())
        self.url = found.group(1) if found else ""
        return bool(found)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/ping", timeout=5) as reply:
                return reply.status == 200
        except OSError:
            return False

    def _end(self) -> int:
        self._process.terminate()
        try:
            return self._process.wait(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
        finally:
            self._text = self.log()
            self._log.close()


class ServingTest(unittest.TestCase):
    """Tests of one server, which all of a class share: override `serve`."""

    serving: ClassVar[Serving]

    @classmethod
    def setUpClass(cls) -> None:
        directory = cls.enterClassContext(tempfile.TemporaryDirectory())
        cls.serving = cls.enterClassContext(cls.serve(Path(directory)))

    @classmethod
    def serve(cls, directory: Path) -> Serving:
        """The server; `directory` is empty and goes with the class."""
        raise NotImplementedError
