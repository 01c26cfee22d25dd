"""Clients and tools that others wrote, unmodified: openai's client.responses, client.files and
client.batches, anthropic, LangChain, LlamaIndex, LiteLLM, llm, grpc-requests, and the load
generators guidellm, aiperf and SGLang's bench_serving. foreign_clients_test.py has curl, openai's
other calls and lm-eval.

Run by ctest from the repository's root with LSSAR_SERVER, and with LSSAR_VENVS: where the packages
of tests/requirements-tools.txt, -llama-index.txt, -guidellm.txt and -benchmarks.txt are installed,
once (2 GB). Skipped where PyPI cannot be reached.
"""

import json
import pathlib
import shutil
import sys
import tempfile
import unittest
from typing import Any

from http_fixture import MODEL, NAME, Server

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
    # SGLang's bench_serving takes a comment of a stream for an event.
    server = Server("--batch-dir", directory, "--sse-comment-interval", "0")


def tearDownModule() -> None:
    assert server.stop() == 0


def run_programs(interpreter: pathlib.Path, *commands: list[Any], **variables: str) -> list[str]:
    """Their outputs, "error: ..." where one failed."""
    text = json.dumps([[str(word) for word in command] for command in commands])
    results = json.loads(run(interpreter, HERE / "run_programs.py", text, **variables)
                         .splitlines()[-1])
    return [output if error is None else f"{output}\nerror: {error}" for output, error in results]


class ClientTest(unittest.TestCase):
    QUESTION = "Tell me a story."

    outputs: list[str]

    @classmethod
    def setUpClass(cls) -> None:
        """All of one environment, in one process."""
        directory = cls.enterClassContext(tempfile.TemporaryDirectory())
        pathlib.Path(directory, "extra-openai-models.yaml").write_text(
            f"- model_id: local\n  model_name: {NAME}\n"
            f"  api_base: http://{server.http_address}/v1\n")
        llm = [python.parent / "llm", "-m", "local", cls.QUESTION, "-o", "max_tokens", "12", "-o",
               "temperature", "0"]
        base = f"http://{server.http_address}"
        cls.outputs = run_programs(
            python, [HERE / "responses_client.py", f"{base}/v1", NAME],
            [HERE / "batches_client.py", f"{base}/v1", NAME],
            [HERE / "anthropic_client.py", base, NAME], [HERE / "framework_clients.py", base, NAME],
            [HERE / "reflection_client.py", server.address, NAME], llm, [*llm, "--no-stream"],
            LITELLM_LOCAL_MODEL_COST_MAP="True", LANGSMITH_TRACING="false",
            LLM_USER_PATH=directory, OPENAI_API_KEY="none")
        server.wait_until_idle()

    def check(self, output: str) -> None:
        self.assertTrue(output.endswith("ok\n"), output)

    def test_openai_responses(self) -> None:
        self.check(self.outputs[0])

    def test_openai_batches(self) -> None:
        self.check(self.outputs[1])

    def test_anthropic(self) -> None:
        self.check(self.outputs[2])

    def test_langchain_and_litellm(self) -> None:
        self.check(self.outputs[3])

    def test_grpc_requests_by_reflection(self) -> None:
        self.check(self.outputs[4])

    def test_llm(self) -> None:
        reply = server.post("/v1/chat/completions", {
            "messages": [{"role": "user", "content": self.QUESTION}], "max_tokens": 12,
            "temperature": 0})
        expected = reply["choices"][0]["message"]["content"]
        for output in self.outputs[5:]:
            self.assertEqual(output.strip(), expected.strip())

    def test_llama_index(self) -> None:
        self.check(run(environments.environment("llama-index", has_client=False),
                       HERE / "llama_index_client.py", f"http://{server.http_address}/v1", NAME))
        server.wait_until_idle()


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


