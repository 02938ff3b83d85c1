"""Peer: inference of a classifier of a known shape with random weights, by ONNX Runtime or PyTorch.

`--batch N --length L`: a step is one batch of that size. `--rows FILE`: a step is `--sequences` texts of the file in
its order, in batches padded to their own longest text. What can be chosen (graph, size of the padded batches) is
tried before the first run, the fastest is kept, and every answer says which.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import shapes
import torch
from protocol import serve

PADDED_BATCHES = (8, 16, 32)
SAMPLE = 128  # texts of the file on which the choice is made
Forward = Callable[[np.ndarray, np.ndarray], np.ndarray]
Padded = tuple[np.ndarray, np.ndarray]


def main() -> None:
    """Serve timed runs of `--steps-per-run` steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=["onnxruntime", "eager", "compile"], required=True)
    parser.add_argument("--shape", choices=shapes.SHAPES, required=True)
    parser.add_argument("--dtype", choices=["f32", "int8"], default="f32")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--length", type=int)
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--sequences", type=int, default=128)
    parser.add_argument("--cache", type=Path, required=True, help="where the ONNX files are kept")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--warmup-steps", type=int, default=2)
    parser.add_argument("--steps-per-run", type=int, default=4)
    args = parser.parse_args()
    if (args.length is None) == (args.rows is None):
        parser.error("give either --length or --rows")
    if args.dtype == "int8" and args.backend != "onnxruntime":
        parser.error("int8 is compared with ONNX Runtime only")
    torch.set_num_threads(args.threads)
    torch.set_num_interop_threads(1)

    def prepare() -> Any:
        forwards = onnx(args) if args.backend == "onnxruntime" else pytorch(args)
        if args.rows is None:
            batches = {"": [fixed(args.batch, args.length)]}
        else:
            rows = [json.loads(line)["ids"] for line in args.rows.read_text().splitlines()]
            batches = {f"batches of {size}": padded(rows, size) for size in PADDED_BATCHES}
        choice, forward, chosen = fastest(forwards, batches)
        forwards.clear()  # frees the sessions that lost
        print(f"chosen: {choice}", file=sys.stderr)
        pending = itertools.cycle(chosen)

        def steps(count: int) -> dict[str, Any]:
            sequences = tokens = cells = 0
            wanted = count * (args.batch if args.rows is None else args.sequences)
            while sequences < wanted:
                ids, mask = next(pending)
                if not np.isfinite(forward(ids, mask)).all():
                    raise SystemExit("a logit is not finite")
                sequences += len(ids)
                tokens += int(mask.sum())
                cells += ids.size
            return {"units": sequences, "tokens": tokens, "padded_tokens": cells, "choice": choice}

        steps(args.warmup_steps)
        return lambda: steps(args.steps_per_run)

    name = "ONNX Runtime" if args.backend == "onnxruntime" else f"PyTorch {args.backend}"
    serve(name, metadata.version("onnxruntime") if args.backend == "onnxruntime" else torch.__version__, prepare)


def onnx(args: argparse.Namespace) -> dict[str, Forward]:
    """Sessions over the shape's graphs, by variant."""
    import onnxruntime

    forwards: dict[str, Forward] = {}
    for variant, path in shapes.onnx_files(args.shape, args.dtype, args.cache).items():
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = args.threads, 1
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        forwards[variant] = lambda ids, mask, session=session: session.run(
            None, {"input_ids": ids, "attention_mask": mask}
        )[0]
    return forwards


def pytorch(args: argparse.Namespace) -> dict[str, Forward]:
    """PyTorch in inference mode; compiled for the one size, or for any."""
    model: Any = shapes.Logits(shapes.build(args.shape)).eval()
    if args.backend == "compile":
        from torch._inductor import config

        config.freezing = True  # packs the weights
        model = torch.compile(model, dynamic=args.rows is not None)

    def forward(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return model(torch.from_numpy(ids), torch.from_numpy(mask)).numpy()

    return {"": forward}


def fixed(batch: int, length: int) -> Padded:
    """One batch of random ids without padding."""
    ids = np.random.default_rng(0).integers(5, 20000, (batch, length))
    return ids, np.ones_like(ids)


def padded(rows: list[list[int]], size: int) -> list[Padded]:
    """The texts in their order as batches of `size`, each padded to its longest text. Masked ids are never looked at."""
    batches = []
    for start in range(0, len(rows) - size + 1, size):
        texts = rows[start : start + size]
        ids = np.ones((size, max(map(len, texts))), dtype=np.int64)
        mask = np.zeros_like(ids)
        for index, text in enumerate(texts):
            ids[index, : len(text)] = text
            mask[index, : len(text)] = 1
        batches.append((ids, mask))
    return batches


def fastest(forwards: dict[str, Forward], batches: dict[str, list[Padded]]) -> tuple[str, Forward, list[Padded]]:
    """The fastest pair of variant and batches, by its best of several interleaved passes over the same texts."""
    pairs = [(variant, size) for variant in forwards for size in batches]
    if len(pairs) == 1:
        (variant, size), rounds = pairs[0], 0
    else:
        mixed = len(batches) > 1
        rounds = 3 if mixed else 40
        best = dict.fromkeys(pairs, float("inf"))
        for turn in range(rounds):
            for variant, size in pairs:
                sample = batches[size][: SAMPLE // len(batches[size][0][0])] if mixed else batches[size]
                start = time.perf_counter()
                for ids, mask in sample:
                    forwards[variant](ids, mask)
                if turn:
                    best[variant, size] = min(best[variant, size], time.perf_counter() - start)
        print({" ".join(pair): round(1e3 * seconds, 2) for pair, seconds in best.items()}, file=sys.stderr)
        variant, size = min(best, key=best.__getitem__)
    return ", ".join(part for part in (variant, size) if part), forwards[variant], batches[size]


if __name__ == "__main__":
    main()
