"""The benches: which contestants meet, and which rows of the table they give."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import inputs
from contest import BenchError, Contestant, alternate, environment

PEERS = Path(__file__).resolve().parent / "peers"
OURS = "trainyard"
SHAPES = ("4x512", "32x64")
ADAMW_PARAMETERS = 124_647_939  # RoBERTa-base with a three-label classifier, as peers/adamw.py counts them
SENTENCE = "Covid cases are increasing fast!"
MIB = 1 << 20


@dataclass(frozen=True)
class Settings:
    """What the command line decides."""

    threads: int
    alternations: int
    quick: bool
    peers_only: bool

    @property
    def warmup_steps(self) -> int:
        return 1 if self.quick else 2

    def steps(self, usual: int) -> int:
        """Steps of one timed run."""
        return 1 if self.quick else usual


@dataclass(frozen=True)
class Row:
    """One comparison: medians over all runs, `ratio` = ours / theirs in the row's unit."""

    name: str
    peer: str
    unit: str
    ours: list[float]
    theirs: list[float]
    better: str  # higher | lower
    goal: float

    def to_json(self, where: dict[str, object]) -> dict[str, Any]:
        """The form of bench/results/*.json."""
        ours, theirs = statistics.median(self.ours), statistics.median(self.theirs)
        return {
            "name": self.name, "peer": self.peer, "unit": self.unit, "ours": ours, "theirs": theirs,
            "ratio": ours / theirs, "better": self.better, "goal": self.goal, "runs": len(self.ours),
            "each": {"ours": self.ours, "theirs": self.theirs}, "where": where,
        }  # fmt: skip


@cache
def built(package: str, name: str) -> str:
    """Path of a release binary of the workspace, built now."""
    command = ["cargo", "build", "--release", "-p", package, "--message-format=json"]
    try:
        done = subprocess.run(command, cwd=inputs.REPOSITORY, stdout=subprocess.PIPE, text=True, check=False)
    except FileNotFoundError:
        raise BenchError("cargo is not installed, so our side cannot be built") from None
    if done.returncode:
        raise BenchError(f"`{' '.join(command)}` failed, so our side cannot run")
    messages = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    for message in messages:
        if message.get("executable") and message.get("target", {}).get("name") == name:
            return str(message["executable"])
    raise BenchError(f"package {package} has no binary {name}")


def engine(settings: Settings, name: str, bench: str, *options: str) -> list[Contestant]:
    """Our side of a bench: the workspace's bench binary."""
    if settings.peers_only:
        return []
    return [contestant(settings, name, bench, [built("trainyard-bench", "trainyard-bench"), bench], options)]


def peer(settings: Settings, name: str, bench: str, *options: str) -> Contestant:
    """A Python peer, under the interpreter that runs this driver."""
    return contestant(settings, name, bench, [sys.executable, str(PEERS / f"{bench}.py")], options)


def contestant(settings: Settings, name: str, bench: str, command: list[str], options: tuple[str, ...]) -> Contestant:
    """A contestant with the options that every bench has."""
    common = ["--threads", str(settings.threads), "--warmup-steps", str(settings.warmup_steps)]
    return Contestant(name, [*command, *options, *common], settings.threads, inputs.CACHE / "logs" / bench)


def meet(settings: Settings, contestants: list[Contestant]) -> dict[str, Contestant]:
    """Start all, alternate, end all; returns them by name. Without our side, prints what the peers reached."""
    with ExitStack() as running:
        for each in contestants:
            print(f"  starting {each.name}", file=sys.stderr)
            running.enter_context(each)
        alternate(contestants, settings.alternations)
    if settings.peers_only:
        for each in contestants:
            rates = each.rates()
            print(
                f"  {each.name} {each.version}: median {statistics.median(rates):.4g}, best {max(rates):.4g} units/s,"
                f" peak {each.peak_bytes / MIB:.0f} MiB, last answer {each.answers[-1]}"
            )
    return {each.name: each for each in contestants}


def finetune(settings: Settings) -> list[Row]:
    """Fine-tuning a RoBERTa-base-shaped classifier on tweets, and the peak memory of the same processes."""
    steps = ["--batch", "32", "--steps-per-run", str(settings.steps(4)), "--rows", str(inputs.tweet_rows())]
    eager, compiled = "PyTorch eager", "PyTorch compile"
    found = meet(settings, [
        *engine(settings, OURS, "finetune", *steps, "--precision", "f32"),
        peer(settings, eager, "finetune", *steps),
        peer(settings, compiled, "finetune", *steps, "--compile", "default"),
    ])  # fmt: skip
    if OURS not in found:
        return []
    ours, rows = found[OURS], []
    for name, goal in ((eager, 2.0), (compiled, 1.7)):
        theirs = found[name]
        for unit, key in (("samples/s", "units"), ("tokens/s", "tokens")):
            rows.append(Row("fine-tune RoBERTa-base", name, unit, ours.rates(key), theirs.rates(key), "higher", goal))
    for name in (eager, compiled):
        peaks = [ours.peak_bytes / MIB], [found[name].peak_bytes / MIB]
        rows.append(Row("fine-tune peak memory", name, "MiB", *peaks, "lower", 0.7))
    return rows


