"""Runs one inference script for the server, one request at a time. Standard library only, Python 3.9 or later.

Standard input is a Unix socket to the server. A frame, in both directions: header length (u32), body length (u64), both
little-endian, a JSON header, the body's bytes. The script's own standard input is empty and its output goes to the log.
"""

import importlib.util
import inspect
import json
import logging
import os
import re
import socket
import struct
import sys
import traceback

from trainyard_formats import Refused, acceptable, decoded, default_input, default_output, default_predict, to_json

ARGUMENTS = {
    "pre_model_fn": ("model_dir",),
    "model_fn": ("model_dir",),
    "model_warmup_fn": ("model_dir", "model"),
    "input_fn": ("body", "content_type"),
    "predict_fn": ("data", "model"),
    "output_fn": ("prediction", "accept"),
    "transform_fn": ("model", "body", "content_type", "accept"),
}
CLIENT_ERRORS = (ValueError, TypeError, LookupError, RecursionError)
# Letters of the levels that the server knows, from the highest.
LEVELS = ((logging.ERROR, "E"), (logging.WARNING, "W"), (logging.INFO, "I"), (logging.NOTSET, "D"))
SERVERS_HEADERS = ("connection", "content-length", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade")
HEADERS_LIMIT, HEADER_LIMIT = 64, 8192
MESSAGE_LIMIT = 4000
TRACEBACK_LIMIT = 60000


class Wire:
    """Frames over the socket."""

    def __init__(self, fd):
        self.socket = socket.socket(fileno=fd)

    def read(self, size):
        buffer = bytearray(size)
        view = memoryview(buffer)
        while view:
            count = self.socket.recv_into(view)
            if count == 0:
                raise EOFError
            view = view[count:]
        return buffer

    def receive(self):
        """The next header, and the body: None where memory does not hold it."""
        header_size, body_size = struct.unpack("<IQ", self.read(12))
        header = json.loads(self.read(header_size))
        try:
            return header, self.read(body_size)
        except MemoryError:  # of the buffer, before a byte was read
            while body_size > 0:
                body_size -= len(self.read(min(body_size, 65536)))
            return header, None

    def send(self, header, body):
        header = json.dumps(header).encode()
        view = memoryview(body).cast("B")
        self.socket.sendall(struct.pack("<IQ", len(header), len(view)) + header)
        self.socket.sendall(view)


class Records(logging.StreamHandler):
    """Writes records of `logging` to standard error, each line marked with the record's level and logger."""

    def format(self, record):
        level = next(letter for least, letter in LEVELS if record.levelno >= least)
        lines = super().format(record).splitlines()
        return "\n".join(f"\x1e{level}{record.name}\x1e{line}" for line in lines)


class Headers(dict):
    """Request headers; names are compared without case."""

    def __init__(self, pairs):
        super().__init__((name.lower(), value) for name, value in pairs)

    def __getitem__(self, name):
        return super().__getitem__(name.lower())

    def __contains__(self, name):
        return super().__contains__(name.lower())

    def get(self, name, default=None):
        return super().get(name.lower(), default)


class Context:
    """What a function with a `context` parameter receives.

    system_properties   {"model_dir": str, "gpu_id": None, "batch_size": 1, "server_name": str, "server_version": str}
    manifest            {}
    request_headers     the request's headers, empty while loading
    get_request_header(name) or (index, name); get_all_request_header(index)
    set_response_content_type(index, type); set_response_header(index, name, value); get_response_headers(index)
    set_response_status(code, phrase, index); set_all_response_status(code, phrase)

    A worker answers one request at a time: every index means that one.
    """

    def __init__(self, script, headers=()):
        self.system_properties = {"model_dir": script.model_dir, "gpu_id": None, "batch_size": 1,
                                  "server_name": "trainyard", "server_version": script.server_version}
        self.manifest = {}
        self.request_headers = Headers(headers)
        self.response_content_type = None
        self.response_status = 200
        self.response_headers = {}

    def get_request_header(self, index, name=None):
        return self.request_headers.get(index if name is None else name)

    def get_all_request_header(self, index=0):
        return dict(self.request_headers)

    def set_response_content_type(self, index, value):
        self.response_content_type = str(value)

    def get_response_content_type(self, index=0):
        return self.response_content_type

    def set_response_status(self, code=200, phrase="", idx=0):
        if not 200 <= int(code) <= 599:
            raise ValueError(f"set_response_status: {code} is not a status between 200 and 599")
        self.response_status = int(code)

    def set_all_response_status(self, code=200, phrase=""):
        self.set_response_status(code, phrase)

    def set_response_header(self, idx, key, value):
        name, value = str(key), str(value)
        if name.lower() == "content-type":
            return self.set_response_content_type(idx, value)
        if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) or not re.fullmatch(r"[\t\x20-\x7e]*", value):
            raise ValueError(f"set_response_header: {name[:100]!r}: {value[:100]!r} is not a header of ASCII in one line")
        if len(name) + len(value) > HEADER_LIMIT:
            raise ValueError(f"set_response_header: {name[:100]} has more than {HEADER_LIMIT} characters")
        if name.lower() in SERVERS_HEADERS:
            raise ValueError(f"set_response_header: {name} is set by the server")
        if name.lower() not in self.response_headers and len(self.response_headers) == HEADERS_LIMIT:
            raise ValueError(f"set_response_header: a response has at most {HEADERS_LIMIT} headers of a script")
        self.response_headers[name.lower()] = (name, value)

    def get_response_headers(self, idx=0):
        content_type = {} if self.response_content_type is None else {"Content-Type": self.response_content_type}
        return {**content_type, **dict(self.response_headers.values())}


