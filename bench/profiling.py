"""The benches of profiles: import, the numbers of the dashboard, viewport queries, and what a profile takes on disk."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import inputs
from benches import MIB, PEERS, Row, Settings, built
from contest import BenchError, environment

HTA, COLUMNS = "HTA 0.5.0", "serde_json pass"
COPIES = 20  # of v100-multistep along time: 1.08 GB, 4.3 M events
IMPORT_S, IMPORT_MIB, REPORT_S, VIEWPORT_MS = 12.0, 300.0, 0.5, 20.0
HTA_LOAD = 0.1  # a gigabyte: 12 s against 482 s, but HTA starts slower than it goes on
SMALLER_THAN_JSON, SMALLER_THAN_GZIP = 60.0, 5.0
PIXELS = 1600
ZOOMS = (1, 5, 12, 30, 100, 1000, 10_000)


@dataclass(frozen=True)
class Ran:
    """A process that ended well."""

    seconds: float
    anonymous_bytes: int  # most resident anonymous memory seen
    output: str


def run(command: list[str], threads: int) -> Ran:
    """Run a command to its end and watch its memory."""
    log = inputs.CACHE / "logs" / "profile.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    most = 0
    # A file, not a pipe: nobody reads while the process runs.
    with log.open("w") as errors, tempfile.TemporaryFile("w+") as answer:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=answer, stderr=errors, env=environment(threads))
        status = Path(f"/proc/{process.pid}/status")
        while process.poll() is None:
            most = max(most, anonymous(status))
            time.sleep(0.0005 if time.perf_counter() - start < 0.1 else 0.02)
            if time.perf_counter() - start > 1800:
                process.kill()
        seconds = time.perf_counter() - start
        answer.seek(0)
        output = answer.read()
    if process.returncode:
        raise BenchError(f"`{' '.join(command)}` ended with {process.returncode}: {log.read_text()[-2000:]}")
    return Ran(seconds, most, output)


def anonymous(status: Path) -> int:
    """Resident anonymous memory of a process now; 0 once it has ended."""
    try:
        lines = status.read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon")), 0)


def trainyard(*arguments: str | Path) -> list[str]:
    """Our command line."""
    return [built("trainyard", "trainyard"), "profile", *map(str, arguments)]


def ours_import(source: Path, profile: Path, settings: Settings) -> Ran:
    """Import into a new profile."""
    shutil.rmtree(profile, ignore_errors=True)
    return run(trainyard("import", source, "-o", profile, "--json"), settings.threads)


def importing(settings: Settings) -> list[Row]:
    """A gigabyte against the least that any importer must do; a smaller trace against HTA."""
    if settings.peers_only:
        raise BenchError("the peers of this bench run interleaved with ours; run it without --peers-only")
    long, profile = inputs.long_trace(2 if settings.quick else COPIES), inputs.CACHE / "long.profile"
    columns = [built("trainyard-bench", "trainyard-bench"), "columns", str(long)]
    mine, passes = [], []
    for _ in range(settings.alternations):
        mine.append(ours_import(long, profile, settings))
        passes.append(run(columns, settings.threads))
    rows = [
        Row("import 1.08 GB", "limit", "s", [ran.seconds for ran in mine], [IMPORT_S], "lower", 1.0),
        Row("import 1.08 GB", COLUMNS, "s", [r.seconds for r in mine], [r.seconds for r in passes], "lower", 1.0),
        Row("import 1.08 GB, anonymous", "limit", "MiB", [r.anonymous_bytes / MIB for r in mine], [IMPORT_MIB], "lower", 1.0),
    ]
    short = inputs.trace("v100-multistep")
    mine, theirs = [], []
    for _ in range(min(settings.alternations, 3)):
        mine.append(ours_import(short, inputs.CACHE / "short.profile", settings))
        theirs.append(run([sys.executable, str(PEERS / "hta_load.py"), str(short.parent)], settings.threads))
    loads = [json.loads(ran.output.splitlines()[-1])["seconds"] for ran in theirs]
    rows.append(Row("import v100-multistep", HTA, "s", [ran.seconds for ran in mine], loads, "lower", HTA_LOAD))
    memory = [ran.anonymous_bytes / MIB for ran in theirs]
    name = "import v100-multistep, anonymous"
    rows.append(Row(name, HTA, "MiB", [ran.anonymous_bytes / MIB for ran in mine], memory, "lower", 1.0))
    return rows


def reporting(settings: Settings) -> list[Row]:
    """Every number of the dashboard from the stored profile of a gigabyte, the whole report (with the critical path and
    findings), and a report against HTA's analyses."""
    profile = long_profile(settings)
    dashboard = [built("trainyard-bench", "trainyard-bench"), "dashboard", str(profile)]
    numbers, reports = [], []
    for _ in range(settings.alternations):
        numbers.append(json.loads(run(dashboard, settings.threads).output)["seconds"])
        reports.append(run(trainyard("report", profile, "--json"), settings.threads).seconds)
    rows = [
        Row("dashboard 1.08 GB", "limit", "s", numbers, [REPORT_S], "lower", 1.0),
        Row("report 1.08 GB, critical path and all", "limit", "s", reports, [REPORT_S], "lower", 1.0),
    ]
    short, stored = inputs.trace("v100-multistep"), inputs.CACHE / "short.profile"
    ours_import(short, stored, settings)
    mine, theirs = [], []
    for _ in range(min(settings.alternations, 3)):
        mine.append(run(trainyard("report", stored, "--json"), settings.threads).seconds)
        ran = run([sys.executable, str(PEERS / "hta_load.py"), str(short.parent), "--analyse"], settings.threads)
        theirs.append(json.loads(ran.output.splitlines()[-1])["analyses"])
    rows.append(Row("report v100-multistep", HTA, "s", mine, theirs, "lower", 0.1))
    return rows


