"""The models of the serving benches: classifiers of three well-known shapes with random weights, and their ONNX files.

`shapes.py SHAPE DIRECTORY` saves one as a model directory, without a tokenizer.
"""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

SHAPES = ("minilm", "distilbert", "roberta-base")
LABELS = 3
HEADS = 12


def build(shape: str, attention: str = "sdpa") -> nn.Module:
    """A classifier in evaluation mode; the same weights every time."""
    torch.manual_seed(0)
    common: dict[str, Any] = {"num_labels": LABELS, "attn_implementation": attention}
    if shape == "minilm":
        config: Any = transformers.BertConfig(
            hidden_size=384, num_hidden_layers=6, intermediate_size=1536, **common
        )
        return transformers.BertForSequenceClassification(config).eval()
    if shape == "distilbert":
        return transformers.DistilBertForSequenceClassification(transformers.DistilBertConfig(**common)).eval()
    config = transformers.RobertaConfig(
        vocab_size=50265, max_position_embeddings=514, type_vocab_size=1, layer_norm_eps=1e-5, **common
    )
    return transformers.RobertaForSequenceClassification(config).eval()


class Logits(nn.Module):
    """A classifier that takes and gives tensors only."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.model(input_ids=input_ids, attention_mask=attention_mask).logits


def onnx_files(shape: str, dtype: str, cache: Path) -> dict[str, Path]:
    """The ONNX files of a shape by variant, made once per version; which one is fastest differs, so the peer tries them.

    The graph comes from the TorchScript exporter with eager attention: it is the only one of PyTorch's exports that ONNX
    Runtime's transformer optimizer fuses wholly (attention, bias and GELU, residual and LayerNorm). `plain` leaves
    all fusion to the session. int8 is dynamic quantisation of these graphs, per channel and per tensor.
    """
    versions = "-".join(metadata.version(name) for name in ("torch", "transformers", "onnxruntime"))
    folder = cache / versions / shape
    folder.mkdir(parents=True, exist_ok=True)
    plain, fused = folder / "plain.onnx", folder / "fused.onnx"
    if not plain.exists():
        export(shape, plain)
    if not fused.exists():
        fuse(shape, plain, fused)
    if dtype == "f32":
        return {"session fusions": plain, "fused graph": fused}
    quantised = {
        "fused graph, per channel": (fused, True),
        "fused graph, per tensor": (fused, False),
        "session fusions, per channel": (plain, True),
    }
    files = {}
    for name, (source, per_channel) in quantised.items():
        files[name] = folder / f"int8-{name.replace(', ', '-').replace(' ', '-')}.onnx"
        if not files[name].exists():
            quantise(source, files[name], per_channel)
    return files


def export(shape: str, path: Path) -> None:
    """Write the graph with dynamic batch and length."""
    ids = torch.randint(5, 20000, (2, 16))
    mask = torch.ones_like(ids)
    mask[1, 10:] = 0
    axes = {0: "batch", 1: "length"}
    unfinished = path.with_suffix(".unfinished")
    torch.onnx.export(
        Logits(build(shape, "eager")).eval(), (ids, mask), str(unfinished), dynamo=False, opset_version=17,
        input_names=["input_ids", "attention_mask"], output_names=["logits"],
        dynamic_axes={"input_ids": axes, "attention_mask": axes, "logits": {0: "batch"}},
    )  # fmt: skip
    unfinished.replace(path)


def fuse(shape: str, plain: Path, path: Path) -> None:
    """Fuse with ONNX Runtime's transformer optimizer, and refuse a graph in which a layer's operators are not fused."""
    from onnxruntime.transformers import optimizer

    config: Any = build(shape).config
    layers = config.num_hidden_layers
    fused = optimizer.optimize_model(
        str(plain), model_type="bert", num_heads=HEADS, hidden_size=config.hidden_size, opt_level=0
    )
    counts = fused.get_fused_operator_statistics()
    for operator, wanted in (("Attention", layers), ("BiasGelu", layers), ("SkipLayerNormalization", 2 * layers)):
        if counts[operator] != wanted:
            raise SystemExit(f"{shape}: {counts[operator]} {operator} fused where {wanted} were expected")
    unfinished = path.with_suffix(".unfinished")
    fused.save_model_to_file(str(unfinished))
    unfinished.replace(path)


def quantise(source: Path, path: Path, per_channel: bool) -> None:
    """Dynamic int8: weights as signed bytes once, activations at run time."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    unfinished = path.with_suffix(".unfinished")
    types = {"DefaultTensorType": onnx.TensorProto.FLOAT}  # shape inference stops at fused operators
    quantize_dynamic(source, unfinished, weight_type=QuantType.QInt8, per_channel=per_channel, extra_options=types)
    unfinished.replace(path)


if __name__ == "__main__":
    build(sys.argv[1]).save_pretrained(sys.argv[2])