# The script.


def examine(name, function):
    """How `function` takes `context`: "no", "last" or "keyword"; or the reason why it cannot be called."""
    arguments = ARGUMENTS[name]
    wanted = f"call it as {name}({', '.join(arguments)}) or {name}({', '.join(arguments)}, context)"
    if inspect.iscoroutinefunction(function):
        return None, f"{name} is `async def`; a worker answers one request at a time: write a plain `def`"
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return "no", None
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    keywords = [p for p in parameters if p.kind == p.KEYWORD_ONLY]
    required = sum(p.default is p.empty for p in positional)
    count = len(arguments)
    star = any(p.kind == p.VAR_POSITIONAL for p in parameters)
    if required > count + 1 or (len(positional) < count and not star):
        return None, f"{name} takes {required or len(positional)} arguments; the server would {wanted}"
    for parameter in keywords:
        if parameter.default is parameter.empty and parameter.name != "context":
            return None, f"{name} needs the keyword argument `{parameter.name}`; the server would {wanted}"
    if any(p.name == "context" for p in keywords):
        return "keyword", None
    last = positional[count] if len(positional) > count else None
    return ("last" if last is not None and (required > count or last.name == "context") else "no"), None


class Script:
    """The imported script, its functions and the model they share."""

    def __init__(self):
        self.stage, self.directory, self.model_dir, self.model = "import", None, None, None
        self.functions, self.response_limit, self.server_version = {}, None, None

    def import_(self, header):
        path, self.model_dir, self.response_limit = header["script"], header["model_dir"], header["response_limit"]
        self.server_version = header["version"]
        self.directory = os.path.dirname(path)
        sys.path[0] = self.directory
        name = os.path.splitext(os.path.basename(path))[0]
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        found = []
        for name in ARGUMENTS:
            function = getattr(module, name, None)
            if callable(function):
                context, problem = examine(name, function)
                self.functions[name] = (function, context)
                found.append({"name": name, "context": context not in (None, "no"), "problem": problem})
        others = [name for name, value in vars(module).items() if name not in ARGUMENTS and inspect.isfunction(value)
                  and value.__module__ == module.__name__ and not name.startswith("_")]
        return {"functions": found, "others": others[:200]}, b""

    def call(self, name, context, *arguments):
        self.stage = name
        function, takes = self.functions[name]
        if takes == "keyword":
            return function(*arguments, context=context)
        return function(*arguments, context) if takes == "last" else function(*arguments)

    def load(self, header):
        context = Context(self)
        if "pre_model_fn" in self.functions:
            self.call("pre_model_fn", context, self.model_dir)
        if "model_fn" in self.functions:
            self.model = self.call("model_fn", context, self.model_dir)
        if "model_warmup_fn" in self.functions:
            self.call("model_warmup_fn", context, self.model_dir, self.model)
        return {"callable": callable(self.model), "model": type(self.model).__name__}, b""

    def read(self, header, body, context):
        self.stage = "input_fn"
        body, content_type = decoded(body, header["content_type"])
        if "input_fn" in self.functions:
            return self.call("input_fn", context, body, content_type)
        return default_input(body, content_type)

    def write(self, prediction, header, context):
        self.stage = "output_fn"
        if "output_fn" in self.functions:
            return self.call("output_fn", context, prediction, self.accept(header)), self.accept(header)
        body, content_type = default_output(prediction, header["accept"])
        return (body, context.response_content_type or content_type), None

    def accept(self, header):
        accept = header["accept"].strip()
        return "application/json" if accept in ("", "*/*") else accept

    def invoke(self, header, body):
        context = Context(self, header["headers"])
        if "transform_fn" in self.functions:
            self.stage, accept = "transform_fn", self.accept(header)
            body, content_type = decoded(body, header["content_type"])
            result = self.call("transform_fn", context, self.model, body, content_type, accept)
            return self.response(result, accept, context)
        data = self.read(header, body, context)
        del body
        if "predict_fn" in self.functions:
            prediction = self.call("predict_fn", context, data, self.model)
        else:
            self.stage = "predict_fn"
            prediction = default_predict(data, self.model)
        return self.response(*self.write(prediction, header, context), context)

    def input(self, header, body):
        data = self.read(header, body, Context(self, header["headers"]))
        return {}, to_json(data).encode()

    def output(self, header, body):
        context = Context(self, header["headers"])
        return self.response(*self.write(json.loads(body), header, context), context)

    def response(self, result, accept, context):
        """The reply's header and bytes of what output_fn or transform_fn returned."""
        content_type = context.response_content_type
        if isinstance(result, tuple):
            if len(result) != 2 or not isinstance(result[1], str):
                raise TypeError(f"{self.stage} returned a tuple; it must be (body, content_type)")
            result, content_type = result
        if isinstance(result, (dict, list, int, float)):
            result, content_type = to_json(result), content_type or "application/json"
        if isinstance(result, str):
            result = result.encode()
        if not isinstance(result, (bytes, bytearray, memoryview)):
            raise TypeError(f"{self.stage} returned {type(result).__name__}; return str, bytes or (body, content_type)")
        if content_type is None:
            kind = acceptable(accept)[0]
            content_type = "application/json" if "*" in kind else kind
        size = memoryview(result).nbytes
        if self.response_limit is not None and size > self.response_limit:
            return {"ok": False, "too_large": size}, b""
        headers = list(context.response_headers.values())
        return {"content_type": content_type, "status": context.response_status, "headers": headers}, result


