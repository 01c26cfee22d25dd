"""What clients of vLLM, SGLang and OpenAI's API expect besides the shapes: names of the model,
fields of vLLM, the end of a call by its id, metrics under vLLM's names.

The standard library alone. Run by ctest from the repository's root with LSSAR_SERVER set.
"""

import concurrent.futures
import tempfile
import time
import unittest
import urllib.parse
from typing import Any

from http_fixture import Server

server: Server

NAMES = ["org/model", "other"]
PROMPT = "Once upon a time there was a little girl"
CHAT = [{"role": "user", "content": "Hello"}]


def setUpModule() -> None:
    global server
    server = Server("--served-model-name", ",".join(NAMES), "--max-n", "20", "--max-num-seqs", "24",
                    "--metrics-prefix", "vllm")


def tearDownModule() -> None:
    assert server.stop() == 0


def complete(**fields: Any) -> dict[str, Any]:
    return server.post("/v1/completions",
                       {"prompt": PROMPT, "max_tokens": 8, "temperature": 0, **fields})


def text_of(**fields: Any) -> str:
    return complete(**fields)["choices"][0]["text"]


class NameTest(unittest.TestCase):
    def test_each_name_is_served_and_repeated(self) -> None:
        models = server.request("GET", "/v1/models").json()["data"]
        self.assertEqual([model["id"] for model in models], NAMES)
        self.assertEqual({model["root"] for model in models}, {"lssar-6m"})
        for name in NAMES:
            for path in (name, urllib.parse.quote(name, safe="")):
                self.assertEqual(server.request("GET", f"/v1/models/{path}").json()["id"], name)
            self.assertEqual(complete(model=name)["model"], name)
        self.assertEqual(complete()["model"], NAMES[0])
        score = server.post("/v1/score", {"model": NAMES[1], "items": [
            {"context": "The cat", "continuations": [" sat"]}]})
        self.assertEqual(score["model"], NAMES[1])

    def test_another_name_is_refused(self) -> None:
        for path, body in (("/v1/completions", {"prompt": "a"}), ("/tokenize", {"prompt": "a"}),
                           ("/v1/embeddings", {"input": "a"})):
            reply = server.request("POST", path, {"model": "lssar-6m", **body})
            self.assertEqual(reply.status, 404)
            self.assertIn('serves "org/model", "other"', reply.error()["message"])
        self.assertEqual(server.request("GET", "/v1/models/lssar-6m").status, 404)


class FieldTest(unittest.TestCase):
    def test_the_text_may_include_what_ended_it(self) -> None:
        text = text_of(max_tokens=12)
        stop = text[4:7]
        end = text.index(stop)
        self.assertEqual(text_of(max_tokens=12, stop=stop), text[:end])
        reply = complete(max_tokens=12, stop=stop, include_stop_str_in_output=True)["choices"][0]
        self.assertEqual(reply["text"], text[:end + len(stop)])
        self.assertEqual(reply["stop_reason"], stop)
        events = server.stream("/v1/completions", {
            "prompt": PROMPT, "max_tokens": 12, "temperature": 0, "stop": stop,
            "include_stop_str_in_output": True})[:-1]
        self.assertEqual("".join(event["choices"][0]["text"] for event in events),
                         text[:end + len(stop)])

    def test_names_of_special_tokens_are_there_where_asked_for(self) -> None:
        eos = {"allowed_token_ids": [2], "max_tokens": 3, "ignore_eos": True}
        self.assertEqual(text_of(**eos), "")
        self.assertEqual(text_of(**eos, skip_special_tokens=False), "</s></s></s>")
        # The token that ends the text is no part of it, unless that is asked for.
        ended = {"allowed_token_ids": [2], "skip_special_tokens": False}
        self.assertEqual(text_of(**ended), "")
        self.assertEqual(text_of(**ended, include_stop_str_in_output=True), "</s>")

    def test_bad_words_do_not_come(self) -> None:
        text = text_of(max_tokens=40)
        words = [word for word in text.split() if word.isalpha()][:4]
        other = text_of(max_tokens=40, bad_words=words)
        for word in words:
            self.assertNotIn(f" {word} ", f" {other} ")
        # Several tokens: their beginning may come.
        phrase = " ".join(text.split()[:3])
        self.assertNotIn(phrase, text_of(max_tokens=40, bad_words=[phrase]))
        reply = server.request("POST", "/v1/completions", {"prompt": "a", "bad_words": ["a", 7]})
        self.assertEqual((reply.status, reply.error()["param"]), (400, "bad_words[1]"))

    def test_a_chat_continues_its_last_message(self) -> None:
        said = [*CHAT, {"role": "assistant", "content": "Once upon a"}]
        fields = {"messages": said, "max_tokens": 6, "temperature": 0,
                  "continue_final_message": True}
        reply = server.post("/v1/chat/completions", fields)
        ids = server.post("/tokenize", {"messages": said, "continue_final_message": True})
        self.assertEqual(reply["usage"]["prompt_tokens"], ids["count"])
        self.assertEqual(reply["choices"][0]["message"]["content"],
                         text_of(prompt=ids["tokens"], max_tokens=6, stop="<|user|>"))
        whole = server.post("/tokenize", {"messages": CHAT})
        bare = server.post("/tokenize", {"messages": CHAT, "add_generation_prompt": False})
        self.assertEqual(bare["tokens"], whole["tokens"][:bare["count"]])
        self.assertEqual(whole["count"], bare["count"] + 1)
        both = server.request("POST", "/v1/chat/completions",
                              {**fields, "add_generation_prompt": True})
        self.assertEqual((both.status, both.error()["param"]), (400, "add_generation_prompt"))

    def test_n_up_to_the_flag(self) -> None:
        reply = complete(n=20, max_tokens=2, temperature=1)
        self.assertEqual([choice["index"] for choice in reply["choices"]], list(range(20)))
        refused = server.request("POST", "/v1/completions", {"prompt": "a", "n": 21})
        self.assertIn("n is 21; it must be in [1, 20]", refused.error()["message"])

    def test_timings(self) -> None:
        reply = complete(prompt=PROMPT * 8, cache_salt="timings")
        timings, usage = reply["timings"], reply["usage"]
        self.assertEqual((timings["cache_n"], timings["prompt_n"], timings["predicted_n"]),
                         (0, usage["prompt_tokens"], usage["completion_tokens"]))
        self.assertGreater(timings["prompt_ms"], 0)
        self.assertGreater(timings["predicted_ms"], 0)
        speed = usage["completion_tokens"] * 1000 / timings["predicted_ms"]
        self.assertAlmostEqual(timings["predicted_per_second"], speed, places=3)
        again = complete(prompt=PROMPT * 8, cache_salt="timings")["timings"]
        self.assertGreater(again["cache_n"], 0)
        self.assertEqual(again["prompt_n"] + again["cache_n"], timings["prompt_n"])
        last = server.stream("/v1/completions", {
            "prompt": "a", "max_tokens": 2, "stream_options": {"include_usage": True}})[-2]
        self.assertEqual(last["timings"]["predicted_n"], last["usage"]["completion_tokens"])


