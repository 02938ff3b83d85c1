"""Peer: `torch.optim.AdamW(fused=True)` over tensors of RoBERTa-base's shapes with fixed gradients."""

from __future__ import annotations

import argparse
from typing import Any

import torch
from finetune import LEARNING_RATE, WEIGHT_DECAY, build
from protocol import serve


def main() -> None:
    """Serve timed runs of `--steps-per-run` optimizer steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--warmup-steps", type=int, default=2)
    parser.add_argument("--steps-per-run", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.set_num_interop_threads(1)
    torch.manual_seed(0)

    def prepare() -> Any:
        parameters = list(build().parameters())
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter) * 1e-3
        optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=True)
        total = sum(parameter.numel() for parameter in parameters)

        def steps(count: int) -> dict[str, Any]:
            for _ in range(count):
                optimizer.step()
            return {"units": count * total}

        steps(args.warmup_steps)
        return lambda: steps(args.steps_per_run)

    serve("PyTorch", torch.__version__, prepare)


if __name__ == "__main__":
    main()
