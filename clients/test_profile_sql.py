"""The queries of `docs/profile-format.md`, run by DuckDB on imported traces, against `trainyard profile report --json`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import ClassVar

import duckdb
from serving import BINARY, ROOT

DOCUMENT = ROOT / "docs" / "profile-format.md"
TRACES = ROOT.parent / "shared" / "traces"
# Integer µs and ns, one rank and several, the names of 2021, launches that are missing; correlations are unique.
SETS = ("a100-control", "v100-ns", "dlrm-8ranks", "rn50-2021")


def trainyard(*arguments: str | Path) -> str:
    command = [str(BINARY), "profile", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": os.environ.get("PATH", "")}, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(command)} ended with code {done.returncode}:\n{done.stderr}")
    return done.stdout


def queries() -> list[str]:
    return re.findall(r"```sql\n(.*?)```", DOCUMENT.read_text(), flags=re.DOTALL)


@unittest.skipUnless(TRACES.is_dir(), "needs the shared traces")
class Queries(unittest.TestCase):
    folder: ClassVar[tempfile.TemporaryDirectory]
    reports: ClassVar[dict[str, dict]] = {}

    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        for name in SETS:
            profile = Path(cls.folder.name) / name
            trainyard("import", TRACES / name, "-o", profile)
            cls.reports[name] = json.loads(trainyard("report", profile, "--json"))["analyses"]

    def rows(self, query: int, name: str) -> list[dict]:
        sql = queries()[query].replace("run.profile", str(Path(self.folder.name) / name))
        with duckdb.connect() as connection:
            found = connection.execute(sql)
            columns = [column[0] for column in found.description]
            return [dict(zip(columns, row, strict=True)) for row in found.fetchall()]

    def each(self):
        for name in SETS:
            with self.subTest(name):
                yield name, self.reports[name]

    def test_there_are_five(self) -> None:
        self.assertEqual(len(queries()), 5)

    def test_kernels(self) -> None:
        for name, report in self.each():
            # The report has a row for each name and class, the query one for each name.
            expected: dict[str, list[int]] = {}
            for row in report["kernels"]["rows"]:
                sums = expected.setdefault(row["name"], [0, 0])
                sums[0] += row["durations"]["count"]
                sums[1] += row["durations"]["sum_ns"]
            rows = self.rows(0, name)
            self.assertEqual({row["name"]: [row["runs"], row["sum_ns"]] for row in rows}, expected)
            self.assertGreater(len(rows), 10)
            self.assertAlmostEqual(sum(row["share"] for row in rows), 1.0)
            by_name = {row["name"]: row["durations"] for row in report["kernels"]["rows"]}
            for row in rows:
                self.assertAlmostEqual(row["median_ns"], by_name[row["name"]]["median_ns"])
                self.assertEqual(row["max_ns"], by_name[row["name"]]["max_ns"])

    def test_busy_and_idle(self) -> None:
        for name, report in self.each():
            keys = ("span_ns", "busy_ns", "idle_ns")
            expected = {rank["rank"]: tuple(rank["temporal"][key] for key in keys) for rank in report["ranks"]}
            found = {row["rank"]: tuple(row[key] for key in keys) for row in self.rows(1, name)}
            self.assertEqual(found, expected)

    def test_launch_delays(self) -> None:
        for name, report in self.each():
            expected = {rank["rank"]: rank["launches"] for rank in report["ranks"]}
            rows = self.rows(2, name)
            self.assertEqual(len(rows), len(expected))
            for row in rows:
                launches = expected[row["rank"]]
                self.assertEqual(row["launches"], launches["pairs"])
                self.assertAlmostEqual(row["delay_median_ns"], launches["delay"]["median_ns"])
                self.assertAlmostEqual(row["delay_p99_ns"], launches["delay"]["p99_ns"], places=3)
                self.assertAlmostEqual(row["call_median_ns"], launches["call"]["median_ns"])
                self.assertAlmostEqual(row["event_median_ns"], launches["event"]["median_ns"])

    def test_steps(self) -> None:
        for name, report in self.each():
            expected = {
                (rank["rank"], steps["name"]): steps["durations"]
                for rank in report["ranks"]
                for steps in rank["steps"]
                if steps["on"] == "host"
            }
            found = {(row["rank"], row["step"]): row for row in self.rows(3, name)}
            self.assertEqual(found.keys(), expected.keys())
            for key, row in found.items():
                self.assertEqual((row["steps"], row["max_ns"]), (expected[key]["count"], expected[key]["max_ns"]))
                self.assertAlmostEqual(row["mean_ns"], expected[key]["mean_ns"], places=3)
                self.assertAlmostEqual(row["median_ns"], expected[key]["median_ns"])

    def test_copies(self) -> None:
        for name, report in self.each():
            expected = {
                (rank["rank"], operation["direction"]): operation for rank in report["ranks"] for operation in rank["memory"]
            }
            found = {(row["rank"], row["direction"]): row for row in self.rows(4, name)}
            self.assertEqual(found.keys(), expected.keys())
            for key, row in found.items():
                operation = expected[key]
                self.assertEqual((row["copies"], row["sum_ns"]), (operation["durations"]["count"], operation["durations"]["sum_ns"]))
                self.assertEqual(row["bytes"] or 0, operation["bytes"])
                if operation["mean_gb_per_s"] is None:
                    self.assertIsNone(row["gb_per_s"])
                else:
                    self.assertAlmostEqual(row["gb_per_s"], operation["mean_gb_per_s"])


if __name__ == "__main__":
    unittest.main()
