"""Triton's HTTP client against `/v2`."""

from __future__ import annotations

import unittest
from pathlib import Path

import models
import numpy as np
import tritonclient.http as triton
from serving import Serving, ServingTest
from tritonclient.utils import InferenceServerException

TEXTS = ["the red train", "", "não é bom 😀"]


class KServe(ServingTest):
    @classmethod
    def serve(cls, directory: Path) -> Serving:
        return Serving(*(f"{name}={make(directory / name)}" for name, make in MODELS.items()))

    def setUp(self) -> None:
        self.client = triton.InferenceServerClient(self.serving.url.removeprefix("http://"))
        self.addCleanup(self.client.close)

    def infer(self, model: str, binary: bool, outputs: dict[str, bool] | None = None, texts=TEXTS, **options):
        """Sends texts as BYTES; `outputs` says of each output wanted whether it is binary."""
        tensor = triton.InferInput("text", [len(texts)], "BYTES")
        tensor.set_data_from_numpy(np.array([text.encode() for text in texts], np.object_), binary_data=binary)
        wanted = None
        if outputs is not None:
            wanted = [triton.InferRequestedOutput(name, binary_data=kind) for name, kind in outputs.items()]
        return self.client.infer(model, [tensor], outputs=wanted, **options)

    def test_health(self) -> None:
        self.assertTrue(self.client.is_server_live())
        self.assertTrue(self.client.is_server_ready())
        self.assertTrue(self.client.is_model_ready("c"))
        self.assertTrue(self.client.is_model_ready("c", "1"))
        self.assertFalse(self.client.is_model_ready("x"))
        self.assertFalse(self.client.is_model_ready("c", "2"))

    def test_metadata(self) -> None:
        self.assertIn("binary_tensor_data", self.client.get_server_metadata()["extensions"])
        metadata = self.client.get_model_metadata("c")
        self.assertEqual(metadata["inputs"][0], {"name": "text", "datatype": "BYTES", "shape": [-1]})
        self.assertEqual({output["name"] for output in metadata["outputs"]}, {"label", "score", "scores"})

    def test_texts_and_outputs_binary_or_not_are_the_same(self) -> None:
        for binary in (True, False):
            for kind in (True, False):
                with self.subTest(inputs=binary, outputs=kind):
                    answer = self.infer("c", binary, {"label": kind, "score": kind, "scores": kind}, request_id="7")
                    scores = answer.as_numpy("scores")
                    self.assertEqual((scores.shape, scores.dtype), ((3, 3), np.float64))
                    np.testing.assert_allclose(scores.sum(axis=1), 1.0)
                    np.testing.assert_array_equal(scores.max(axis=1), answer.as_numpy("score"))
                    labels = [text.decode() if isinstance(text, bytes) else text for text in answer.as_numpy("label")]
                    self.assertEqual(labels, [models.LABELS[i] for i in scores.argmax(axis=1)])
                    self.assertEqual(answer.get_response()["id"], "7")

    def test_outputs_of_a_request_may_mix(self) -> None:
        answer = self.infer("c", True, {"label": False, "scores": True})
        self.assertEqual(len(answer.get_output("label")["data"]), 3)
        self.assertEqual(answer.as_numpy("scores").shape, (3, 3))
        self.assertIsNone(answer.as_numpy("score"), "not asked for")

    def test_all_outputs_where_none_is_named(self) -> None:
        embedding = self.infer("e", True).as_numpy("embedding")
        self.assertEqual((embedding.shape, embedding.dtype), ((3, models.HIDDEN), np.float32))
        np.testing.assert_allclose(np.linalg.norm(embedding, axis=1), 1.0, atol=1e-5)
        self.assertEqual(self.infer("t", True).as_numpy("entities").shape, (3,))

    def test_compressed_bodies_are_refused_and_answers_come_as_they_are(self) -> None:
        self.assertEqual(self.infer("c", True, response_compression_algorithm="gzip").as_numpy("score").shape, (3,))
        with self.assertRaisesRegex(InferenceServerException, "content-encoding"):
            self.infer("c", True, request_compression_algorithm="gzip")

    def test_a_text_that_is_too_long_fails_alone(self) -> None:
        long = "the " * (2 * models.MAX_TOKENS)
        answer = self.infer("c", True, texts=["good", long])
        self.assertEqual([bool(error) for error in answer.as_numpy("error")], [False, True])
        self.assertEqual(answer.as_numpy("label")[1], b"")
        cut = self.infer("c", True, texts=["good", long], parameters={"truncation": True})
        self.assertIsNone(cut.as_numpy("error"))

    def test_mistakes_are_said(self) -> None:
        for mistake, said in (
            (lambda: self.infer("x", True), "x"),
            (lambda: self.infer("c", True, {"logits": True}), "`label`, `score`, `scores`"),
            (lambda: self.infer("c", True, model_version="2"), "version"),
            (lambda: self.client.get_model_metadata("x"), "x"),
        ):
            with self.subTest(said), self.assertRaisesRegex(InferenceServerException, said) as refused:
                mistake()
            self.assertIn(refused.exception.status(), ("404", "422"))


MODELS = {"c": models.classifier, "e": models.encoder, "t": models.tagger}

if __name__ == "__main__":
    unittest.main()