class LoadGeneratorTest(unittest.TestCase):
    """aiperf and SGLang's bench_serving, with the served model's tokenizer as transformers finds it
    without a network: in a cache of Hugging Face's hub."""

    NUM_REQUESTS = 8
    NUM_TOKENS = 6  # of each answer
    TOKENIZER = "lssar/lssar-6m"

    python: pathlib.Path

    @classmethod
    def setUpClass(cls) -> None:
        cls.python = environments.environment("benchmarks", has_client=False, is_complete=True)

    def setUp(self) -> None:
        self.directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        hub = self.directory / "hub" / f"models--{self.TOKENIZER.replace('/', '--')}"
        self.snapshot = hub / "snapshots" / "main"
        self.snapshot.mkdir(parents=True)
        (hub / "refs").mkdir()
        (hub / "refs" / "main").write_text("main")
        shutil.copy(pathlib.Path(MODEL, "tokenizer.model"), self.snapshot)
        (self.snapshot / "tokenizer_config.json").write_text(json.dumps({
            "tokenizer_class": "LlamaTokenizer", "bos_token": "</s>", "eos_token": "</s>",
            "unk_token": "<unk>"}))

    def offline(self) -> dict[str, str]:
        return {"HF_HOME": str(self.directory), "HF_HUB_OFFLINE": "1"}

    def run_offline(self, *command: Any, **variables: str) -> tuple[int, int]:
        """-> how many tokens of prompts and of answers the server counted."""
        names = "lssar_prompt_tokens_total", "lssar_generation_tokens_total"
        before = [server.metric(name) for name in names]
        run(*command, **self.offline(), **variables)
        server.wait_until_idle()
        prompt, generated = (int(server.metric(name) - value)
                             for name, value in zip(names, before, strict=True))
        return prompt, generated

    def profile(self, endpoint: str) -> None:
        report = self.directory / endpoint
        # Its services are processes: they have longer to start than a busy machine needs.
        patience = {f"AIPERF_SERVICE_{name}_TIMEOUT": "600" for name in
                    ("REGISTRATION", "START", "PROFILE_START", "COMMAND_RESPONSE")}
        num_prompt_tokens, num_generated = self.run_offline(
            self.python.parent / "aiperf", "profile", "--model", NAME, "--url",
            f"http://{server.http_address}", "--endpoint-type", endpoint, "--streaming",
            "--tokenizer", self.TOKENIZER, "--use-server-token-count", "--request-count",
            self.NUM_REQUESTS, "--concurrency", 2, "--isl", 20, "--osl", self.NUM_TOKENS,
            "--extra-inputs", "ignore_eos:true", "--random-seed", 1, "--output-artifact-dir",
            report, "--ui-type", "none", "--no-gpu-telemetry", "--workers-max", 1,
            "--record-processor-service-count", 1, **patience)
        found = json.loads((report / "profile_export_aiperf.json").read_text())
        self.assertEqual((found["is_complete"], found["error_summary"]), (True, []))
        self.assertEqual(
            {name: found[name]["avg"] for name in (
                "completed_request_count", "request_count", "request_error_rate",
                "total_usage_prompt_tokens", "total_usage_completion_tokens")},
            {"completed_request_count": self.NUM_REQUESTS, "request_count": self.NUM_REQUESTS,
             "request_error_rate": 0, "total_usage_prompt_tokens": num_prompt_tokens,
             "total_usage_completion_tokens": num_generated})
        lengths = found["usage_completion_tokens"]
        self.assertEqual((lengths["min"], lengths["max"]), (self.NUM_TOKENS, self.NUM_TOKENS))
        self.assertGreater(found["time_to_first_token"]["min"], 0)
        # It reads /metrics besides.
        scraped = json.loads((report / "server_metrics_export.json").read_text())
        self.assertEqual(scraped["summary"]["endpoints_successful"],
                         [f"http://{server.http_address}/metrics"])
        self.assertIn("lssar_generation_tokens", scraped["metrics"])

    def test_aiperf_chat(self) -> None:
        self.profile("chat")

    def test_aiperf_completions(self) -> None:
        self.profile("completions")

    def test_sglang_bench_serving(self) -> None:
        [script] = (self.python.parents[1] / "lib").glob(
            "python*/site-packages/sglang/bench_serving.py")
        backends = "sglang-oai", "sglang-oai-chat"
        reports = [self.directory / f"{backend}.jsonl" for backend in backends]
        before = server.metric("lssar_generation_tokens_total")
        outputs = run_programs(self.python, *([
            script, "--backend", backend, "--base-url", f"http://{server.http_address}",
            "--tokenizer", self.snapshot, "--dataset-name", "random-ids", "--num-prompts",
            self.NUM_REQUESTS, "--max-concurrency", 2, "--random-input-len", 20,
            "--random-output-len", self.NUM_TOKENS, "--random-range-ratio", 1, "--warmup-requests",
            1, "--output-file", report, "--output-details", "--disable-tqdm"]
            for backend, report in zip(backends, reports)), **self.offline())
        server.wait_until_idle()
        for output, report in zip(outputs, reports):
            self.assertNotIn("\nerror: ", output)
            found = json.loads(report.read_text())
            self.assertEqual(found["errors"], [""] * self.NUM_REQUESTS)
            self.assertEqual(found["completed"], self.NUM_REQUESTS)
            self.assertEqual(found["output_lens"], [self.NUM_TOKENS] * self.NUM_REQUESTS)
            self.assertTrue(all(found["generated_texts"]), found)
            self.assertGreater(min(found["ttfts"]), 0)
        self.assertEqual(server.metric("lssar_generation_tokens_total") - before,
                         len(backends) * (self.NUM_REQUESTS + 1) * self.NUM_TOKENS)


if __name__ == "__main__":
    unittest.main(verbosity=2)
