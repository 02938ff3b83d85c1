"""Peer: one post-LayerNorm BERT layer (768 wide, 12 heads, feed-forward 3072, exact GELU), forward and backward.

transformers' BertLayer with sdpa attention, no mask, dropout 0; `--precision bf16` runs it under CPU autocast.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
import transformers
from protocol import serve
from transformers.models.bert.modeling_bert import BertLayer

HIDDEN = 768


def main() -> None:
    """Serve timed runs of `--steps-per-run` forward and backward passes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", required=True, help="SEQUENCESxLENGTH, as 4x512")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--warmup-steps", type=int, default=2)
    parser.add_argument("--steps-per-run", type=int, default=4)
    parser.add_argument("--precision", choices=["f32", "bf16"], default="f32")
    args = parser.parse_args()
    sequences, length = (int(part) for part in args.shape.split("x"))
    torch.set_num_threads(args.threads)
    torch.set_num_interop_threads(1)
    torch.manual_seed(0)

    def prepare() -> Any:
        config = transformers.BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        config._attn_implementation = "sdpa"
        layer = BertLayer(config).train()
        states = torch.randn(sequences, length, HIDDEN, requires_grad=True)
        upstream = torch.randn(sequences, length, HIDDEN)

        def steps(count: int) -> dict[str, Any]:
            for _ in range(count):
                with torch.autocast("cpu", torch.bfloat16, enabled=args.precision == "bf16"):
                    output = layer(states)
                output = output[0] if isinstance(output, tuple) else output
                output.backward(upstream.to(output.dtype))
                layer.zero_grad(set_to_none=True)
                states.grad = None
            return {"units": count * sequences * length}

        steps(args.warmup_steps)
        return lambda: steps(args.steps_per_run)

    serve("PyTorch", torch.__version__, prepare)


if __name__ == "__main__":
    main()