def block(settings: Settings) -> list[Row]:
    """One transformer block, forward and backward, f32."""
    rows = []
    for shape in SHAPES:
        options = ["--shape", shape, "--precision", "f32", "--steps-per-run", str(settings.steps(4))]
        name = "PyTorch eager"
        found = meet(settings, [*engine(settings, OURS, "block", *options), peer(settings, name, "block", *options)])
        if OURS in found:
            rows.append(
                Row(f"block {shape} f32", name, "tokens/s", found[OURS].rates(), found[name].rates(), "higher", 1.2)
            )
    return rows


def bf16(settings: Settings) -> list[Row]:
    """The same block in bf16 against autocast, and our saved activations against our own f32."""
    rows = []
    for shape in SHAPES:
        options = ["--shape", shape, "--steps-per-run", str(settings.steps(4)), "--precision"]
        name, own = "PyTorch bf16 autocast", "trainyard f32"
        found = meet(settings, [
            *engine(settings, OURS, "block", *options, "bf16"),
            *engine(settings, own, "block", *options, "f32"),
            peer(settings, name, "block", *options, "bf16"),
        ])  # fmt: skip
        if OURS not in found:
            continue
        rates = found[OURS].rates(), found[name].rates()
        rows.append(Row(f"block {shape} bf16", name, "tokens/s", *rates, "higher", 1.4))
        saved = [[answer.get("saved_activation_bytes") for answer in found[each].answers] for each in (OURS, own)]
        if not all(isinstance(count, int) for counts in saved for count in counts):
            raise BenchError("our block runs must answer with saved_activation_bytes")
        rows.append(Row(f"block {shape} bf16 saved activations", own, "bytes", *saved, "lower", 0.55))
    return rows


def adamw(settings: Settings) -> list[Row]:
    """AdamW over RoBERTa-base's parameters."""
    steps = ["--steps-per-run", str(settings.steps(5))]
    name = "PyTorch fused"
    found = meet(settings, [
        *engine(settings, OURS, "adamw", "--parameters", str(ADAMW_PARAMETERS), *steps),
        peer(settings, name, "adamw", *steps),
    ])  # fmt: skip
    if OURS not in found:
        return []
    return [Row("AdamW 124 M", name, "parameters/s", found[OURS].rates(), found[name].rates(), "higher", 1.4)]


def cold_start(settings: Settings) -> list[Row]:
    """Process start to printed answer for one sentence, with the files in the page cache."""
    model, name = str(inputs.minilm_classifier()), "Python script"
    commands = {name: [sys.executable, str(PEERS / "predict.py"), model, SENTENCE]}
    if not settings.peers_only:
        commands[OURS] = [built("trainyard", "trainyard"), "predict", model, SENTENCE, "--json"]
    seconds: dict[str, list[float]] = {each: [] for each in commands}
    for turn in range(settings.alternations + 1):  # the first fills the page cache and is not counted
        for each in sorted(commands, reverse=turn % 2 == 1):
            taken = time_to_answer(each, commands[each], settings)
            if turn:
                seconds[each].append(taken)
                print(f"  {turn}/{settings.alternations} {each}: {taken:.3f} s", file=sys.stderr)
    if settings.peers_only:
        print(f"  {name}: median {statistics.median(seconds[name]):.3f} s, best {min(seconds[name]):.3f} s")
        return []
    return [Row("cold start MiniLM predict", name, "s", seconds[OURS], seconds[name], "lower", 0.15)]


def time_to_answer(name: str, command: list[str], settings: Settings) -> float:
    """Seconds from process start to the first line of the answer; the answer must be the JSON of `predict`."""
    log = inputs.CACHE / "logs" / "cold-start.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as stderr:
        start = time.perf_counter()
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment(settings.threads)
        )
        assert process.stdout is not None
        first = process.stdout.readline()
        taken = time.perf_counter() - start
        rest = process.stdout.read()
        process.stdout.close()
        process.wait(timeout=60)
    try:
        answered = len(json.loads(first + rest)["results"]) == 1
    except (ValueError, KeyError, TypeError):
        answered = False
    if process.returncode or not answered:
        tail = os.linesep.join(log.read_text(errors="replace").splitlines()[-8:])
        raise BenchError(f"{name} gave no answer (code {process.returncode})\n{tail}")
    return taken


BENCHES: dict[str, Callable[[Settings], list[Row]]] = {
    "finetune": finetune,
    "block": block,
    "adamw": adamw,
    "bf16": bf16,
    "cold-start": cold_start,
}
