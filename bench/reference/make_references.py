"""Write the float64 references that the engine's parity tests read.

Each case is a tiny transformers model with random weights, and what PyTorch computes for it in float64:

    config.json, model.safetensors   the model, as transformers writes it (float32)
    gradients.safetensors            d loss / d parameter for the first batch, every parameter the loss reaches
    expected.json                    batches, logits or embeddings, loss, gradient norm, 20 AdamW steps

Every sequence is computed alone: no padding, no attention mask, token types 0. Dropout is 0.
The loss of a batch is always one sum divided by one count, so that it does not depend on how the batch is cut.
README.md beside this file describes the fields and the cases.

    python bench/reference/make_references.py [--out DIRECTORY]
"""

from __future__ import annotations

import argparse
import json
import shutil
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import save_file
from torch import Tensor, nn

DEFAULT_OUT = Path(__file__).resolve().parents[2] / "crates" / "model" / "tests" / "references"

LAYERS, HIDDEN, HEADS, FEED_FORWARD, VOCABULARY, POSITIONS = 2, 18, 3, 28, 53, 22
LENGTHS = ((1, POSITIONS, 9, 4, 17, 2), (1, 12, POSITIONS, 5, 3, 8), (1, 7, 2, 20, 11, POSITIONS))
MICRO_BATCHES = (1, 3, 2)
IGNORED = -100
STEPS = 20
ADAMW = {"lr": 2e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.1}
CLIP_NORM = 1.0


@dataclass(frozen=True)
class Case:
    """One reference: an architecture, a head, and the loss that is asked of it."""

    name: str
    family: str  # bert | roberta | distilbert
    task: str
    labels: int = 3
    activation: str = "gelu"
    class_weights: list[float] | None = None
    label_smoothing: float = 0.0
    pooling: str | None = None  # mean | cls, for embeddings
    note: str = ""


SINGLE, MULTI, REGRESSION = "single_label_classification", "multi_label_classification", "regression"
TOKENS, EMBEDDING = "token_classification", "embedding"

CASES = (
    Case("bert-multi-label", "bert", MULTI, labels=4),
    Case("bert-regression", "bert", REGRESSION, labels=1),
    Case("bert-token-cls", "bert", TOKENS, labels=5),
    Case("roberta-token-cls", "roberta", TOKENS, labels=5),
    Case("distilbert-token-cls", "distilbert", TOKENS, labels=5),
    Case("bert-gelu-new", "bert", SINGLE, activation="gelu_new"),
    Case("distilbert-gelu-tanh", "distilbert", SINGLE, activation="gelu_pytorch_tanh"),
    Case("bert-class-weights", "bert", SINGLE, class_weights=[0.5, 1.0, 2.5]),
    Case("roberta-label-smoothing", "roberta", SINGLE, label_smoothing=0.1),
    Case("bert-embedding-mean", "bert", EMBEDDING, pooling="mean"),
    Case("roberta-embedding-mean", "roberta", EMBEDDING, pooling="mean"),
    Case("distilbert-embedding-cls", "distilbert", EMBEDDING, pooling="cls"),
)


@dataclass
class Batch:
    """A ragged batch: token ids per sequence and one target per sequence (or per token)."""

    input_ids: list[list[int]]
    targets: list[Any] = field(default_factory=list)

    def part(self, start: int, count: int) -> Batch:
        """The sequences `start .. start + count`."""
        return Batch(self.input_ids[start : start + count], self.targets[start : start + count])


def build_model(case: Case) -> nn.Module:
    """The case's model in evaluation mode, float32, with transformers' own (still untouched) weights."""
    common = {"vocab_size": VOCABULARY, "num_labels": case.labels}
    if case.task in (SINGLE, MULTI, REGRESSION):
        common["problem_type"] = case.task
    if case.family == "distilbert":
        config: transformers.PretrainedConfig = transformers.DistilBertConfig(
            dim=HIDDEN, n_layers=LAYERS, n_heads=HEADS, hidden_dim=FEED_FORWARD, activation=case.activation,
            max_position_embeddings=POSITIONS, dropout=0.0, attention_dropout=0.0, seq_classif_dropout=0.0, **common,
        )  # fmt: skip
        prefix = "DistilBert"
    else:
        roberta = case.family == "roberta"
        special = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2} if roberta else {"pad_token_id": 0}
        config = (transformers.RobertaConfig if roberta else transformers.BertConfig)(
            hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=HEADS, intermediate_size=FEED_FORWARD,
            hidden_act=case.activation, max_position_embeddings=POSITIONS + (2 if roberta else 0),
            type_vocab_size=1 if roberta else 2, layer_norm_eps=1e-5 if roberta else 1e-12,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **special, **common,
        )  # fmt: skip
        prefix = "Roberta" if roberta else "Bert"
    suffix = {TOKENS: "ForTokenClassification", EMBEDDING: "Model"}.get(case.task, "ForSequenceClassification")
    config._attn_implementation = "eager"
    return getattr(transformers, prefix + suffix)(config).eval()


