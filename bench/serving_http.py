"""The benches of inference over HTTP: overhead, latency under load, throughput at saturation, start and memory."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import inputs
from benches import MIB, OURS, PEERS, Row, Settings, built, engine
from contest import BenchError, environment
from serving import SHAPES

READY_TIMEOUT_S = 120.0
SATURATING = 64  # requests in flight
LOAD = 0.7  # of the measured saturation rate
OVERHEAD_MS, READY_S = 0.3, 0.3
SERVED = ("minilm", "roberta-base")
LITSERVE = "LitServe"
TEXT = "Covid cases are increasing fast, and the schools of the whole county stay closed for at least two more weeks!"


class Server:
    """A server in a process of its own. Use it as a context manager: it is started and awaited, then ended."""

    def __init__(self, name: str, command: list[str], health: str, settings: Settings) -> None:
        self.name, self.health, self.threads = name, health, settings.threads
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self.command = [*command, "--port", str(self.port), "--threads", str(settings.threads)]
        self.log = inputs.CACHE / "logs" / "serve" / f"{name}.log"
        self.seconds_to_ready = float("nan")

    def __enter__(self) -> Server:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("w") as log:
            start = time.perf_counter()
            self._process = subprocess.Popen(
                self.command, stdout=log, stderr=log, env=environment(self.threads), start_new_session=True
            )
        try:
            while not self._healthy():
                if self._process.poll() is not None:
                    tail = os.linesep.join(self.log.read_text(errors="replace").splitlines()[-8:])
                    raise BenchError(f"{self.name}: ended with code {self._process.returncode}\n{tail}")
                if time.perf_counter() - start > READY_TIMEOUT_S:
                    raise BenchError(f"{self.name}: not ready within {READY_TIMEOUT_S:.0f} s; see {self.log}")
                time.sleep(0.002)
            self.seconds_to_ready = time.perf_counter() - start
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end()

    def load(self, path: str, data: Path, seconds: float, *options: str) -> dict[str, Any]:
        """The report of `trainyard bench-serve`; every request must have succeeded."""
        url = f"http://127.0.0.1:{self.port}{path}"
        timing = ["--seconds", str(seconds), "--warmup", str(min(1.0, seconds / 4))]
        command = [built("trainyard", "trainyard"), "bench-serve", url, "--data", str(data), *timing, *options, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BenchError(f"bench-serve against {self.name}: code {done.returncode}\n{done.stderr or done.stdout}")
        report = json.loads(done.stdout)
        if report["succeeded"] != report["sent"]:
            raise BenchError(f"{self.name} did not answer all: {report['statuses']}, {report['failures']}")
        if (report["starts"] or {}).get("fell_behind"):
            print(f"  note: the load generator fell behind against {self.name}", file=sys.stderr)
        return report

    def resident_bytes(self) -> int:
        """VmRSS of the process now."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))

    def _healthy(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", self.health)
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _end(self) -> None:
        """Its process group, for some servers leave workers behind."""
        for kind, patience in ((signal.SIGTERM, 30), (signal.SIGKILL, 10)):
            try:
                os.killpg(self._process.pid, kind)
                self._process.wait(timeout=patience)
            except subprocess.TimeoutExpired:
                continue
            except ProcessLookupError:
                break
        self._process.wait()


def ours(settings: Settings, shape: str, *options: str) -> Server:
    """`trainyard serve` of a shape."""
    command = [built("trainyard", "trainyard"), "serve", str(inputs.served_model(shape)), *options]
    return Server(f"trainyard-{shape}", command, "/ping", settings)


def litserve(settings: Settings, shape: str) -> Server:
    """LitServe over transformers, batching."""
    command = [sys.executable, str(PEERS / "litserve_server.py"), str(inputs.served_model(shape))]
    return Server(f"litserve-{shape}", command, "/health", settings)


def seconds(settings: Settings, usual: float) -> float:
    """Length of one load."""
    return 3.0 if settings.quick else usual


def overhead(settings: Settings) -> list[Row]:
    """Median latency of one caller, less the engine's median for the ids of the same text in a process of its own.

    Tokenizing is part of the overhead: the engine gets ids.
    """
    if settings.peers_only:
        return []
    shape = "minilm"
    text, ids = inputs.one_text(shape, TEXT)
    options = ["--shape", shape, "--rows", str(ids), "--max-batch-tokens", "1", "--steps-per-run", "1"]
    differences, medians = [], []
    with engine(settings, OURS, "infer", *options)[0] as inside, ours(settings, shape) as server:
        for turn in range(settings.alternations):
            without = 1e3 * statistics.median(inside.run()["seconds"] for _ in range(settings.steps(100)))
            report = server.load("/invocations", text, seconds(settings, 3.0), "--concurrency", "1")
            medians.append(report["latency_ms"]["p50"])
            differences.append(medians[-1] - without)
            print(f"  {turn + 1}: {medians[-1]:.3f} ms over HTTP, {without:.3f} ms inside", file=sys.stderr)
    limit = [OVERHEAD_MS] * len(differences)
    return [Row(f"HTTP overhead {SHAPES[shape]}", f"limit of {OVERHEAD_MS} ms", "ms", differences, limit, "lower", 1.0)]


def under_load(settings: Settings) -> list[Row]:
    """Requests per second at saturation against LitServe, then p99 against p50 at 70 % of that rate."""
    rows, texts = [], inputs.serving_texts()
    for shape in SERVED:
        rates: dict[str, list[float]] = {OURS: [], LITSERVE: []}
        p50, p99 = [], []
        closed = ["--concurrency", str(SATURATING)]
        # Both stay up, and only the one that is asked computes.
        with litserve(settings, shape) as theirs, ours(settings, shape) as server:
            for turn in range(settings.alternations):
                sides = [(OURS, server, "/invocations"), (LITSERVE, theirs, "/predict")]
                for name, side, path in sides if turn % 2 == 0 else sides[::-1]:
                    report = side.load(path, texts, seconds(settings, 5.0), *closed)
                    rates[name].append(report["requests_per_second"])
                    print(f"  {turn + 1} {name}: {rates[name][-1]:.1f} requests/s", file=sys.stderr)
            rate = LOAD * statistics.median(rates[OURS])
            for turn in range(settings.alternations):
                options = ["--rate", f"{rate:.3f}", "--seed", str(turn)]
                latency = server.load("/invocations", texts, seconds(settings, 10.0), *options)["latency_ms"]
                p50.append(latency["p50"])
                p99.append(latency["p99"])
                print(f"  {turn + 1} at {rate:.1f}/s: p50 {p50[-1]:.1f}, p99 {p99[-1]:.1f} ms", file=sys.stderr)
        title = SHAPES[shape]
        rows += [
            Row(f"{title} HTTP saturation", LITSERVE, "requests/s", rates[OURS], rates[LITSERVE], "higher", 1.7),
            Row(f"{title} HTTP p99 at 70 % load", "its own p50", "ms", p99, p50, "lower", 2.0),
        ]
    return rows


def at_rest(settings: Settings) -> list[Row]:
    """Process start to 200 on /ping with files in the page cache, and resident memory once some load is over."""
    if settings.peers_only:
        return []
    rows, texts = [], inputs.serving_texts()
    for shape in SERVED:
        started, resident = [], []
        weights = (inputs.served_model(shape) / "model.safetensors").stat().st_size
        for turn in range(settings.alternations + 1):  # the first fills the page cache and is not counted
            with ours(settings, shape) as server:
                if not turn:
                    continue
                started.append(server.seconds_to_ready)
                server.load("/invocations", texts, 1.0, "--concurrency", "8")
                time.sleep(3.0)  # the server lets go of its batches after two idle seconds
                resident.append(server.resident_bytes() / MIB)
                print(f"  {turn} ready in {started[-1]:.3f} s, {resident[-1]:.0f} MiB", file=sys.stderr)
        title, count = SHAPES[shape], len(started)
        if shape == "minilm":
            limit = [READY_S] * count
            rows.append(Row(f"{title} time to ready", f"limit of {READY_S} s", "s", started, limit, "lower", 1.0))
        rows.append(Row(f"{title} resident", "its weights", "MiB", resident, [weights / MIB] * count, "lower", 1.3))
    return rows


BENCHES: dict[str, Callable[[Settings], list[Row]]] = {
    "serve-overhead": overhead,
    "serve-load": under_load,
    "serve-rest": at_rest,
}
