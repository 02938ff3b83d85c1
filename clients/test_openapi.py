"""schemathesis against `/openapi.json`: requests made from the schemas, good and bad, with every check of every answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import unittest
import urllib.request
from pathlib import Path

import models
from serving import Serving

CONFIG = Path(__file__).with_name("schemathesis.toml")
SCHEMATHESIS = Path(sys.executable).with_name("schemathesis")
TIMEOUT_S = 120


def http_get(url: str, key: str) -> bytes:
    with urllib.request.urlopen(urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"})) as reply:
        return reply.read()


class OpenApi(unittest.TestCase):
    def setUp(self) -> None:
        self.directory = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def check(self, serving: Serving, *options: str) -> None:
        """Fails with schemathesis' report unless all checks of all operations pass."""
        command = [SCHEMATHESIS, "--config-file", CONFIG, "run", f"{serving.url}/openapi.json", "--no-color", *options]
        environment = os.environ | {"PYTHONPATH": str(CONFIG.parent), "SCHEMATHESIS_HOOKS": "hooks"}
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        done = subprocess.run(command, cwd=self.directory, env=environment, timeout=TIMEOUT_S, **output)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_a_classifier(self) -> None:
        with Serving(f"m={models.classifier(self.directory / 'm')}", "--auto-truncate") as serving:
            # The routes of embeddings refuse it, whatever is sent.
            self.check(serving, "--exclude-path-regex", "^/(embed|v1/embeddings)$")

    def test_an_encoder(self) -> None:
        with Serving(f"m={models.encoder(self.directory / 'm')}", "--auto-truncate") as serving:
            self.check(serving, "--exclude-path", "/predict")

    def test_a_tagger(self) -> None:
        with Serving(f"m={models.tagger(self.directory / 'm')}", "--auto-truncate") as serving:
            self.check(serving, "--include-path-regex", "^/(|info|invocations|v2/models/.*)$")

    def test_keys_are_needed_where_the_document_says(self) -> None:
        keys = self.directory / "keys"
        keys.write_text("a-good-key\n")
        with Serving(models.classifier(self.directory / "m"), "--auto-truncate", "--api-key-file", keys) as serving:
            document = json.loads(http_get(f"{serving.url}/openapi.json", "a-good-key"))
            self.assertEqual(document["paths"]["/ping"]["get"]["security"], [])
            options = ["--header", "Authorization: Bearer a-good-key", "--exclude-path-regex", "^/(embed|v1/embeddings)$"]
            self.check(serving, "--phases", "fuzzing", "--checks", "ignored_auth,status_code_conformance", *options)

    def test_models_come_and_go(self) -> None:
        model = models.classifier(self.directory / "root" / "m")
        with Serving(f"m={model}", "--multi-model", "--model-root", model.parent) as serving:
            self.check(serving, "--include-path-regex", "^/models")


if __name__ == "__main__":
    unittest.main()
