"""What no schema says: that a tensor's shape counts its data, and the name of the model."""

from __future__ import annotations

from typing import Any

import schemathesis

MODEL = "m"


@schemathesis.hook("map_body").apply_to(path_regex="/infer$")
def fit_the_tensors(context: schemathesis.HookContext, body: Any) -> Any:
    """Makes the first tensor the texts that it holds, where all are as the schema says; what is wrong stays wrong."""
    tensors = body.get("inputs") if isinstance(body, dict) else None
    if not isinstance(tensors, list) or not all(_is_text_tensor(tensor) for tensor in tensors):
        return body
    texts = tensors[0].get("data") or [""]
    first = tensors[0] | {"name": "text", "data": texts, "shape": [len(texts)], "parameters": {}}
    rest = {key: value for key, value in body.items() if key not in ("outputs", "parameters") or not value}
    return rest | {"inputs": [first]}


@schemathesis.hook("map_body").apply_to(path="/v1/embeddings")
def name_the_model(context: schemathesis.HookContext, body: Any) -> Any:
    """Asks for the model that is served."""
    if isinstance(body, dict) and isinstance(body.get("model"), str):
        body["model"] = MODEL
    return body


def _is_text_tensor(tensor: Any) -> bool:
    if not isinstance(tensor, dict) or tensor.get("datatype") != "BYTES":
        return False
    if tensor.get("name") not in ("text", "text_pair") or not isinstance(tensor.get("parameters", {}), dict):
        return False
    shape, data = tensor.get("shape"), tensor.get("data")
    counts = isinstance(shape, list) and len(shape) in (1, 2) and all(type(n) is int and n >= 0 for n in shape)
    texts = data is None or (isinstance(data, list) and all(isinstance(text, str) for text in data))
    return counts and texts
