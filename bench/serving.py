"""The in-process benches of inference: latency of one text, throughput on tweets, and int8."""

from __future__ import annotations

from collections.abc import Callable

import inputs
from benches import OURS, Row, Settings, engine, meet, peer
from contest import Contestant

SHAPES = {"minilm": "MiniLM-L6", "distilbert": "DistilBERT", "roberta-base": "RoBERTa-base"}
LENGTHS = (32, 128)
STEPS = {("minilm", 32): 60, ("minilm", 128): 20, ("distilbert", 32): 20, ("distilbert", 128): 6}  # about 0.4 s
FEWEST_STEPS = {32: 10, 128: 3}
SEQUENCES = 128  # of a peer's step on tweets: about as many as fill our batch
MAX_BATCH_TOKENS = 4096
ONNX_RUNTIME, EAGER, COMPILED = "ONNX Runtime", "PyTorch eager", "PyTorch compile"
BACKENDS = {ONNX_RUNTIME: "onnxruntime", EAGER: "eager", COMPILED: "compile"}


def latency(settings: Settings) -> list[Row]:
    """One text of 32 and of 128 tokens, f32."""
    rows = []
    for shape, title in SHAPES.items():
        for length in LENGTHS:
            options = one_text(settings, shape, length)
            found = meet(settings, [
                *engine(settings, OURS, "infer", *options),
                *(contender(settings, name, *options) for name in BACKENDS),
            ])  # fmt: skip
            if OURS in found:
                name = f"{title} 1×{length} f32"
                rows += [latency_row(name, found[OURS], found[each], 1.0) for each in BACKENDS]
    return rows


def tweets(settings: Settings) -> list[Row]:
    """Tweets at saturation, f32: ragged batches against batches padded to their longest text."""
    rows = []
    for shape, title in SHAPES.items():
        name, options = f"{title} tweets f32", mixed(settings, shape)
        found = meet(settings, [
            *engine(settings, OURS, "infer", *options, *budget()),
            contender(settings, ONNX_RUNTIME, *options, *sequences()),
            contender(settings, EAGER, *options, *sequences()),
        ])  # fmt: skip
        if OURS in found:
            rows += [throughput_row(name, found[OURS], found[each], 1.7) for each in (ONNX_RUNTIME, EAGER)]
    return rows


def int8(settings: Settings) -> list[Row]:
    """RoBERTa-base in int8 against our own f32 and against ONNX Runtime's dynamic int8: tweets, and one text."""
    shape, own, theirs = "roberta-base", "trainyard f32", f"{ONNX_RUNTIME} int8"
    title, options = SHAPES[shape], mixed(settings, shape)
    found = meet(settings, [
        *engine(settings, OURS, "infer", *options, *budget(), "--dtype", "int8"),
        *engine(settings, own, "infer", *options, *budget(), "--dtype", "f32"),
        contender(settings, theirs, *options, *sequences(), "--dtype", "int8"),
    ])  # fmt: skip
    rows = []
    if OURS in found:
        name = f"{title} tweets int8"
        rows += [throughput_row(name, found[OURS], found[each], goal) for each, goal in ((own, 2.5), (theirs, 1.3))]
    for length in LENGTHS:
        options = one_text(settings, shape, length)
        found = meet(settings, [
            *engine(settings, OURS, "infer", *options, "--dtype", "int8"),
            *engine(settings, own, "infer", *options, "--dtype", "f32"),
            contender(settings, theirs, *options, "--dtype", "int8"),
        ])  # fmt: skip
        if OURS in found:
            name = f"{title} 1×{length} int8"
            goals = ((own, 1 / 2.5), (theirs, 1 / 1.3))
            rows += [latency_row(name, found[OURS], found[each], round(goal, 2)) for each, goal in goals]
    return rows


def contender(settings: Settings, name: str, *options: str) -> Contestant:
    """A peer by its name in the table."""
    backend = BACKENDS[name.removesuffix(" int8")]
    return peer(settings, name, "infer", "--backend", backend, "--cache", str(inputs.CACHE / "onnx"), *options)


def one_text(settings: Settings, shape: str, length: int) -> list[str]:
    """Options of a bench of single texts."""
    steps = settings.steps(STEPS.get((shape, length), FEWEST_STEPS[length]))
    return ["--shape", shape, "--length", str(length), "--steps-per-run", str(steps)]


def mixed(settings: Settings, shape: str) -> list[str]:
    """Options of a bench of tweets."""
    steps = settings.steps(8 if shape == "minilm" else 2)
    return ["--shape", shape, "--rows", str(inputs.serving_rows(shape)), "--steps-per-run", str(steps)]


def budget() -> list[str]:
    return ["--max-batch-tokens", str(MAX_BATCH_TOKENS)]


def sequences() -> list[str]:
    return ["--sequences", str(SEQUENCES)]


def latency_row(name: str, ours: Contestant, theirs: Contestant, goal: float) -> Row:
    """Milliseconds of one text: the mean of every run."""
    milliseconds = [[1e3 * answer["seconds"] / answer["units"] for answer in each.answers] for each in (ours, theirs)]
    return Row(name, described(theirs), "ms", *milliseconds, "lower", goal)


def throughput_row(name: str, ours: Contestant, theirs: Contestant, goal: float) -> Row:
    """Real tokens per second: both sides take the same texts, but not always equally many of them in a run."""
    return Row(name, described(theirs), "tokens/s", ours.rates("tokens"), theirs.rates("tokens"), "higher", goal)


def described(contestant: Contestant) -> str:
    """A peer's name with what it chose for itself."""
    choice = contestant.answers[-1].get("choice")
    return f"{contestant.name} ({choice})" if choice else contestant.name


BENCHES: dict[str, Callable[[Settings], list[Row]]] = {
    "serve-latency": latency,
    "serve-tweets": tweets,
    "serve-int8": int8,
}
