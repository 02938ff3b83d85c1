"""The peer's side of the line protocol in bench/README.md: warm up, say ready, then one timed run per `run` line."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any


def serve(name: str, version: str, prepare: Callable[[], Callable[[], dict[str, Any]]]) -> None:
    """Answer the driver until it says `quit` or closes standard input.

    `prepare` sets up and warms up, and returns the run: it does the timed work and returns {"units": n, ...};
    "seconds" is added here. Whatever libraries print goes to standard error, so that standard output is the protocol's.
    """
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    run = prepare()
    print(json.dumps({"ready": True, "name": name, "version": version}), file=answers)
    for line in sys.stdin:
        if line.strip() == "quit":
            break
        if line.strip() != "run":
            print(json.dumps({"error": f"unknown command {line.strip()!r}"}), file=answers)
            continue
        start = time.perf_counter()
        result = run()
        print(json.dumps({"seconds": time.perf_counter() - start, **result}), file=answers)
