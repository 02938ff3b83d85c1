"""`huggingface_hub.InferenceClient`, which posts to the URL that it is given: here `/`, and a model's own by name."""

from __future__ import annotations

import unittest
from pathlib import Path

import models
import numpy as np
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError
from serving import Serving, ServingTest

LONG = "the " * (2 * models.MAX_TOKENS)


class FeatureExtraction(ServingTest):
    @classmethod
    def serve(cls, directory: Path) -> Serving:
        return Serving(f"e={models.encoder(directory / 'e')}")

    def setUp(self) -> None:
        self.client = InferenceClient(base_url=self.serving.url)

    def test_a_text_and_a_list(self) -> None:
        one = self.client.feature_extraction("the red train")
        two = self.client.feature_extraction(["the red train", "the blue train"])
        self.assertEqual((one.shape, two.shape), ((1, models.HIDDEN), (2, models.HIDDEN)))
        np.testing.assert_array_equal(one[0], two[0])

    def test_normalize_is_heeded(self) -> None:
        longer = self.client.feature_extraction("good", normalize=False)[0]
        unit = self.client.feature_extraction("good", normalize=True)[0]
        self.assertAlmostEqual(float(np.linalg.norm(unit)), 1.0, places=5)
        np.testing.assert_allclose(longer / np.linalg.norm(longer), unit, atol=1e-6)
        self.assertGreater(abs(float(np.linalg.norm(longer)) - 1.0), 1e-3)

    def test_truncate_is_heeded(self) -> None:
        with self.assertRaises(HfHubHTTPError) as refused:
            self.client.feature_extraction(LONG)
        self.assertEqual(refused.exception.response.status_code, 422)
        self.assertIn("64 tokens", str(refused.exception), "the client shows what the server says")
        ends = [
            self.client.feature_extraction(f"good {LONG} bad", truncate=True, truncation_direction=side)
            for side in ("left", "right")
        ]
        self.assertGreater(float(np.abs(ends[0] - ends[1]).max()), 1e-6)

    def test_what_would_make_another_embedding_is_refused_not_ignored(self) -> None:
        for option in ({"prompt_name": "query"}, {"dimensions": 8}):
            with self.subTest(option), self.assertRaises(HfHubHTTPError) as refused:
                self.client.feature_extraction("good", **option)
            self.assertEqual(refused.exception.response.status_code, 422)

    def test_the_routes_of_text_embeddings_inference_are_the_same(self) -> None:
        named = InferenceClient(model=f"{self.serving.url}/embed").feature_extraction("good", normalize=False)
        np.testing.assert_array_equal(named, self.client.feature_extraction("good", normalize=False))


class TextClassification(ServingTest):
    @classmethod
    def serve(cls, directory: Path) -> Serving:
        return Serving(f"c={models.classifier(directory / 'c')}")

    def setUp(self) -> None:
        self.client = InferenceClient(model=self.serving.url)

    def test_all_labels_best_first(self) -> None:
        labels = self.client.text_classification("a very good train")
        self.assertEqual({label.label for label in labels}, set(models.LABELS))
        scores = [label.score for label in labels]
        self.assertEqual(scores, sorted(scores, reverse=True))
        self.assertAlmostEqual(sum(scores), 1.0, places=9)

    def test_top_k_and_the_function(self) -> None:
        every = self.client.text_classification("bad")
        best = self.client.text_classification("bad", top_k=2)
        self.assertEqual([label.label for label in best], [label.label for label in every[:2]])
        sigmoids = self.client.text_classification("bad", function_to_apply="sigmoid")
        self.assertNotAlmostEqual(sum(label.score for label in sigmoids), 1.0, places=3)

    def test_errors_have_their_status_and_say_why(self) -> None:
        with self.assertRaises(HfHubHTTPError) as refused:
            self.client.text_classification("bad", top_k=0)
        self.assertEqual(refused.exception.response.status_code, 422)
        self.assertIn("top_k", str(refused.exception))
        with self.assertRaises(HfHubHTTPError) as unknown:
            self.client.text_classification("bad", model=f"{self.serving.url}/models/x/invoke")
        self.assertEqual(unknown.exception.response.status_code, 404)


class TokenClassification(ServingTest):
    @classmethod
    def serve(cls, directory: Path) -> Serving:
        return Serving(f"t={models.tagger(directory / 't')}")

    def test_every_strategy_gives_spans_of_the_text(self) -> None:
        text = "the réd train was green"
        for url in (self.serving.url, f"{self.serving.url}/models/t/invoke"):
            client = InferenceClient(model=url)
            for strategy in (None, "none", "simple", "first", "average", "max"):
                with self.subTest(strategy, url=url):
                    found = client.token_classification(text, aggregation_strategy=strategy, ignore_labels=[])
                    self.assertEqual((found[0].start, found[-1].end), (0, len(text)))
                    self.assertTrue(all(0.0 <= entity.score <= 1.0 for entity in found))
                    grouped = strategy not in (None, "none")
                    names = [entity.entity_group if grouped else entity.entity for entity in found]
                    self.assertLessEqual(set(names), {"O", "COL"} if grouped else set(models.TAGS))
                    if not grouped:
                        continue
                    for before, after in zip(found, found[1:]):
                        self.assertLessEqual(before.end, after.start)


if __name__ == "__main__":
    unittest.main()
