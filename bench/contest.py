"""Contestants of one bench and their interleaved schedule. The line protocol is described in README.md."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

READY_TIMEOUT_S = 900.0  # torch.compile warms up for minutes
RUN_TIMEOUT_S = 600.0
IDLE_LIMIT = 0.02  # CPU seconds per second of waiting above which a contestant is reported as disturbing the others


class BenchError(Exception):
    """A bench cannot be run; the message says what is missing or what failed, and what to do."""


def environment(threads: int) -> dict[str, str]:
    """The children's environment: one thread count for every library, and no network."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    fixed = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return os.environ | dict.fromkeys(names, str(threads)) | fixed


@dataclass
class Contestant:
    """One process that speaks the line protocol. Use it as a context manager: it is started, then ended."""

    name: str
    command: list[str]
    threads: int
    logs: Path
    version: str = ""
    answers: list[dict[str, Any]] = field(default_factory=list)
    peak_bytes: int = 0
    idle_cpu_share: float = 0.0

    def __enter__(self) -> Contestant:
        self.logs.mkdir(parents=True, exist_ok=True)
        self._log = self.logs / f"{self.name.replace(' ', '-')}.log"
        with self._log.open("w") as stderr:
            self._process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr,
                text=True, bufsize=1, env=environment(self.threads),
            )  # fmt: skip
        try:
            ready = self._receive(READY_TIMEOUT_S)
            if ready.get("ready") is not True:
                raise BenchError(f"{self.name}: expected a ready line, got {ready}")
        except BaseException:
            self._end()
            raise
        self.version = str(ready.get("version", ""))
        self._waiting_since = time.monotonic()
        self._idle_cpu_from = self._cpu_seconds()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end()

    def run(self) -> dict[str, Any]:
        """One timed run."""
        self._note_idle()
        self._send("run")
        answer = self._receive(RUN_TIMEOUT_S)
        if not (isinstance(answer.get("seconds"), (int, float)) and isinstance(answer.get("units"), (int, float))):
            raise BenchError(f"{self.name}: a run must answer with seconds and units, got {answer}")
        self.answers.append(answer)
        self.peak_bytes = self._peak_bytes()
        self._waiting_since = time.monotonic()
        self._idle_cpu_from = self._cpu_seconds()
        return answer

    def rates(self, key: str = "units") -> list[float]:
        """`key` per second of every run."""
        return [answer[key] / answer["seconds"] for answer in self.answers]

    def _note_idle(self) -> None:
        waited = time.monotonic() - self._waiting_since
        if waited > 1.0:
            share = (self._cpu_seconds() - self._idle_cpu_from) / waited
            self.idle_cpu_share = max(self.idle_cpu_share, share)

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
        except BrokenPipeError:
            raise self._died() from None

    def _receive(self, timeout_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], timeout_s)[0]:
            raise BenchError(f"{self.name}: no answer within {timeout_s:.0f} s; its messages are in {self._log}")
        line = self._process.stdout.readline()
        if not line:
            raise self._died()
        try:
            answer = json.loads(line)
        except ValueError:
            raise BenchError(f"{self.name}: not a JSON line: {line.strip()!r}") from None
        if "error" in answer:
            raise BenchError(f"{self.name}: {answer['error']}")
        return answer

    def _died(self) -> BenchError:
        code = self._process.wait()
        tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-8:])
        return BenchError(f"{self.name}: ended with code {code}\n  {' '.join(self.command)}\n{tail}")

    def _end(self) -> None:
        try:
            self._process.communicate("quit\n", timeout=20)
        except (subprocess.TimeoutExpired, OSError, ValueError):
            self._process.kill()
            self._process.wait()

    def _peak_bytes(self) -> int:
        """Peak resident size so far (VmHWM), of the process itself."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        kibibytes = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
        return int(kibibytes) * 1024

    def _cpu_seconds(self) -> float:
        """User and system time of all its threads."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def alternate(contestants: list[Contestant], alternations: int) -> None:
    """Run all contestants in turn, `alternations` times; who begins rotates, and only one computes at a time."""
    for turn in range(alternations):
        first = turn % len(contestants)
        for contestant in contestants[first:] + contestants[:first]:
            answer = contestant.run()
            print(f"  {turn + 1}/{alternations} {contestant.name}: {answer['seconds']:.3f} s", file=sys.stderr)
    for contestant in contestants:
        if contestant.idle_cpu_share > IDLE_LIMIT:
            share = 100 * contestant.idle_cpu_share
            print(f"  note: {contestant.name} used {share:.0f} % of a core while it waited", file=sys.stderr)