def viewports(settings: Settings) -> list[Row]:
    """The viewport query at every zoom, at the beginning, in the middle and at the end of the longest tracks: the whole
    process, from its start to its answer."""
    profile, rows = long_profile(settings), []
    tracks = json.loads(run(trainyard("slices", profile, "--json"), settings.threads).output)["tracks"]
    views = [view for track in tracks if (view := viewport(profile, track["track"], settings))]
    for view in sorted(views, key=lambda view: -view["slices"])[:3]:
        first, last = view["from_ns"], view["to_ns"]
        for zoom in ZOOMS:
            width, times = max(1, (last - first) // zoom), []
            for _ in range(settings.alternations):
                for place in (0.0, 0.37, 0.9):
                    start = first + int(place * (last - first - width))
                    window = ("--from", start, "--to", start + width, "--px", PIXELS)
                    command = trainyard("slices", profile, "--track", view["track"], *window, "--json")
                    times.append(1000 * run(command, settings.threads).seconds)
            name = f"viewport, {view['slices']:,} slices, zoom {zoom:,}"
            rows.append(Row(name, "limit", "ms", times, [VIEWPORT_MS], "lower", 1.0))
    return rows


def viewport(profile: Path, track: int, settings: Settings) -> dict[str, Any] | None:
    """The whole of a track; nothing of one without slices."""
    command = trainyard("slices", profile, "--track", track, "--json")
    done = subprocess.run(command, capture_output=True, text=True, env=environment(settings.threads), check=False)
    return json.loads(done.stdout) if done.returncode == 0 else None


def sizes(settings: Settings) -> list[Row]:
    """How many times smaller each trace's profile is than its JSON and its json.gz."""
    rows = []
    for name in inputs.TRACES:
        folder = inputs.SHARED / "traces" / name
        ran = ours_import(folder, inputs.CACHE / "size.profile", settings)
        summary = json.loads(ran.output)
        plain = sum(source["bytes"] for source in summary["sources"])
        packed = sum(gzip_bytes(Path(source["path"])) for source in summary["sources"])
        for peer, size, goal in (("JSON", plain, SMALLER_THAN_JSON), ("json.gz", packed, SMALLER_THAN_GZIP)):
            rows.append(Row(f"{name}, times smaller than", peer, "×", [size / summary["bytes"]], [1.0], "higher", goal))
    return rows


def gzip_bytes(path: Path) -> int:
    """Size of a file as gzip packs it; its own where it is packed."""
    return path.stat().st_size if path.suffix == ".gz" else len(gzip.compress(path.read_bytes(), 6))


def long_profile(settings: Settings) -> Path:
    """The profile of the gigabyte, imported anew."""
    profile = inputs.CACHE / "long.profile"
    ours_import(inputs.long_trace(2 if settings.quick else COPIES), profile, settings)
    return profile


BENCHES: dict[str, Any] = {
    "profile-import": importing,
    "profile-report": reporting,
    "profile-viewport": viewports,
    "profile-size": sizes,
}
