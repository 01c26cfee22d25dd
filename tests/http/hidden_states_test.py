"""Hidden states of layers by POST /v1/embeddings."""

import base64
import struct
import unittest

from http_fixture import Server

TEXT = "The cat sat on the mat."
LAYERS = [3, -1, 0, 6]
server: Server


def setUpModule() -> None:
    global server
    server = Server("--allow-steering")


def tearDownModule() -> None:
    assert server.stop() == 0


def embed(**fields: object) -> list:
    return server.post("/v1/embeddings", {"input": TEXT, **fields})["data"][0]["embedding"]


class HiddenStatesTest(unittest.TestCase):
    def test_a_vector_becomes_a_list_of_one_for_each_layer(self) -> None:
        last = embed(layers=LAYERS)
        self.assertEqual([len(vector) for vector in last], [256] * 4)
        self.assertEqual(last[1], embed())
        self.assertEqual(embed(layers=[-1]), [embed()])
        tokens = embed(layers=LAYERS, pooling="token")
        self.assertEqual(tokens[-1], last)
        for layer, want in enumerate(embed(layers=LAYERS, pooling="mean")):
            for value, column in zip(want, zip(*(token[layer] for token in tokens))):
                self.assertAlmostEqual(value, sum(column) / len(tokens), places=3)

    def test_positions_choose_tokens(self) -> None:
        tokens = embed(layers=LAYERS, pooling="token")
        chosen = embed(layers=LAYERS, pooling="token", positions=[-1, 2, 0, 2])
        self.assertEqual(chosen, [tokens[0], tokens[2], tokens[-1]])
        self.assertEqual(embed(layers=[0], pooling="mean", positions=[2]), [tokens[2][2]])

    def test_float16_as_numbers_and_as_base64(self) -> None:
        vectors = embed(layers=LAYERS)
        halves = [[struct.unpack("<e", struct.pack("<e", value))[0] for value in vector]
                  for vector in vectors]
        # Numbers have the digits that make them out among those of 32 bits.
        self.assertEqual([[struct.unpack("<e", struct.pack("<e", value))[0] for value in vector]
                          for vector in embed(layers=LAYERS, embed_dtype="float16")], halves)
        for dtype, code, want in ("float16", "e", halves), ("float32", "f", vectors):
            got = embed(layers=LAYERS, embed_dtype=dtype, encoding_format="base64")
            got = [base64.b64decode(vector) for vector in got]
            self.assertEqual([struct.unpack(f"<256{code}", vector) for vector in got],
                             [struct.unpack(f"<256{code}", struct.pack(f"<256{code}", *vector))
                              for vector in want])

    def test_a_value_that_float16_cannot_hold(self) -> None:
        far = {"layers": [1], "steering": [{"layer": 0, "vector": [1.0] * 256, "scale": 1e5}]}
        self.assertGreater(max(embed(**far)[0]), 65520)
        for encoding in "float", "base64":
            reply = server.request("POST", "/v1/embeddings", {
                "input": TEXT, **far, "embed_dtype": "float16", "encoding_format": encoding})
            self.assertEqual((reply.status, reply.error()["param"]), (400, "embed_dtype"))
            self.assertIn("is fp16, which cannot hold the value", reply.error()["message"])

    def test_what_is_refused_and_why(self) -> None:
        for fields, param, message in (
            ({"layers": [7]}, "layers[0]", "layers[0] is 7; it must be in [-1, 6]"),
            ({"layers": [0, -2]}, "layers[1]", "layers[1] is -2"),
            ({"layers": [3, 3]}, "layers[1]", "layers[1] is 3; it must be there once"),
            ({"layers": 3}, "layers", "a list of integers"),
            ({"layers": [1.5]}, "layers[0]", "layers[0]"),
            ({"positions": [0]}, "positions", "positions is set"),
            ({"positions": [100], "pooling": "token"}, "positions[0]", "positions[0] is 100"),
            ({"embed_dtype": "bfloat16"}, "embed_dtype", '"float32" or "float16"'),
            ({"input": [[5] * 1000] * 3, "layers": [0, 1, 2, 3, 4, 5, 6, -1], "pooling": "token"},
             "input", "asks for 6144000 numbers in one reply; the limit is 4194304"),
        ):
            with self.subTest(fields if len(str(fields)) < 200 else message):
                reply = server.request("POST", "/v1/embeddings", {"input": TEXT, **fields})
                self.assertEqual(reply.status, 400)
                self.assertIn(message, reply.error()["message"])
                self.assertTrue(reply.error()["param"].startswith(param.split("[")[0]))


if __name__ == "__main__":
    unittest.main()
