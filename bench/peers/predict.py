"""Peer: the script a transformers user writes to classify one text. `predict.py MODEL_DIRECTORY TEXT`"""

from __future__ import annotations

import json
import sys

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer


def main() -> None:
    """Print the labels of one text with their scores."""
    directory, text = sys.argv[1:]
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForSequenceClassification.from_pretrained(directory).eval()
    with torch.inference_mode():
        logits = model(**tokenizer(text, truncation=True, max_length=512, return_tensors="pt")).logits
    scores = logits.softmax(-1)[0].tolist()
    labels = [{"label": model.config.id2label[index], "score": score} for index, score in enumerate(scores)]
    print(json.dumps({"results": [{"text": text, "labels": labels}]}), flush=True)


if __name__ == "__main__":
    main()
