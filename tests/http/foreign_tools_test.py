"""Clients and tools that others wrote, unmodified: openai's client.responses, client.files and
client.batches, anthropic, LangChain, LiteLLM, llm, guidellm. foreign_clients_test.py has curl,
openai's other calls and lm-eval.

Run by ctest from the repository's root with LSSAR_SERVER, and with LSSAR_VENVS: where the packages
of tests/requirements-tools.txt and -guidellm.txt are installed, once (900 MB). Skipped where PyPI
cannot be reached.
"""

import json
import pathlib
import sys
import tempfile
import unittest
from typing import Any

from http_fixture import NAME, Server

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "python"))

import environments

server: Server
python: pathlib.Path


def run(*command: Any, **variables: str) -> str:
    return environments.run(*command, env=environments.isolated(**variables)).stdout


def setUpModule() -> None:
    global server, python
    python = environments.environment("tools", has_client=False)
    directory = unittest.enterModuleContext(tempfile.TemporaryDirectory())
    server = Server("--batch-dir", directory)


def tearDownModule() -> None:
    assert server.stop() == 0


class ClientTest(unittest.TestCase):
    def check(self, script: str, base_url: str, **variables: str) -> None:
        output = run(python, "-B", HERE / script, base_url, NAME, **variables)
        self.assertTrue(output.endswith("ok\n"), output)
        server.wait_until_idle()

    def test_openai_responses(self) -> None:
        self.check("responses_client.py", f"http://{server.http_address}/v1")

    def test_openai_batches(self) -> None:
        self.check("batches_client.py", f"http://{server.http_address}/v1")

    def test_anthropic(self) -> None:
        self.check("anthropic_client.py", f"http://{server.http_address}")

    def test_langchain_and_litellm(self) -> None:
        self.check("framework_clients.py", f"http://{server.http_address}",
                   LITELLM_LOCAL_MODEL_COST_MAP="True", LANGSMITH_TRACING="false")

    def test_llm(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            pathlib.Path(directory, "extra-openai-models.yaml").write_text(
                f"- model_id: local\n  model_name: {NAME}\n"
                f"  api_base: http://{server.http_address}/v1\n")
            arguments = ("-m", "local", "Tell me a story.", "-o", "max_tokens", "12", "-o",
                         "temperature", "0")
            reply = server.post("/v1/chat/completions", {
                "messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 12,
                "temperature": 0})
            expected = reply["choices"][0]["message"]["content"]
            for more in ((), ("--no-stream",)):
                output = run(python.parent / "llm", *arguments, *more, LLM_USER_PATH=directory,
                             OPENAI_API_KEY="none")
                self.assertEqual(output.strip(), expected.strip())


class GuideLlmTest(unittest.TestCase):
    def test_benchmark(self) -> None:
        guidellm = environments.environment("guidellm", has_client=False).parent / "guidellm"
        with tempfile.TemporaryDirectory() as directory:
            data, report = (pathlib.Path(directory, name) for name in ("data.jsonl", "report.json"))
            data.write_text("".join(json.dumps({"prompt": f"Once upon a time, {i}",
                                                "output_tokens_count": 5}) + "\n"
                                    for i in range(8)))
            run(guidellm, "benchmark", "run", "--target", f"http://{server.http_address}",
                "--rate-type", "concurrent", "--rate", "2", "--max-requests", "8", "--data", data,
                "--data-args", '{"prompt_column": "prompt", "output_tokens_count_column": '
                '"output_tokens_count"}', "--output-path", report, "--disable-progress",
                HF_HUB_OFFLINE="1", HF_HOME=directory)
            [benchmark] = json.loads(report.read_text())["benchmarks"]
        requests = benchmark["requests"]
        self.assertEqual((len(requests["successful"]), len(requests["errored"])), (8, 0))
        self.assertEqual({request["output_tokens"] for request in requests["successful"]}, {5})


if __name__ == "__main__":
    unittest.main(verbosity=2)
