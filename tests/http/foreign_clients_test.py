"""Clients that others wrote, unmodified: curl, the openai package, lm-evaluation-harness.

Run by ctest from the repository's root with LSSAR_SERVER, and with LSSAR_VENVS: where the packages
of tests/requirements.txt are installed, once (800 MB). Skipped where PyPI cannot be reached.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
from typing import Any

from http_fixture import MODEL, NAME, Server

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "python"))

import environments

# Short texts in the style of the shipped model's training data.
TEXTS = [
    "Once upon a time there was a little girl named Lily. She loved to play with her toys.",
    "Tom had a big red ball. He threw the ball to his dog. The dog ran to get the ball.",
    "The sun was hot and the sky was blue. Mia wanted to swim in the lake with her mom.",
    "Ben saw a cat in the tree. The cat was scared and could not get down.",
    "Mom said it was time for bed. Sam was not tired and he wanted to play more.",
    "The bird had a small nest in the tree. It sang a happy song every day.",
    "Anna went to the park with her dad. They saw ducks in the pond and fed them bread.",
    "It was raining outside. Max put on his boots and jumped in the puddles.",
]

server: Server
python: pathlib.Path


def run(*command: Any, **options: Any) -> str:
    return environments.run(*command, **options).stdout


def setUpModule() -> None:
    global server, python
    python = environments.environment("foreign")
    server = Server()


def tearDownModule() -> None:
    assert server.stop() == 0


class CurlTest(unittest.TestCase):
    def curl(self, *arguments: str) -> str:
        return run("curl", "-sS", "--fail-with-body", *arguments)

    def test_completions_and_streams(self) -> None:
        url = f"http://{server.http_address}/v1/completions"
        body = json.dumps({"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0})
        reply = json.loads(self.curl(url, "-d", body))
        self.assertEqual(reply["usage"]["completion_tokens"], 8)
        streamed = self.curl("-N", url, "-d", body[:-1] + ', "stream": true}')
        events = [line.removeprefix("data: ") for line in streamed.splitlines() if line]
        self.assertEqual(events[-1], "[DONE]")
        text = "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1])
        self.assertEqual(text, reply["choices"][0]["text"])

    def test_a_body_large_enough_for_expect_continue(self) -> None:
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump({"prompt": "x " * (1 << 20)}, file)
            file.flush()
            reply = subprocess.run(["curl", "-sS", "-H", "Content-Type: application/json", "-d",
                                    f"@{file.name}", f"http://{server.http_address}/tokenize"],
                                   capture_output=True, text=True, check=True)
        self.assertGreater(json.loads(reply.stdout)["count"], 1 << 20)

    def test_several_requests_on_one_connection(self) -> None:
        base = f"http://{server.http_address}"
        self.assertEqual(self.curl(f"{base}/healthz", f"{base}/readyz"), "ok\nok\n")


class OpenAiTest(unittest.TestCase):
    def test_sync_async_and_streams(self) -> None:
        output = run(python, HERE / "openai_client.py", f"http://{server.http_address}/v1", NAME)
        self.assertTrue(output.endswith("ok\n"), output)
        server.wait_until_idle()


class LmEvalTest(unittest.TestCase):
    """lm-evaluation-harness on tasks that are written here: by its function, once for all tests, as
    its program reads thousands of tasks of its own first."""

    found: list[dict[str, list[dict[str, Any]]]]  # samples by task: completions, fp32, chats

    @classmethod
    def setUpClass(cls) -> None:
        path = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        with open(path / "rows.jsonl", "w") as rows:
            for text in TEXTS:
                context, word = text.rsplit(" ", 1)
                rows.write(json.dumps({"context": context, "word": word,
                                       "choices": [word, "elephant.", "zzz."]}) + "\n")
        common = (f"dataset_path: json\ndataset_kwargs: {{data_files: {{test: "
                  f"{path}/rows.jsonl}}}}\ntest_split: test\ndoc_to_text: '{{{{context}}}}'\n")
        (path / "word.yaml").write_text(
            "task: lssar_word\noutput_type: loglikelihood\ndoc_to_target: ' {{word}}'\n"
            "metric_list: [{metric: acc}, {metric: perplexity}]\n" + common)
        (path / "choice.yaml").write_text(
            "task: lssar_choice\noutput_type: multiple_choice\ndoc_to_target: 0\n"
            "doc_to_choice: choices\nmetric_list: [{metric: acc}]\n" + common)
        (path / "text.yaml").write_text(
            "task: lssar_text\noutput_type: generate_until\ndoc_to_target: '{{word}}'\n"
            "generation_kwargs: {until: ['.'], max_gen_toks: 12, temperature: 0}\n"
            "metric_list: [{metric: exact_match}]\n" + common)
        exact = Server("--dtype", "fp32", "--kv-cache-dtype", "fp32")
        cls.addClassCleanup(exact.stop)

        runs = [{"model": model, "tasks": tasks, **more, "model_args": (
            f"model={NAME},base_url=http://{on.http_address}{url},num_concurrent=8,max_retries=1")}
                for model, on, url, tasks, more in (
                    ("local-completions", server, "/v1/completions",
                     ["lssar_word", "lssar_choice", "lssar_text"], {}),
                    ("local-completions", exact, "/v1/completions", ["lssar_word"], {}),
                    ("local-chat-completions", server, "/v1/chat/completions", ["lssar_text"],
                     {"apply_chat_template": True}))]
        printed = run(python, HERE.parent / "python" / "run_lm_eval.py", path, json.dumps(runs),
                      env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1",
                           "HF_HOME": str(path / "cache"), "OPENAI_API_KEY": "none"})
        cls.found = [outcome["samples"] for outcome in json.loads(printed.splitlines()[-1])]

    def score(self, text: str, continuations: list[str]) -> list[dict[str, Any]]:
        """By /v1/score, of the ids that the harness makes: without BOS."""
        def ids(whole: str) -> list[int]:
            return server.post("/tokenize", {"prompt": whole,
                                             "add_special_tokens": False})["tokens"]

        context = ids(text)
        rest = [ids(text + continuation)[len(context):] for continuation in continuations]
        reply = server.post("/v1/score", {"items": [{"context": context, "continuations": rest}]})
        return reply["data"][0]["continuations"]

    def test_local_completions(self) -> None:
        for text, sample in zip(TEXTS, self.found[0]["lssar_word"], strict=True):
            context, word = text.rsplit(" ", 1)
            expected = self.score(context, [" " + word])[0]
            logprob, is_greedy = sample["filtered_resps"][0]
            self.assertAlmostEqual(float(logprob), expected["logprob"], delta=1e-3)
            self.assertEqual(str(is_greedy), str(expected["is_greedy"]))
        accuracies = [sample["acc"] for sample in self.found[0]["lssar_choice"]]
        self.assertEqual(len(accuracies), len(TEXTS))
        self.assertGreaterEqual(sum(accuracies) / len(TEXTS), 0.5)
        for text, sample in zip(TEXTS, self.found[0]["lssar_text"], strict=True):
            reply = server.post("/v1/completions", {
                "prompt": text.rsplit(" ", 1)[0], "max_tokens": 12, "temperature": 0, "stop": ".",
                "add_special_tokens": False})
            self.assertEqual(sample["resps"][0][0], reply["choices"][0]["text"])

    def test_log_likelihoods_are_those_of_pytorch(self) -> None:
        reference = json.loads(run("/usr/bin/python3", "-B", HERE / "pytorch_reference.py", MODEL,
                                   json.dumps([text.rsplit(" ", 1) for text in TEXTS])))
        for (expected, is_greedy), sample in zip(reference, self.found[1]["lssar_word"],
                                                 strict=True):
            logprob, is_sample_greedy = sample["filtered_resps"][0]
            self.assertAlmostEqual(float(logprob), expected, delta=1e-3)
            self.assertEqual(str(is_sample_greedy), str(is_greedy))

    def test_local_chat_completions(self) -> None:
        for text, sample in zip(TEXTS, self.found[2]["lssar_text"], strict=True):
            reply = server.post("/v1/chat/completions", {
                "messages": [{"role": "user", "content": text.rsplit(" ", 1)[0]}],
                "max_tokens": 12, "temperature": 0, "stop": "."})
            self.assertEqual(sample["resps"][0][0],
                             reply["choices"][0]["message"]["content"].strip())


if __name__ == "__main__":
    unittest.main(verbosity=2)
