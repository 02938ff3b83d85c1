"""Peer: fine-tuning a RoBERTa-base-shaped classifier with PyTorch and transformers, as their users do it.

Random weights, batches padded to their own longest row, sdpa attention, dropout 0.1, AdamW (fused) without decay on
biases and norms, clipping to 1.0. Batches are the rows of the file in their order, and start again at its end.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
import transformers
from protocol import serve
from torch import Tensor, nn

LEARNING_RATE, WEIGHT_DECAY, CLIP_NORM, DROPOUT, LABELS = 2e-5, 0.01, 1.0, 0.1, 3


class Rows:
    """The tokenised rows, handed out as padded batches."""

    def __init__(self, path: Path, batch: int, pad_id: int) -> None:
        self.rows = [json.loads(line) for line in path.read_text().splitlines()]
        self.batch, self.pad_id, self.next = batch, pad_id, 0

    def take(self) -> tuple[dict[str, Tensor], int]:
        """The next batch as the model's arguments, and its real tokens."""
        if self.next + self.batch > len(self.rows):
            self.next = 0
        rows = self.rows[self.next : self.next + self.batch]
        self.next += self.batch
        lengths = [len(row["ids"]) for row in rows]
        ids = torch.full((len(rows), max(lengths)), self.pad_id)
        mask = torch.zeros_like(ids)
        for index, row in enumerate(rows):
            ids[index, : lengths[index]] = torch.tensor(row["ids"])
            mask[index, : lengths[index]] = 1
        labels = torch.tensor([row["label"] for row in rows])
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}, sum(lengths)


def build() -> nn.Module:
    """RoBERTa-base's shape (124.6 M parameters) with a classifier, in training mode."""
    config = transformers.RobertaConfig(
        vocab_size=50265, max_position_embeddings=514, type_vocab_size=1, layer_norm_eps=1e-5,
        hidden_dropout_prob=DROPOUT, attention_probs_dropout_prob=DROPOUT, num_labels=LABELS,
        pad_token_id=1, bos_token_id=0, eos_token_id=2,
    )  # fmt: skip
    config._attn_implementation = "sdpa"
    return transformers.RobertaForSequenceClassification(config).train()


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """AdamW with decay on matrices only."""
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=LEARNING_RATE, fused=True)


def main() -> None:
    """Serve timed runs of `--steps-per-run` optimizer steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--warmup-steps", type=int, default=2)
    parser.add_argument("--steps-per-run", type=int, default=4)
    parser.add_argument("--compile", choices=["off", "default", "dynamic", "max-autotune"], default="off")
    parser.add_argument("--precision", choices=["f32", "bf16"], default="f32")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.set_num_interop_threads(1)
    torch.manual_seed(0)

    def prepare() -> Any:
        rows = Rows(args.rows, args.batch, pad_id=1)
        model = build()
        optimizer = make_optimizer(model)
        parameters = list(model.parameters())
        forward: Any = model
        if args.compile == "dynamic":
            forward = torch.compile(model, dynamic=True)
        elif args.compile != "off":
            forward = torch.compile(model, mode=None if args.compile == "default" else "max-autotune-no-cudagraphs")

        def steps(count: int) -> dict[str, Any]:
            tokens = padded = 0
            loss = torch.tensor(float("nan"))
            for _ in range(count):
                batch, real = rows.take()
                with torch.autocast("cpu", torch.bfloat16, enabled=args.precision == "bf16"):
                    loss = forward(**batch).loss
                loss.backward()
                loss = loss.detach()
                nn.utils.clip_grad_norm_(parameters, CLIP_NORM)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                tokens += real
                padded += batch["input_ids"].numel()
            return {"units": count * args.batch, "tokens": tokens, "padded_tokens": padded, "loss": loss.item()}

        steps(args.warmup_steps)
        return lambda: steps(args.steps_per_run)

    serve("PyTorch" + ("" if args.compile == "off" else " compile"), torch.__version__, prepare)


if __name__ == "__main__":
    main()
