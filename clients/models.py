"""Tiny untrained BERT models: two layers, 32 wide, words and letters for a vocabulary."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

HIDDEN, LAYERS, HEADS, INTERMEDIATE, MAX_TOKENS = 32, 2, 4, 64, 64
LABELS = ("down", "level", "up")
TAGS = ("O", "B-COL", "I-COL")
WORDS = "the train was in station good bad red green blue not very . , !".split()
INITIALIZER_RANGE = 0.1
SEED = 7


def classifier(directory: Path) -> Path:
    """Labels texts `down`, `level` or `up`."""
    head = {"classifier": (len(LABELS), HIDDEN), "bert.pooler.dense": (HIDDEN, HIDDEN)}
    return _write(directory, "BertForSequenceClassification", "bert.", head, LABELS)


def tagger(directory: Path) -> Path:
    """Labels tokens `O`, `B-COL` or `I-COL`."""
    return _write(directory, "BertForTokenClassification", "bert.", {"classifier": (len(TAGS), HIDDEN)}, TAGS)


def encoder(directory: Path) -> Path:
    """Embeds texts."""
    return _write(directory, "BertModel", "", {}, ())


def _write(
    directory: Path, architecture: str, prefix: str, head: dict[str, tuple[int, int]], labels: tuple[str, ...]
) -> Path:
    directory.mkdir(parents=True)
    vocabulary = _vocabulary()
    config = {
        "architectures": [architecture],
        "model_type": "bert",
        "vocab_size": len(vocabulary),
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": INTERMEDIATE,
        "max_position_embeddings": MAX_TOKENS,
        "type_vocab_size": 2,
        "pad_token_id": 0,
    }
    if labels:
        config["id2label"] = dict(enumerate(labels))
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "vocab.txt").write_text("\n".join(vocabulary))
    save_file(_weights(len(vocabulary), prefix, head), directory / "model.safetensors")
    return directory


def _weights(vocabulary: int, prefix: str, head: dict[str, tuple[int, int]]) -> dict[str, np.ndarray]:
    random = np.random.default_rng(SEED)
    tensors: dict[str, np.ndarray] = {}

    def matrix(name: str, *shape: int) -> None:
        tensors[f"{name}.weight"] = random.normal(0.0, INITIALIZER_RANGE, shape).astype(np.float32)

    def linear(name: str, *shape: int) -> None:
        matrix(name, *shape)
        tensors[f"{name}.bias"] = np.zeros(shape[0], np.float32)

    def norm(name: str) -> None:
        tensors[f"{name}.weight"] = np.ones(HIDDEN, np.float32)
        tensors[f"{name}.bias"] = np.zeros(HIDDEN, np.float32)

    for table, rows in (("word", vocabulary), ("position", MAX_TOKENS), ("token_type", 2)):
        matrix(f"{prefix}embeddings.{table}_embeddings", rows, HIDDEN)
    norm(f"{prefix}embeddings.LayerNorm")
    for index in range(LAYERS):
        layer = f"{prefix}encoder.layer.{index}"
        for part in ("query", "key", "value"):
            linear(f"{layer}.attention.self.{part}", HIDDEN, HIDDEN)
        linear(f"{layer}.attention.output.dense", HIDDEN, HIDDEN)
        norm(f"{layer}.attention.output.LayerNorm")
        linear(f"{layer}.intermediate.dense", INTERMEDIATE, HIDDEN)
        linear(f"{layer}.output.dense", HIDDEN, INTERMEDIATE)
        norm(f"{layer}.output.LayerNorm")
    for name, shape in head.items():
        linear(name, *shape)
    return tensors


def _vocabulary() -> list[str]:
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return [*special, *WORDS, *letters, *(f"##{letter}" for letter in letters)]
