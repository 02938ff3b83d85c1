"""HTTP peer: LitServe over a transformers classifier, batching. `litserve_server.py MODEL --port N --threads N`"""

from __future__ import annotations

import argparse
from typing import Any

import litserve
import torch
import transformers

MAX_BATCH, BATCH_TIMEOUT_S = 32, 0.005


class Classifier(litserve.LitAPI):
    """`{"inputs": text}` in, labels with scores out."""

    def __init__(self, directory: str, threads: int) -> None:
        super().__init__(max_batch_size=MAX_BATCH, batch_timeout=BATCH_TIMEOUT_S, api_path="/predict")
        self.directory, self.threads = directory, threads

    def setup(self, device: Any) -> None:
        torch.set_num_threads(self.threads)
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(self.directory)
        self.model = transformers.AutoModelForSequenceClassification.from_pretrained(self.directory).eval()

    def decode_request(self, request):  # LitServe's own types come from the absence of annotations
        return request["inputs"]

    def batch(self, inputs: list[str]) -> list[str]:
        return inputs

    def unbatch(self, output: list[Any]) -> list[Any]:
        return output

    def predict(self, x: list[str]) -> list[list[float]]:
        tokens = self.tokenizer(x, padding=True, truncation=True, max_length=512, return_tensors="pt")
        with torch.inference_mode():
            return self.model(**tokens).logits.softmax(-1).tolist()

    def encode_response(self, output):
        names = self.model.config.id2label
        return [{"label": names[index], "score": score} for index, score in enumerate(output)]


def main() -> None:
    """Serve on 127.0.0.1 until told to stop."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    args = parser.parse_args()
    server = litserve.LitServer(Classifier(args.model, args.threads), accelerator="cpu", timeout=60)
    server.run(host="127.0.0.1", port=args.port, num_api_servers=1, generate_client_file=False, log_level="warning")


if __name__ == "__main__":
    main()
