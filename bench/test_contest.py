"""The line protocol and the schedule, with contestants of a few lines. `python3 -m unittest discover bench`"""

from __future__ import annotations

import io
import sys
import tempfile
import unittest
from contextlib import redirect_stderr
from pathlib import Path

from benches import Row
from contest import BenchError, Contestant, alternate

POLITE = """
import json, sys
print(json.dumps({"ready": True, "name": "polite", "version": "1.2"}), flush=True)
for line in sys.stdin:
    if line.strip() == "quit":
        break
    print(json.dumps({"seconds": 0.5, "units": 10}), flush=True)
"""
SPINNING = 'print(\'{"ready": true}\', flush=True)\nwhile True: pass'


class ContestTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.logs = Path(folder.name)

    def contestant(self, name: str, program: str) -> Contestant:
        return Contestant(name, [sys.executable, "-c", program], threads=1, logs=self.logs)

    def test_contestants_take_turns_and_the_first_rotates(self) -> None:
        messages = io.StringIO()
        with self.contestant("a", POLITE) as a, self.contestant("b", POLITE) as b, redirect_stderr(messages):
            alternate([a, b], 3)
        order = [line.split()[1].rstrip(":") for line in messages.getvalue().splitlines()]
        self.assertEqual(order, ["a", "b", "b", "a", "a", "b"])

    def test_a_run_gives_rates_version_and_peak_memory(self) -> None:
        with self.contestant("polite", POLITE) as polite:
            polite.run()
        self.assertEqual((polite.version, polite.rates()), ("1.2", [20.0]))
        self.assertGreater(polite.peak_bytes, 1 << 20)

    def test_a_contestant_that_spins_while_it_waits_is_noticed(self) -> None:
        with self.contestant("spinning", SPINNING) as spinning:
            spinning._waiting_since -= 2.0
            spinning._idle_cpu_from -= 1.0
            spinning._note_idle()
            self.assertGreater(spinning.idle_cpu_share, 0.4)
            spinning._process.kill()

    def test_an_early_end_shows_the_code_and_the_last_messages(self) -> None:
        program = "import sys; sys.exit('rows.jsonl:3: label 7 is outside 0..2')"
        with self.assertRaisesRegex(BenchError, "(?s)code 1.*rows.jsonl:3: label 7"), self.contestant("bad", program):
            pass

    def test_an_error_line_is_passed_on(self) -> None:
        program = "print('{\"error\": \"unknown shape 4y512\"}')"
        with self.assertRaisesRegex(BenchError, "unknown shape 4y512"), self.contestant("bad", program):
            pass

    def test_noise_on_standard_output_is_refused(self) -> None:
        with self.assertRaisesRegex(BenchError, "not a JSON line: 'hello'"), self.contestant("bad", "print('hello')"):
            pass


class RowTest(unittest.TestCase):
    def test_a_row_holds_medians_and_their_ratio(self) -> None:
        row = Row("bench", "peer", "samples/s", [1.0, 30.0, 6.0], [3.0, 2.0, 100.0], "higher", 2.0)
        written = row.to_json({"threads": 2})
        self.assertEqual((written["ours"], written["theirs"], written["ratio"], written["runs"]), (6.0, 3.0, 2.0, 3))


if __name__ == "__main__":
    unittest.main()
