"""Rows and servers of the serving benches, without models. `python3 -m unittest discover bench`"""

from __future__ import annotations

import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import inputs
from benches import Settings
from contest import BenchError, Contestant
from serving import latency_row, throughput_row
from serving_http import Server

SETTINGS = Settings(threads=1, alternations=1, quick=True, peers_only=False)
HEALTHY = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/ping" else 404)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
"""


def contestant(name: str, *answers: dict[str, object]) -> Contestant:
    return Contestant(name, [], threads=1, logs=Path(), answers=list(answers))


class RowsTest(unittest.TestCase):
    def test_latency_is_milliseconds_of_one_text_and_less_is_better(self) -> None:
        ours = contestant("ours", {"seconds": 0.5, "units": 100}, {"seconds": 0.7, "units": 100})
        theirs = contestant("peer", {"seconds": 0.05, "units": 5, "choice": "fused graph"})
        row = latency_row("bench", ours, theirs, 1.0)
        self.assertEqual((row.ours, row.theirs, row.better), ([5.0, 7.0], [10.0], "lower"))
        self.assertEqual(row.peer, "peer (fused graph)")

    def test_throughput_counts_real_tokens(self) -> None:
        ours = contestant("ours", {"seconds": 2.0, "units": 10, "tokens": 300})
        theirs = contestant("peer", {"seconds": 1.0, "units": 4, "tokens": 100, "padded_tokens": 170})
        row = throughput_row("bench", ours, theirs, 1.7)
        self.assertEqual((row.ours, row.theirs, row.peer), ([150.0], [100.0], "peer"))


class ServerTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        patched = mock.patch.object(inputs, "CACHE", Path(folder.name))
        patched.start()
        self.addCleanup(patched.stop)

    def test_a_server_is_awaited_and_ended(self) -> None:
        with Server("healthy", [sys.executable, "-c", HEALTHY], "/ping", SETTINGS) as server:
            self.assertGreater(server.seconds_to_ready, 0.0)
            self.assertGreater(server.resident_bytes(), 1 << 20)
        self.assertIsNotNone(server._process.returncode)

    def test_a_server_that_ends_is_named_with_its_last_words(self) -> None:
        program = "import sys; sys.exit('no such model: m')"
        with self.assertRaisesRegex(BenchError, "(?s)dead: ended with code 1.*no such model"):
            with Server("dead", [sys.executable, "-c", program], "/ping", SETTINGS):
                pass


if __name__ == "__main__":
    unittest.main()