def randomise(model: nn.Module, random: np.random.Generator) -> None:
    """Weights large enough that every nonlinearity is away from its linear part; norms near one, biases near zero."""
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            values = random.standard_normal(tuple(parameter.shape))
            if parameter.ndim == 1:
                norm_scale = "norm" in name.lower() and name.endswith("weight")
                values = 0.2 * values + (1.0 if norm_scale else 0.0)
            elif "embeddings" in name:
                values = 0.8 * values
            else:
                values = values * 1.6 / np.sqrt(parameter.shape[1])
            parameter.copy_(torch.from_numpy(values.astype(np.float32)))


def make_target(case: Case, length: int, random: np.random.Generator) -> Any:
    """The target of one sequence. A token sequence of length 1 has no labelled token at all."""
    if case.task == SINGLE:
        return int(random.integers(case.labels))
    if case.task == MULTI:
        return [float(x) for x in random.integers(0, 2, case.labels)]
    if case.task == REGRESSION:
        return round(float(random.normal()), 4)
    if case.task == TOKENS:
        kept = random.random(length) < (0.7 if length > 1 else 0.0)
        return [int(x) if keep else IGNORED for x, keep in zip(random.integers(case.labels, size=length), kept)]
    return [round(float(x), 4) for x in random.normal(size=HIDDEN)]


def make_batches(case: Case, random: np.random.Generator) -> list[Batch]:
    """Three ragged batches of six sequences; ids 0 to 2 (special, padding) are never drawn."""
    batches = []
    for lengths in LENGTHS:
        ids = [[int(x) for x in random.integers(3, VOCABULARY, length)] for length in lengths]
        batches.append(Batch(ids, [make_target(case, length, random) for length in lengths]))
    return batches


def forward(case: Case, model: nn.Module, ids: list[int]) -> Tensor:
    """Output of one sequence: logits [labels], token logits [tokens, labels] or a unit embedding [hidden]."""
    output = model(input_ids=torch.tensor([ids]))
    if case.task == EMBEDDING:
        states = output.last_hidden_state[0]
        pooled = states.mean(dim=0) if case.pooling == "mean" else states[0]
        return F.normalize(pooled, dim=0)
    return output.logits[0]


def loss_terms(case: Case, output: Tensor, target: Any) -> tuple[Tensor, float]:
    """One sequence's share of the batch loss: (sum, count). The batch loss is total sum / total count."""
    if case.task == SINGLE:
        label = torch.tensor(target)
        loss = F.cross_entropy(output, label, label_smoothing=case.label_smoothing)
        weight = 1.0 if case.class_weights is None else case.class_weights[target]
        return loss * weight, weight
    if case.task == MULTI:
        truth = torch.tensor(target, dtype=output.dtype)
        return F.binary_cross_entropy_with_logits(output, truth, reduction="sum"), float(case.labels)
    if case.task == REGRESSION:
        return (output[0] - target) ** 2, 1.0
    if case.task == TOKENS:
        labels = torch.tensor(target)
        counted = float((labels != IGNORED).sum())
        return F.cross_entropy(output, labels, ignore_index=IGNORED, reduction="sum"), counted
    return output @ torch.tensor(target, dtype=output.dtype), 1.0


def batch_sum_and_count(case: Case, model: nn.Module, batch: Batch) -> tuple[Tensor, float]:
    """Sum and count over the sequences of a batch."""
    terms = [loss_terms(case, forward(case, model, ids), t) for ids, t in zip(batch.input_ids, batch.targets)]
    return torch.stack([term for term, _ in terms]).sum(), sum(count for _, count in terms)


def gradients_of(case: Case, model: nn.Module, batch: Batch) -> tuple[Tensor, float]:
    """Backward of the batch loss into `.grad`; returns (loss, global gradient norm)."""
    model.zero_grad(set_to_none=True)
    total, count = batch_sum_and_count(case, model, batch)
    loss = total / count
    loss.backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    return loss.detach(), float(torch.sqrt(sum((g**2).sum() for g in grads)))


def check_accumulation(case: Case, model: nn.Module, batch: Batch) -> float:
    """The micro-batches' summed gradients, divided by the whole count, are the big batch's.

    Returns how far the mean of the micro-batches' means lies from the batch loss.
    """
    loss, _ = gradients_of(case, model, batch)
    whole = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    _, count = batch_sum_and_count(case, model, batch)
    means, start = [], 0
    for size in MICRO_BATCHES:
        part_sum, part_count = batch_sum_and_count(case, model, batch.part(start, size))
        (part_sum / count).backward()
        if part_count > 0:
            means.append(float(part_sum.detach()) / part_count)
        start += size
    for name, parameter in model.named_parameters():
        if name in whole:
            torch.testing.assert_close(parameter.grad, whole[name], rtol=1e-9, atol=1e-12)
    return abs(float(np.mean(means)) - float(loss))


def check_transformers_loss(case: Case, model: nn.Module, batch: Batch) -> None:
    """Where transformers has the same loss, each sequence's equals ours."""
    if case.task == EMBEDDING or case.class_weights or case.label_smoothing:
        return
    for ids, target in zip(batch.input_ids, batch.targets):
        total, count = loss_terms(case, forward(case, model, ids), target)
        if count == 0:
            continue
        dtype = torch.float64 if case.task in (MULTI, REGRESSION) else torch.int64
        theirs = model(input_ids=torch.tensor([ids]), labels=torch.tensor([target], dtype=dtype)).loss
        torch.testing.assert_close(total / count, theirs, rtol=1e-10, atol=1e-12)


