"""Run the benches: ours and the peers interleaved in one schedule, a table, and bench/results/<bench>.json.

    bench/.venv/bin/python bench/run.py [--suite train|serve|profile] [--only NAME]... [--alternations 7] [--threads N] [--quick]
                                        [--peers-only]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import benches
import machine
import profiling
import serving
import serving_http
from benches import Settings
from contest import BenchError

SUITES = {"train": benches.BENCHES, "serve": serving.BENCHES | serving_http.BENCHES, "profile": profiling.BENCHES}
BENCHES = SUITES["train"] | SUITES["serve"] | SUITES["profile"]
# What a bench imports, and the target that installs it: HTA brings half of Jupyter, so it has an environment of its own.
PYTORCH = (("torch", "transformers", "tokenizers", "onnxruntime"), "bench-setup")
NEEDS = {name: (("hta",), "bench-profile-setup") if name in profiling.BENCHES else PYTORCH for name in BENCHES}

RESULTS = Path(__file__).resolve().parent / "results"
FOREIGN_LIMIT = 0.1  # cores used by other processes above which a result is not to be trusted


def main() -> int:
    """Run the chosen benches; 1 if one of them could not run. A missed goal is reported and is not a failure."""
    settings, chosen = arguments()
    for modules, target in {NEEDS[name] for name in chosen}:
        missing = [name for name in modules if importlib.util.find_spec(name) is None]
        if missing:
            print(f"bench: {', '.join(missing)} not installed in this Python; `make {target}`", file=sys.stderr)
            return 1
    failed = []
    for name in chosen:
        print(f"{name} ({settings.threads} threads, {settings.alternations} alternations)", file=sys.stderr)
        before, started, foreign = machine.describe(settings.threads), time.monotonic(), machine.foreign_cpu_seconds()
        try:
            rows = BENCHES[name](settings)
        except BenchError as error:
            print(f"bench {name} did not run: {error}", file=sys.stderr)
            failed.append(name)
            continue
        others = (machine.foreign_cpu_seconds() - foreign) / (time.monotonic() - started)
        if others > FOREIGN_LIMIT:
            print(f"  note: other processes kept {others:.1f} cores busy; repeat on a quiet machine", file=sys.stderr)
        after = {"load_average_after": [round(load, 2) for load in os.getloadavg()], "cores_used_by_others": round(others, 2)}
        where = before | after
        results = [row.to_json(where) for row in rows]
        if results:
            print_table(results)
        if results and not settings.quick:
            RESULTS.mkdir(exist_ok=True)
            (RESULTS / f"{name}.json").write_text(json.dumps(results, indent=1) + "\n")
    if failed:
        print(f"did not run: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def arguments() -> tuple[Settings, list[str]]:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", choices=list(SUITES), default="train", help="the benches to run (default train)")
    parser.add_argument("--only", action="append", choices=list(BENCHES), help="run this bench (may be repeated)")
    parser.add_argument("--alternations", type=int, default=7, help="timed runs of each side (default 7)")
    parser.add_argument("--threads", type=int, default=machine.physical_cores(), help="default: physical cores")
    parser.add_argument("--quick", action="store_true", help="few short runs to see that all works; saves nothing")
    parser.add_argument("--peers-only", action="store_true", help="measure the peers alone; saves nothing")
    args = parser.parse_args()
    if args.threads < 1 or args.alternations < 1:
        parser.error("--threads and --alternations must be at least 1")
    alternations = min(args.alternations, 3) if args.quick else args.alternations
    settings = Settings(args.threads, alternations, args.quick, args.peers_only)
    return settings, args.only or list(SUITES[args.suite])


def print_table(results: list[dict[str, Any]]) -> None:
    """One line per comparison: medians, ratio and goal."""
    header = ("bench", "peer", "unit", "ours", "theirs", "ratio", "goal", "")
    lines = [header]
    for row in results:
        sign = "≥" if row["better"] == "higher" else "≤"
        met = row["ratio"] >= row["goal"] if row["better"] == "higher" else row["ratio"] <= row["goal"]
        figures = (f"{row['ours']:,.4g}", f"{row['theirs']:,.4g}", f"{row['ratio']:.2f}", f"{sign} {row['goal']}")
        lines.append((row["name"], row["peer"], row["unit"], *figures, "met" if met else "short"))
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())
    print(flush=True)


if __name__ == "__main__":
    sys.exit(main())