class EndByIdTest(unittest.TestCase):
    def test_a_running_call_ends(self) -> None:
        text, chat = {"prompt": PROMPT}, {"messages": CHAT}
        for path, prefix, kind, prompt in (
                ("/v1/completions", "cmpl-", "text_completion.deleted", text),
                ("/v1/completions", "", "text_completion.deleted", text),
                ("/v1/chat/completions", "chatcmpl-", "chat.completion.deleted", chat),
                ("/v1/messages", "msg_", "message", chat),
                ("/v1/responses", "resp_", "response", {"input": "Hello"})):
            name = f"one.{time.monotonic_ns()}"
            limit = "max_output_tokens" if "input" in prompt else "max_tokens"
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                call = pool.submit(server.request, "POST", path,
                                   {**prompt, limit: 15000, "min_tokens": 15000},
                                   {"X-Request-Id": name})
                reply = self.delete(f"{path}/{prefix}{name}")
                self.assertEqual(reply, {"id": prefix + name, "object": kind, "deleted": True})
                ended = call.result(timeout=300)
            self.assertEqual(ended.status, 499)
            self.assertIn("delete", ended.error()["message"])
        missing = server.request("DELETE", "/v1/completions/cmpl-none")
        self.assertEqual(missing.status, 404)
        self.assertIn('"cmpl-none"', missing.error()["message"])
        self.assertEqual(server.request("GET", "/v1/completions/cmpl-none").status, 405)

    def delete(self, path: str) -> dict[str, Any]:
        """The answer, as soon as the call runs."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            reply = server.request("DELETE", path)
            if reply.status == 200:
                return reply.json()
            self.assertEqual(reply.status, 404)
            time.sleep(0.01)
        raise AssertionError(f"{path}: the call does not run")

    def test_a_key_ends_its_own_calls_alone(self) -> None:
        keys = tempfile.NamedTemporaryFile("w", suffix=".toml")
        self.addCleanup(keys.close)
        for name, role in (("alice", "user"), ("bob", "user"), ("root", "admin")):
            keys.write(f'[{name}]\nkey = "key-of-{name}-0123456789"\nrole = "{role}"\n')
        keys.flush()
        guarded = Server("--api-keys", keys.name)
        self.addCleanup(guarded.stop)

        def key(name: str) -> dict[str, str]:
            return {"Authorization": f"Bearer key-of-{name}-0123456789"}

        body = {"prompt": PROMPT, "max_tokens": 15000, "ignore_eos": True}
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            call = pool.submit(guarded.request, "POST", "/v1/completions", body,
                               {**key("alice"), "X-Request-Id": "mine"})
            deadline = time.monotonic() + 120
            running = 'lssar_num_requests_running 1'
            while time.monotonic() < deadline:
                page = guarded.request("GET", "/metrics", headers=key("root")).body.decode()
                if running in page:
                    break
                time.sleep(0.01)
            path = "/v1/completions/cmpl-mine"
            self.assertEqual(guarded.request("DELETE", path).status, 401)
            self.assertEqual(guarded.request("DELETE", path, headers=key("bob")).status, 404)
            self.assertFalse(call.done())
            self.assertEqual(guarded.request("DELETE", path, headers=key("alice")).status, 200)
            self.assertEqual(call.result(timeout=300).status, 499)


class MetricsTest(unittest.TestCase):
    def test_names_and_labels_of_vllm(self) -> None:
        complete(max_tokens=3, ignore_eos=True)
        page = server.request("GET", "/metrics").body.decode()
        labels = 'engine="0",model_name="org/model"'
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc",
                     "prompt_tokens_total", "generation_tokens_total", "num_preemptions_total",
                     "prefix_cache_queries_total", "prefix_cache_hits_total",
                     "time_to_first_token_seconds_count", "inter_token_latency_seconds_count",
                     "e2e_request_latency_seconds_count", "request_queue_time_seconds_count"):
            self.assertIn(f"\nvllm:{name}{{{labels}}} ", page)
        self.assertIn(f'vllm:request_success_total{{{labels},finished_reason="length"}}', page)
        self.assertNotIn("lssar_num_requests_running", page)
        self.assertIn("lssar_build_info", page)


if __name__ == "__main__":
    unittest.main(verbosity=2)
