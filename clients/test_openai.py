"""OpenAI's Python package against `/v1`."""

from __future__ import annotations

import base64
import json
import sys
import unittest
from pathlib import Path

import models
import numpy as np
import openai
from serving import EXPECTED, MINILM, Serving, ServingTest

TOLERANCE = 1e-4


def client(serving: Serving, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{serving.url}/v1", api_key=key, max_retries=0)


class Embeddings(ServingTest):
    @classmethod
    def serve(cls, directory: Path) -> Serving:
        return Serving(f"minilm={MINILM}", f"labels={models.classifier(directory / 'labels')}")

    def setUp(self) -> None:
        self.client = client(self.serving)

    def test_a_text_and_a_list(self) -> None:
        one = self.client.embeddings.create(model="minilm", input="The train leaves.")
        two = self.client.embeddings.create(model="minilm", input=["The train leaves.", ""])
        self.assertEqual([item.index for item in two.data], [0, 1])
        self.assertEqual(len(one.data[0].embedding), 384)
        self.assertEqual(one.data[0].embedding, two.data[0].embedding, "neighbours do not matter")
        self.assertEqual(one.model, "minilm")
        self.assertEqual(two.usage.total_tokens, one.usage.prompt_tokens + 2)

    def test_numbers_and_base64_are_the_same(self) -> None:
        # Without a format the package asks for base64 and decodes it.
        default = self.client.embeddings.create(model="minilm", input="red").data[0].embedding
        numbers = self.client.embeddings.create(model="minilm", input="red", encoding_format="float").data[0].embedding
        text = self.client.embeddings.create(model="minilm", input="red", encoding_format="base64").data[0].embedding
        np.testing.assert_array_equal(np.float32(default), np.float32(numbers))
        np.testing.assert_array_equal(np.frombuffer(base64.b64decode(text), "<f4"), np.float32(numbers))

    def test_values_are_those_of_sentence_transformers(self) -> None:
        if not EXPECTED.is_file():
            print(f"{EXPECTED.name} is missing beside the checkout: values are not compared", file=sys.stderr)
            return
        expected = json.loads(EXPECTED.read_text())
        texts, known = expected["texts"], [text["emb"] for text in expected["minilm"]]
        # This protocol has no word for cutting, and control tokens that are written out are text here.
        fitting = [i for i, text in enumerate(expected["minilm"]) if text["n"] < 512 and "[SEP]" not in texts[i]]
        answer = self.client.embeddings.create(model="minilm", input=[texts[i] for i in fitting])
        self.assertGreater(len(fitting), 7)
        for i, item in zip(fitting, answer.data, strict=True):
            np.testing.assert_allclose(item.embedding, known[i], atol=TOLERANCE, err_msg=repr(texts[i][:40]))

    def test_models(self) -> None:
        self.assertEqual([model.id for model in self.client.models.list()], ["minilm", "labels"])
        self.assertEqual(self.client.models.retrieve("minilm").object, "model")

    def test_errors_are_of_their_classes(self) -> None:
        create = self.client.embeddings.create
        with self.assertRaises(openai.NotFoundError) as unknown:
            create(model="gpt", input="a")
        self.assertEqual(unknown.exception.code, "model_not_found")
        with self.assertRaises(openai.NotFoundError):
            self.client.models.retrieve("gpt")
        with self.assertRaises(openai.UnprocessableEntityError) as width:
            create(model="minilm", input="a", dimensions=7)
        self.assertEqual((width.exception.param, width.exception.code), ("dimensions", "invalid_input"))
        with self.assertRaises(openai.UnprocessableEntityError) as ids:
            create(model="minilm", input=[1, 2])
        self.assertEqual(ids.exception.param, "input")
        with self.assertRaises(openai.UnprocessableEntityError) as task:
            create(model="labels", input="a")
        self.assertEqual(task.exception.code, "wrong_task")
        with self.assertRaises(openai.BadRequestError) as malformed:
            self.client.post("/embeddings", cast_to=object, content=b"{", options={"headers": {"content-type": "application/json"}})
        self.assertEqual(malformed.exception.code, "malformed_body")


class Keys(ServingTest):
    @classmethod
    def serve(cls, directory: Path) -> Serving:
        keys = directory / "keys"
        keys.write_text("a-good-key\n")
        return Serving(models.encoder(directory / "e"), "--api-key-file", keys)

    def test_a_known_key_is_needed(self) -> None:
        answer = client(self.serving, "a-good-key").embeddings.create(model="e", input="good")
        self.assertEqual(len(answer.data[0].embedding), models.HIDDEN)
        with self.assertRaises(openai.AuthenticationError) as refused:
            client(self.serving, "a-bad-key").embeddings.create(model="e", input="good")
        self.assertIn("API key", refused.exception.message)
        self.assertEqual(refused.exception.code, "unauthorized")


if __name__ == "__main__":
    unittest.main()