def adamw_trajectory(case: Case, model: nn.Module, batches: list[Batch]) -> list[list[float]]:
    """Loss and gradient norm (before clipping) of 20 steps over the batches in turn; changes the model."""
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in parameters if p.ndim > 1], "weight_decay": ADAMW["weight_decay"]},
            {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0},
        ],
        lr=ADAMW["lr"], betas=tuple(ADAMW["betas"]), eps=ADAMW["eps"],
    )  # fmt: skip
    trajectory = []
    for step in range(STEPS):
        loss, norm = gradients_of(case, model, batches[step % len(batches)])
        nn.utils.clip_grad_norm_(parameters, CLIP_NORM)
        optimizer.step()
        trajectory.append([float(loss), norm])
    return trajectory


def rounded(value: Any) -> Any:
    """Numbers at ten significant digits: far finer than any bound, and the same on every machine."""
    if isinstance(value, Tensor):
        return rounded(value.tolist())
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.10g}") if isinstance(value, float) else value


def describe(case: Case, batches: list[Batch]) -> dict[str, Any]:
    """The fields of expected.json that are given, not computed."""
    kind = {TOKENS: "token-cls", EMBEDDING: "embedding"}.get(case.task, "cls")
    target_key = "directions" if case.task == EMBEDDING else "labels"
    described: dict[str, Any] = {"kind": kind, "task": case.task, "micro_batches": list(MICRO_BATCHES)}
    if case.class_weights is not None:
        described["class_weights"] = case.class_weights
    if case.label_smoothing:
        described["label_smoothing"] = case.label_smoothing
    if case.pooling is not None:
        described |= {"pooling": case.pooling, "normalize": True}
    described["batches"] = [{"input_ids": b.input_ids, target_key: b.targets} for b in batches]
    return described


def write_case(case: Case, out: Path) -> None:
    """Compute one case and write its folder."""
    random = np.random.default_rng(zlib.crc32(case.name.encode()))
    batches = make_batches(case, random)
    first = batches[0]
    model = build_model(case)
    randomise(model, random)
    folder = out / case.name
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)

    model = model.double()
    check_transformers_loss(case, model, first)
    if max(check_accumulation(case, model, batch) for batch in batches) < 1e-2:
        raise AssertionError(f"{case.name}: its micro-batches do not tell a mean of means from the batch loss")
    expected = describe(case, batches)
    with torch.no_grad():
        outputs = [forward(case, model, ids) for ids in first.input_ids]
    expected["embeddings" if case.task == EMBEDDING else "logits"] = rounded([o.tolist() for o in outputs])
    if case.activation != "gelu":
        expected["logits_with_exact_gelu"] = exact_gelu_logits(case, model, first)
    loss, norm = gradients_of(case, model, first)
    expected |= {"loss": rounded(float(loss)), "grad_norm": rounded(norm)}
    gradients = {n: p.grad.float().contiguous() for n, p in model.named_parameters() if p.grad is not None}
    save_file(gradients, folder / "gradients.safetensors", metadata={"format": "pt"})
    if case.task != EMBEDDING:
        trajectory = adamw_trajectory(case, model, batches)
        expected["adamw"] = {
            **ADAMW, "no_decay": "bias and norm", "clip_norm": CLIP_NORM, "loss_and_grad_norm": rounded(trajectory),
        }  # fmt: skip
    (folder / "expected.json").write_text(to_json(expected) + "\n")


def exact_gelu_logits(case: Case, model: nn.Module, batch: Batch) -> list[list[float]]:
    """Logits of the same weights under the exact (erf) GELU: the tanh form must not be mistaken for it."""
    exact = build_model(Case(case.name, case.family, case.task, case.labels)).double()
    exact.load_state_dict(model.state_dict())
    with torch.no_grad():
        return rounded([forward(case, exact, ids).tolist() for ids in batch.input_ids])


def to_json(value: Any, depth: int = 0) -> str:
    """Objects and lists of lists on lines of their own, innermost lists on one line: small and still diffable."""
    pad = " " * depth
    if isinstance(value, dict):
        body = ",\n".join(f"{pad} {json.dumps(k)}: {to_json(v, depth + 1)}" for k, v in value.items())
        return f"{{\n{body}\n{pad}}}"
    if isinstance(value, list) and value and isinstance(value[0], (list, dict)):
        return "[\n" + ",\n".join(f"{pad} {to_json(v, depth + 1)}" for v in value) + f"\n{pad}]"
    return json.dumps(value)


def main() -> None:
    """Write every case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="folder that receives one folder per case")
    out: Path = parser.parse_args().out
    torch.set_num_threads(1)
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    for case in CASES:
        write_case(case, out)
        print(f"{case.name}: {sum(f.stat().st_size for f in (out / case.name).iterdir()):,} bytes")


if __name__ == "__main__":
    main()