def failure(error, script):
    """The reply's header for an exception: what, where, and the traceback without the frames of this file."""
    trace = error.__traceback__
    if isinstance(error, MemoryError):
        traceback.clear_frames(trace)
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    try:
        message = str(error)
    except Exception:  # a broken __str__ must not hide the exception
        message = ""
    location = None
    if isinstance(error, SyntaxError) and error.filename:
        message, location = error.msg, f"{os.path.basename(error.filename)} line {error.lineno}"
    else:
        for frame in traceback.extract_tb(trace):
            if script.directory and frame.filename.startswith(script.directory + os.sep):
                location = f"{os.path.relpath(frame.filename, script.directory)} line {frame.lineno}"
    status = next((value for value in (getattr(error, name, None) for name in ("status_code", "error_code"))
                   if isinstance(value, int) and 400 <= value <= 599), None)
    if status is None:
        status = 400 if script.stage == "input_fn" and isinstance(error, CLIENT_ERRORS) else 500
    text = "".join(traceback.format_exception(type(error), error, trace))
    return {"ok": False, "stage": script.stage, "exception": type(error).__name__, "message": message[:MESSAGE_LIMIT],
            "location": location, "status": status, "memory": isinstance(error, MemoryError),
            "refused": isinstance(error, Refused), "traceback": text[-TRACEBACK_LIMIT:]}


def answer(script, header, body):
    operation = {"load": script.load, "import": script.import_}.get(header["op"])
    try:
        if body is None:
            script.stage = "input_fn"
            raise MemoryError("the request's body")
        reply, payload = operation(header) if operation else getattr(script, header["op"])(header, body)
        reply.setdefault("ok", True)
        return reply, payload
    except BaseException as error:  # SystemExit too: a script must not end its worker by mistake
        return failure(error, script), b""


def main():
    wire = Wire(os.dup(0))
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    logging.basicConfig(level=logging.INFO, handlers=[Records(sys.stderr)], format="%(message)s")
    script = Script()
    while True:
        try:
            header, body = wire.receive()
            reply, payload = answer(script, header, body)
            body = None
            wire.send(reply, payload)
            payload = None
        except (EOFError, ConnectionError):
            return


if __name__ == "__main__":
    main()
