"""Media types, and what stands in for the functions that a script leaves out, as in the inference toolkits."""

import codecs
import csv
import io
import json
import re

JSON_LINES = ("application/jsonlines", "application/x-jsonlines", "application/jsonl", "application/x-ndjson")
# The module's own limit would refuse a cell of 128 KiB; the server limits the body.
csv.field_size_limit(2**31 - 1)
READABLE = "application/json, application/jsonlines, text/csv, text/plain, application/x-npy (with numpy)"


class Refused(Exception):
    """What the default functions cannot read or write, with the HTTP status it deserves."""

    def __init__(self, status_code, message):
        super().__init__(message)
        self.status_code = status_code


def media_type(value):
    return value.split(";", 1)[0].strip().lower()


def is_text(kind):
    return kind.startswith("text/") or kind == "application/json" or kind.endswith("+json") or kind in JSON_LINES


def decoded(body, content_type):
    """The body and content type as functions get them: text types as str, without `charset`; others untouched."""
    content_type = content_type.strip() or "application/json"
    if not is_text(media_type(content_type)):
        return bytes(body), content_type
    charset, kept = "utf-8", []
    for part in content_type.split(";"):
        name, _, value = part.strip().partition("=")
        if name.lower() == "charset":
            charset = value.strip().strip('"')
        elif part.strip():
            kept.append(part.strip())
    try:
        codecs.lookup(charset)
        text = str(body, charset)
    except LookupError:
        raise Refused(415, f"charset {charset!r} is not known; send UTF-8") from None
    except UnicodeDecodeError as error:
        raise Refused(400, f"byte {error.start} of the body is not {charset}: {error.reason}") from None
    return text.removeprefix("\ufeff"), "; ".join(kept)


def acceptable(accept):
    """Media types of an Accept header, most wanted first."""
    kinds = []
    for part in accept.split(","):
        kind, _, parameters = part.partition(";")
        quality = re.search(r"\bq\s*=\s*([0-9.]+)", parameters)
        try:
            weight = float(quality.group(1)) if quality else 1.0
        except ValueError:
            weight = 1.0
        if kind.strip() and weight > 0:
            kinds.append((-weight, kind.strip().lower()))
    return [kind for _, kind in sorted(kinds, key=lambda pair: pair[0])] or ["application/json"]


def numpy_or_none():
    try:
        import numpy
    except ImportError:
        return None
    return numpy


def default_input(body, content_type):
    kind = media_type(content_type)
    if kind == "application/json" or kind.endswith("+json"):
        return json.loads(body)
    if kind in JSON_LINES:
        rows = []
        for number, line in enumerate(body.split("\n"), 1):
            if line.strip():
                try:
                    rows.append(json.loads(line))
                except ValueError as error:
                    raise ValueError(f"line {number} of the body: {error}") from None
        return rows
    if kind == "text/csv":
        return read_csv(body)
    if kind == "text/plain":
        return body
    numpy = numpy_or_none() if kind == "application/x-npy" else None
    if numpy is not None:
        return numpy.load(io.BytesIO(body), allow_pickle=False)
    raise Refused(415, f"content type {kind!r} is not read; send {READABLE}, or give the script an input_fn")


def read_csv(text):
    """{"inputs": [...]} where the first row names `inputs` (or `question`, `context`), else rows with numbers by column."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        rows = [row for row in reader if row]
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num} of the CSV body: {error}") from None
    names = [name.strip() for name in rows[0]] if rows else []
    if "inputs" in names:
        return {"inputs": [record(names, row, number)["inputs"] for number, row in enumerate(rows[1:], 2)]}
    if "question" in names and "context" in names:
        return {"inputs": [record(names, row, number) for number, row in enumerate(rows[1:], 2)]}
    width = max(map(len, rows), default=0)
    for column in range(width):
        cells = [row[column] for row in rows if column < len(row)]
        for kind, pattern in ((int, r"\s*[+-]?\d{1,18}\s*"), (float, r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*")):
            if all(re.fullmatch(pattern, cell) for cell in cells):
                for row in rows:
                    if column < len(row):
                        row[column] = kind(row[column])
                break
    return rows


def record(names, row, number):
    if len(row) != len(names):
        raise ValueError(f"row {number} of the CSV body has {len(row)} cells, the header has {len(names)}")
    return dict(zip(names, row))


def default_predict(data, model):
    if isinstance(data, dict) and "inputs" in data:
        return model(data["inputs"], **(data.get("parameters") or {}))
    return model(data)


def plain(value):
    """numpy arrays, numpy numbers and tensors as Python's own."""
    if callable(getattr(value, "tolist", None)):
        return value.tolist()
    raise TypeError(f"an object of type {type(value).__name__} cannot be written as JSON; return lists, dicts, "
                    "numbers, strings or arrays, or encode it in output_fn")


def to_json(value):
    try:
        return json.dumps(value, default=plain, allow_nan=False)
    except ValueError as error:
        if "JSON compliant" in str(error):
            raise ValueError("the prediction has NaN or infinity, which JSON cannot carry") from None
        raise


def default_output(prediction, accept):
    for kind in acceptable(accept):
        if kind in ("application/json", "*/*", "application/*"):
            return to_json(prediction), "application/json"
        if kind in JSON_LINES:
            rows = listed(prediction)
            return "".join(to_json(row) + "\n" for row in (rows if isinstance(rows, list) else [rows])), kind
        if kind == "text/csv":
            return write_csv(listed(prediction)), kind
        if kind in ("text/plain", "text/*"):
            return prediction if isinstance(prediction, str) else to_json(prediction), "text/plain; charset=utf-8"
        numpy = numpy_or_none() if kind == "application/x-npy" else None
        if numpy is not None:
            buffer = io.BytesIO()
            numpy.save(buffer, prediction, allow_pickle=False)
            return buffer.getvalue(), kind
    raise Refused(406, f"cannot answer with {accept!r}; accept {READABLE}, or give the script an output_fn")


def listed(value):
    return value.tolist() if callable(getattr(value, "tolist", None)) else value


def write_csv(value):
    rows = value if isinstance(value, (list, tuple)) else [value]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    if rows and all(isinstance(row, dict) for row in rows):
        names = list(dict.fromkeys(name for row in rows for name in row))
        writer.writerow(names)
        rows = [[row.get(name, "") for name in names] for row in rows]
    for row in map(listed, rows):
        writer.writerow(row if isinstance(row, (list, tuple)) else [row])
    return out.getvalue()
