"""The web page in headless Chromium: type, stream, stop, hover, draw, and every error state.

Run by ctest from the repository's root with LSSAR_SERVER and LSSAR_SCREENSHOTS set. Needs Debian's
chromium, chromium-driver, python3-matplotlib and python3-selenium.
"""

import json
import math
import os
import pathlib
import re
import signal
import statistics
import tempfile
import time
import unittest
from typing import Any, Callable

import matplotlib.image
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from http_fixture import Server

SCREENSHOTS = pathlib.Path(os.environ["LSSAR_SCREENSHOTS"])
WAIT_S = 180  # only a hang reaches it
LAYERS, HEADS = 6, 4  # of the shipped model
LSSAR, SOFTMAX = "models/zoo/twins/lssar", "models/zoo/twins/softmax"
NON_ASCII = "Mañana, 日本 und 🦙!"  # most of its characters are several tokens

server: Server
browser: webdriver.Chrome


def start_browser() -> webdriver.Chrome:
    options = webdriver.ChromeOptions()
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-proxy-server",
        "--window-size=1200,1000",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(service=Service("/usr/bin/chromedriver"), options=options)


def setUpModule() -> None:
    global server, browser
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    server = Server()
    browser = start_browser()


def tearDownModule() -> None:
    browser.quit()
    assert server.stop() == 0


class Page(unittest.TestCase):
    """Helpers; each test opens the page anew."""

    def open(self, address: str | None = None, view: str = "write", ready: bool = True) -> None:
        browser.get("about:blank")
        browser.get_log("browser")  # forgets what earlier tests logged
        browser.get(f"http://{address or server.http_address}/#{view}")
        if ready:
            self.until(lambda: self.text("model-name") == "lssar-6m")

    def find(self, name: str) -> Any:
        return browser.find_element(By.ID, name)

    def all(self, selector: str) -> list[Any]:
        return browser.find_elements(By.CSS_SELECTOR, selector)

    def text(self, name: str) -> str:
        return self.find(name).text

    def run_script(self, script: str, *arguments: Any) -> Any:
        return browser.execute_script(script, *arguments)

    def set(self, name: str, value: Any) -> None:
        self.run_script("document.getElementById(arguments[0]).value = arguments[1]", name, value)

    def choose(self, name: str, value: str) -> None:
        browser.find_element(By.CSS_SELECTOR, f"input[name={name}][value={value}]").click()

    def until(self, condition: Callable[[], Any], seconds: float = WAIT_S) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                self.fail(
                    f"not within {seconds} s; the page says:\n"
                    f"{browser.find_element(By.TAG_NAME, 'body').text}"
                )
            time.sleep(0.05)

    def generate(self, prompt: str, **fields: Any) -> str:
        """Runs the Write form; the status line when it is done."""
        self.set("prompt", prompt)
        for name, value in fields.items():
            self.set(f"field-{name}", value)
        self.set("write-status", "")
        self.run_script("document.getElementById('write-status').textContent = ''")
        self.find("generate").click()
        self.until(lambda: self.text("write-status") and self.find("generate").is_enabled())
        return self.text("write-status")

    def screenshot(self, name: str) -> None:
        browser.save_screenshot(str(SCREENSHOTS / f"{name}.png"))

    def shown(self, selector: str) -> str:
        """The text of a node as it is, also where it is not in view."""
        return self.run_script(
            "return document.querySelector(arguments[0]).textContent", selector
        )

    def download(self, selector: str) -> pathlib.Path:
        """Clicks a button that makes a file; the file."""
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        browser.execute_cdp_cmd(
            "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(folder)}
        )
        browser.find_element(By.CSS_SELECTOR, selector).click()
        done = re.compile(r"\.(png|json)$")
        self.until(lambda: any(done.search(file.name) for file in folder.iterdir()))
        [file] = folder.iterdir()
        return file

    def console_errors(self, allowed: str = "$^") -> list[str]:
        return [
            entry["message"]
            for entry in browser.get_log("browser")
            if entry["level"] == "SEVERE" and not re.search(allowed, entry["message"])
        ]


class WriteTest(Page):
    def test_streams_text_with_probabilities_and_repeats_it_with_the_same_seed(self) -> None:
        self.open()
        status = self.generate("The old house", max_tokens=24, seed=7)
        self.assertRegex(status, r"\d+ \+ 24 tokens, first after .* seed 7$")
        spans = self.all(".choice .token")
        self.assertEqual(len(spans), 24)
        self.assertTrue(
            all(re.search(r"\bp[0-5]\b", span.get_attribute("class")) for span in spans)
        )
        first = self.run_script("return document.querySelector('.choice .text').textContent")
        self.assertTrue(first.startswith("The old house"))
        # The server's own answer to the same request.
        answer = server.post(
            "/v1/completions",
            {"prompt": "The old house", "max_tokens": 24, "seed": 7, "temperature": 0.8},
        )
        self.assertEqual(first, "The old house" + answer["choices"][0]["text"])
        self.set("field-seed", "")
        self.find("again").click()
        self.until(lambda: self.find("again").is_enabled())
        self.assertEqual(
            self.run_script("return document.querySelector('.choice .text').textContent"), first
        )
        self.screenshot("write")
        self.assertEqual(self.console_errors(), [])

    def test_a_token_shows_its_alternatives_to_pointer_and_keyboard(self) -> None:
        self.open()
        self.generate("The old house", max_tokens=8, seed=1)
        span = self.all(".choice .token")[2]
        webdriver.ActionChains(browser).move_to_element(span).perform()
        self.until(lambda: self.find("card").is_displayed())
        # The five best, and the token itself where it is none of them.
        self.assertIn(len(self.all("#card tr")), (5, 6))
        shares = [float(cell.text.rstrip("%")) for cell in self.all("#card td:nth-child(2)")]
        self.assertEqual(shares, sorted(shares, reverse=True))
        self.screenshot("alternatives")
        text = browser.find_element(By.CSS_SELECTOR, ".choice .text")
        self.run_script("arguments[0].focus()", text)
        text.send_keys(Keys.ESCAPE)
        self.until(lambda: not self.find("card").is_displayed())
        text.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
        self.assertEqual(self.all(".choice .token.current"), [self.all(".choice .token")[1]])

    def test_stop_ends_the_request_on_the_server(self) -> None:
        self.open()
        self.set("prompt", "The old house")
        self.set("field-max_tokens", 8000)
        self.set("field-min_tokens", 8000)
        self.find("generate").click()
        self.until(lambda: len(self.all(".choice .token")) > 20)
        self.find("stop").click()
        self.until(lambda: self.text("write-status") == "Stopped.")
        server.wait_until_idle()
        self.assertFalse(self.find("stop").is_enabled())

    def test_choices_stand_side_by_side(self) -> None:
        self.open()
        self.generate("The old house", max_tokens=12, n=3, seed=5)
        boxes = self.all(".choice")
        self.assertEqual(len(boxes), 3)
        self.assertEqual(len({box.rect["y"] for box in boxes}), 1)
        self.assertEqual(len({box.text for box in boxes}), 3)

    def test_controls_have_the_servers_limits(self) -> None:
        self.open()
        limits = {
            name: (
                self.find(f"field-{name}").get_attribute("min"),
                self.find(f"field-{name}").get_attribute("max"),
            )
            for name in ("temperature", "max_tokens", "n", "frequency_penalty")
        }
        self.assertEqual(
            limits,
            {
                "temperature": ("0", "100"),
                "max_tokens": ("0", "16384"),
                "n": ("1", "16"),
                "frequency_penalty": ("-2", "2"),
            },
        )
        # The panel is closed: a value in it that cannot be sent is named, and can be seen.
        panel = browser.find_element(By.CSS_SELECTOR, "#view-write details")
        self.assertIsNone(panel.get_attribute("open"))
        self.set("field-max_tokens", 99999)
        self.find("generate").click()
        self.until(lambda: self.text("write-status").startswith("Tokens: "), 20)
        self.assertIsNotNone(panel.get_attribute("open"))
        self.assertEqual(browser.switch_to.active_element.get_attribute("id"), "field-max_tokens")
        self.assertIn("tokens, first after", self.generate("x", max_tokens=2))
        # JSON's numbers here are exact to 2^53 - 1: beyond, another seed would be sent.
        self.set("field-max_tokens", 4)
        self.set("field-seed", "9007199254740993")
        self.set("write-status", "")
        self.find("generate").click()
        self.until(lambda: self.text("write-status").startswith("Seed: "), 20)
        self.set("field-seed", "")
        # Above the browser's own check, the server's error is shown.
        self.run_script("document.getElementById('write-form').noValidate = true")
        self.assertIn("temperature is 101", self.generate("x", temperature=101))

    def test_chats_and_keeps_the_history(self) -> None:
        self.open()
        self.choose("mode", "chat")
        self.generate("Hello", max_tokens=8, seed=3)
        self.generate("And you?", max_tokens=8, seed=3)
        roles = [node.text for node in self.all("#chat-history b")]
        self.assertEqual(roles, ["user", "assistant"] * 2)
        # The last answer stands next to the box, with its probabilities, and nowhere else.
        answers = self.all("#chat-history .answer")
        self.assertEqual(len(answers[1].find_elements(By.CSS_SELECTOR, ".token[class*=p]")), 8)
        bottom = answers[1].rect["y"] + answers[1].rect["height"]
        self.assertLess(self.find("prompt").rect["y"] - bottom, 60)
        self.assertFalse(self.find("choices").is_displayed())
        self.screenshot("chat")
        # The server is sent what the page shows.
        messages = []
        for said, node in zip(("Hello", "And you?"), answers):
            messages.append({"role": "user", "content": said})
            answer = server.post("/v1/chat/completions", {
                "messages": messages, "max_tokens": 8, "seed": 3, "temperature": 0.2})
            messages.append(answer["choices"][0]["message"])
            text = node.find_element(By.CSS_SELECTOR, ".text").get_attribute("textContent")
            # A stop marker has its probability; it is no part of the text.
            self.assertEqual(text.removesuffix("·"), messages[-1]["content"])
        self.find("clear-chat").click()
        self.assertEqual(self.all("#chat-history *"), [])
        # A temperature of one's own stays.
        self.choose("mode", "text")
        self.assertEqual(self.find("field-temperature").get_attribute("value"), "0.8")
        self.set("field-temperature", "0.5")
        self.choose("mode", "chat")
        self.assertEqual(self.find("field-temperature").get_attribute("value"), "0.5")

    def test_what_is_past_the_end_of_a_text_is_not_shown(self) -> None:
        self.open()
        self.generate("The old house", max_tokens=30, temperature=0, stop="e")
        self.assertIn("stopped at", self.shown(".choice h3"))
        shown = self.shown(".choice .text")
        self.find("to-score").click()
        scored = self.find("score-text").get_attribute("value")
        self.assertEqual(shown.rstrip("·"), scored)
        self.assertNotIn("e", scored.removeprefix("The old house"))

    def test_a_stopped_answer_goes_back_as_it_was_received(self) -> None:
        """Not as it was drawn: with tokens that the server still looked for a stop string in."""
        self.open()
        self.choose("mode", "chat")
        self.run_script("""
            const reply = (text, token) => `data: ${JSON.stringify({ choices: [{ index: 0,
              delta: { content: text },
              logprobs: { content: [{ token, logprob: -1, top_logprobs: [] }] } }] })}\n\n`;
            window.bodies = [];
            window.fetch = (path, { body, signal }) => {
              window.bodies.push(JSON.parse(body));
              return Promise.resolve(new Response(new ReadableStream({ start(controller) {
                signal.addEventListener("abort", () => controller.error(signal.reason));
                for (const [text, token] of [["Yes", "Yes"], [" t", " the"], ["", "<|user|>"]]) {
                  controller.enqueue(new TextEncoder().encode(reply(text, token)));
                }
              } })));
            };""")
        for message in "Hello", "And you?":
            self.set("prompt", message)
            self.find("generate").click()
            self.until(lambda: len(self.all("#chat-history .answer:last-child .token")) == 3)
            self.find("stop").click()
            self.until(lambda: self.text("write-status") == "Stopped.")
            self.assertEqual(self.shown("#chat-history .answer:last-child .text"), "Yes t·")
        self.assertEqual(
            [message["content"] for message in self.run_script("return window.bodies[1].messages")],
            ["Hello", "Yes t", "And you?"],
        )

    def test_a_stopped_answer_stays_in_the_conversation(self) -> None:
        self.open()
        self.choose("mode", "chat")
        self.set("prompt", "Hello")
        self.set("field-max_tokens", 8000)
        self.set("field-min_tokens", 8000)
        self.find("generate").click()
        self.until(lambda: len(self.all("#chat-history .token")) > 5)
        self.find("stop").click()
        self.until(lambda: self.text("write-status") == "Stopped.")
        self.assertEqual(len(self.all("#chat-history .answer")), 1)
        # Nothing was written: the message is in the box again.
        self.run_script("window.fetch = () => Promise.resolve("
                        "Response.json({ error: { message: 'no' } }, { status: 400 }))")
        self.assertEqual(self.generate("Again"), "no")
        self.assertEqual(self.find("prompt").get_attribute("value"), "Again")
        self.assertEqual(len(self.all("#chat-history .answer")), 1)

    def test_again_after_a_stop_repeats_the_text_that_was_stopped(self) -> None:
        self.open()
        self.generate("The old house", max_tokens=4, seed=7)
        self.run_script("""
            const ask = window.fetch;
            window.seeds = [];
            window.fetch = (path, options) => {
              if (options?.body) window.seeds.push(JSON.parse(options.body).seed);
              return ask(path, options);
            };""")
        for name, value in (("max_tokens", 8000), ("min_tokens", 8000), ("seed", 9)):
            self.set(f"field-{name}", value)
        self.find("generate").click()
        self.until(lambda: self.all(".choice .token"))
        self.find("stop").click()
        self.until(lambda: self.text("write-status") == "Stopped.")
        for name, value in (("max_tokens", 4), ("min_tokens", 4), ("seed", "")):
            self.set(f"field-{name}", value)
        self.find("again").click()
        self.until(lambda: self.text("write-status").endswith("seed 9"))
        self.assertEqual(self.run_script("return window.seeds"), [9, 9])

    def test_a_refused_message_leaves_what_was_typed_since(self) -> None:
        self.open()
        self.choose("mode", "chat")
        self.run_script("""
            window.fetch = () => new Promise((resolve) => { window.refuse = () => resolve(
              Response.json({ error: { message: "no" } }, { status: 400 })); });""")
        self.set("prompt", "Hello")
        self.find("generate").click()
        self.until(lambda: self.all("#chat-history .answer"))
        self.find("prompt").send_keys("And then?")
        self.run_script("window.refuse()")
        self.until(lambda: self.text("write-status") == "no")
        self.assertEqual(self.find("prompt").get_attribute("value"), "Hello\nAnd then?")

    def test_a_conversation_follows_the_answer_only_from_its_end(self) -> None:
        self.open()
        self.choose("mode", "chat")
        self.run_script("""
            window.fetch = () => Promise.resolve(new Response(new ReadableStream({ start(stream) {
              window.send = (count) => {
                const event = `data: ${JSON.stringify({ choices: [{ index: 0,
                  delta: { content: "a\\n" },
                  logprobs: { content: [{ token: "a\\n", logprob: -1, top_logprobs: [] }] } }] })}`;
                stream.enqueue(new TextEncoder().encode(`${event}\n\n`.repeat(count)));
              };
            } })));""")
        place = lambda: self.run_script("""
            const { scrollTop, clientHeight, scrollHeight } =
              document.getElementById("chat-history");
            return [scrollTop, scrollHeight - clientHeight - scrollTop];""")

        def send(count: int) -> None:
            before = len(self.all("#chat-history .token"))
            self.run_script("window.send(arguments[0])", count)
            self.until(lambda: len(self.all("#chat-history .token")) == before + count)
            browser.execute_async_script(  # two frames
                "requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")

        self.set("prompt", "Hello")
        self.find("generate").click()
        self.until(lambda: self.run_script("return Boolean(window.send)"))
        send(100)
        self.assertGreater(place()[0], 500)
        self.assertLess(place()[1], 3)
        history = "document.getElementById('chat-history')"
        self.run_script(f"{history}.scrollTop = 100")
        send(5)
        self.assertEqual(place()[0], 100)
        self.run_script(f"{history}.scrollTop = {history}.scrollHeight")
        send(5)
        self.assertLess(place()[1], 3)

    def test_says_what_the_model_is(self) -> None:
        self.open()
        self.assertEqual(
            self.text("about"),
            "lssar-6m is a language model of 5.8 million parameters: 6 layers of 4 heads with "
            "LSSAR (p = 15) attention, trained on texts of 1,024 tokens, served up to 16,384 "
            "(fp16 on cpu). It continues texts and, by its chat template, answers messages.")

    def test_text_is_never_html(self) -> None:
        self.open()
        attack = (
            "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
        )
        self.generate(attack, max_tokens=4, seed=1)
        self.assertEqual(self.all("#choices img, #choices script"), [])
        self.find("to-score").click()
        self.until(lambda: self.all("#score-result figure"))
        self.assertEqual(self.all("#score-result img, #score-result script"), [])
        self.assertEqual(browser.title, "lssar-6m - lssar")
        # Nor does an inline script run: the policy forbids it.
        self.run_script(
            "const s = document.createElement('script'); "
            "s.textContent = \"document.title = 'owned'\"; "
            "document.body.append(s)"
        )
        self.assertEqual(browser.title, "lssar-6m - lssar")
        self.assertTrue(any("Content Security Policy" in line for line in self.console_errors()))


class ScoreTest(Page):
    def test_scores_continuations(self) -> None:
        self.open(view="score")
        self.choose("what", "continuations")
        self.find("score").click()
        self.until(lambda: self.all("#score-result table"))
        cells = [cell.text for cell in self.all("#score-result tbody td:nth-child(2)")]
        answer = server.post(
            "/v1/score",
            {
                "items": [
                    {
                        "context": "The President of the United",
                        "continuations": [" States", " Kingdom"],
                    }
                ]
            },
        )
        expected = [one["logprob"] for one in answer["data"][0]["continuations"]]
        self.assertEqual(
            [float(cell) for cell in cells], [float(f"{value:.4g}") for value in expected]
        )
        self.screenshot("score_continuations")

    def test_draws_the_loss_of_a_text_by_position(self) -> None:
        self.open(view="score")
        text = pathlib.Path("README.md").read_text(encoding="utf-8")[:6000]
        self.set("score-text", text)
        self.find("score").click()
        self.until(lambda: self.all("#score-result svg.plot path.series"))
        answer = server.post("/v1/score", {"items": [{"continuations": [text]}]})["data"][0][
            "continuations"
        ][0]
        self.assertIn(
            f"{answer['num_tokens']} tokens, "
            f"{-answer['logprob'] / answer['num_tokens']:.4g} nats a token",
            self.shown("#score-result .summary"),
        )
        self.assertEqual(len(self.all("#score-result .token")), answer["num_tokens"])
        self.screenshot("score_text")
        self.assertEqual(self.console_errors(), [])


    def test_a_text_replaces_the_one_that_is_scored_and_stop_ends_it(self) -> None:
        self.open(view="score")
        self.run_script("""
            const ask = window.fetch;
            window.aborted = [];
            window.fetch = (path, options) => {
              const [text] = path === "v1/score" ? JSON.parse(options.body).items[0].continuations
                : [""];
              if (!text.startsWith("Slow")) return ask(path, options);
              return new Promise((_, reject) => options.signal.addEventListener("abort", () => {
                window.aborted.push(text);
                reject(options.signal.reason);
              }));
            };""")
        self.set("score-text", "Slow one.")
        self.find("score").click()
        self.until(lambda: self.text("score-status") == "Scoring…")
        self.find("tab-write").click()
        self.generate("Second", max_tokens=4, seed=1)
        self.find("to-score").click()
        self.until(lambda: " tokens in " in self.text("score-status"))
        self.assertEqual(self.run_script("return window.aborted"), ["Slow one."])
        self.assertEqual(self.shown("#score-result .text").strip(),
                         self.find("score-text").get_attribute("value").strip())
        self.assertFalse(self.find("score-stop").is_enabled())
        self.set("score-text", "Slow two.")
        self.find("score").click()
        self.find("score-stop").click()
        self.until(lambda: self.text("score-status") == "Stopped.")
        self.assertFalse(self.find("score-stop").is_enabled())
        self.assertEqual(self.run_script("return window.aborted"), ["Slow one.", "Slow two."])


class TokensTest(Page):
    """Characters that are several tokens, and the card of a token."""

    def score_readme(self) -> None:
        self.open(view="score")
        self.set("score-text", pathlib.Path("README.md").read_text(encoding="utf-8")[:6000])
        self.find("score").click()
        self.until(lambda: self.all("#score-result .token"))

    def test_the_card_is_in_view_and_describes_the_token(self) -> None:
        self.score_readme()
        text = browser.find_element(By.CSS_SELECTOR, "#score-result .text")
        self.run_script("arguments[0].scrollIntoView(); "
                        "arguments[0].focus({ preventScroll: true })", text)
        # A pointer that rests there, while the text scrolls under it, points at nothing.
        webdriver.ActionChains(browser).move_to_element(text).perform()
        places = """
            const box = (node) => node.getBoundingClientRect();
            const card = box(document.getElementById("card"));
            const token = box(document.querySelector(".token.current"));
            return [card.top, card.bottom, token.top, token.bottom, window.innerHeight];"""
        above = []
        for _ in range(60):
            text.send_keys(Keys.ARROW_DOWN)
            top, bottom, token_top, token_bottom, height = self.run_script(places)
            self.assertGreaterEqual(top, 0)
            self.assertLessEqual(bottom, height)
            self.assertTrue(bottom <= token_top or top >= token_bottom)
            above.append(bottom <= token_top)
        self.assertIn(True, above)
        current = browser.find_element(By.CSS_SELECTOR, ".token.current")
        self.assertEqual(text.get_attribute("aria-activedescendant"), current.get_attribute("id"))
        self.assertEqual(text.get_attribute("aria-describedby"), "card")
        text.send_keys(Keys.ESCAPE)
        self.assertIsNone(text.get_attribute("aria-activedescendant"))
        self.assertIsNone(text.get_attribute("aria-describedby"))

    def test_the_card_stays_after_a_tap(self) -> None:
        touch = lambda kind, *points: browser.execute_cdp_cmd(
            "Input.dispatchTouchEvent", {"type": kind, "touchPoints": list(points)})
        self.score_readme()
        browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": True})
        try:
            x, y = self.run_script("""
                const token = document.querySelectorAll("#score-result .token")[30];
                token.scrollIntoView({ block: "center" });
                const { left, top, width, height } = token.getClientRects()[0];
                return [left + width / 2, top + height / 2];""")
            self.run_script("""
                window.taps = 0;
                document.addEventListener("click", () => { ++window.taps; });""")
            touch("touchStart", {"x": x, "y": y})
            touch("touchEnd")
            self.until(lambda: self.run_script("return window.taps") == 1)
            self.assertTrue(self.find("card").is_displayed())
        finally:
            browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": False})

    def test_parts_of_characters_are_joined(self) -> None:
        self.open(view="score")
        self.set("score-text", NON_ASCII)
        self.find("score").click()
        self.until(lambda: self.all("#score-result .token"))
        [item] = server.post("/v1/score", {"items": [{"continuations": [NON_ASCII]}],
                                           "logprobs": 0})["data"]
        pieces = [each["token"] for each in item["continuations"][0]["logprobs"]["content"]]
        self.assertTrue(any(piece.startswith("bytes:") for piece in pieces))
        self.assertEqual(len(self.all("#score-result .token")), len(pieces))
        self.assertEqual(self.shown("#score-result .text").lstrip(), NON_ASCII)
        at = next(i for i, piece in enumerate(pieces) if piece == "bytes:\\xb1")
        part = self.all("#score-result .token")[at]
        self.assertGreater(part.rect["width"], 2)  # it can be pointed at
        webdriver.ActionChains(browser).move_to_element(part).perform()
        self.until(lambda: self.find("card").is_displayed())
        self.assertTrue(self.text("card").startswith("ñ‹B1›"), self.text("card"))
        self.screenshot("parts_of_characters")

    def test_every_way_that_bytes_are_cut(self) -> None:
        self.open()
        for pieces, shown, names in (
            (["ma", r"bytes:\xc3", r"bytes:\xb1", "a"], ["ma", "ñ", "", "a"],
             ["ma", "ñ‹C3›", "ñ‹B1›", "a"]),
            ([r"bytes:\xc3", r"bytes:\xb1\x61"], ["ñ", "a"], ["ñ‹C3›", "ñ‹B1 61›"]),
            ([r"bytes:\x61\xf0\x9f", r"bytes:\xa6", r"bytes:\x99\x62"], ["a🦙", "", "b"],
             ["🦙‹61 F0 9F›", "🦙‹A6›", "🦙‹99 62›"]),
            ([r"bytes:\xe6\x97", r"bytes:\xa5\xe6", r"bytes:\x9c\xac"], ["日", "本", ""],
             ["日‹E6 97›", "日本‹A5 E6›", "本‹9C AC›"]),
            # No characters at all.
            ([r"bytes:\xc3", "a"], ["\ufffd", "a"], ["‹C3›", "a"]),
            ([r"bytes:\xb1", r"bytes:\xc3"], ["\ufffd", "\ufffd"], ["‹B1›", "‹C3›"]),
            ([r"bytes:\xe6\x97", r"bytes:\xc3\xb1"], ["\ufffd", "ñ"], ["‹E6 97›", "ñ‹C3 B1›"]),
            # A text that only looks like one.
            (["bytes:", r"bytes:\xzz", " a\n"], ["bytes:", r"bytes:\xzz", " a\n"],
             ["bytes:", r"bytes:\xzz", "␣a↵"]),
        ):
            got = browser.execute_async_script(
                """
                const [pieces, done] = arguments;
                import("./web/tokens.js").then(({ Characters, tokenNames }) => {
                  const characters = new Characters();
                  for (const piece of pieces) characters.add(piece);
                  done([characters.shown, tokenNames(pieces)]);
                });""", pieces)
            self.assertEqual(got, [shown, names], pieces)

    def test_maps_have_whole_characters(self) -> None:
        self.open(view="attention")
        self.set("attention-text", NON_ASCII)
        self.find("see").click()
        self.until(lambda: " tokens in " in self.text("attention-status"))
        self.assertEqual(self.shown(".arced .text").removeprefix("</s>").lstrip(), NON_ASCII)
        names = [node.text for node in self.all(".axes text.key")]
        self.assertIn("ñ‹C3›", names)
        self.assertFalse([name for name in names if "bytes:" in name])


class AttentionTest(Page):
    def see(self, text: str) -> None:
        self.set("attention-text", text)
        self.run_script("document.getElementById('attention-status').textContent = ''")
        self.find("see").click()
        self.until(lambda: " tokens in " in self.text("attention-status"))

    def test_draws_maps_and_where_a_token_looked(self) -> None:
        self.open(view="attention")
        self.see("The cat sat on the mat. The cat sat on the mat.")
        maps = self.all(".maps button")
        self.assertEqual(len(maps), LAYERS * HEADS)
        # It opens at the last layer.
        self.assertEqual([i for i, each in enumerate(maps)
                          if each.get_attribute("aria-pressed") == "true"], [(LAYERS - 1) * HEADS])
        maps[2 * HEADS + 1].click()
        self.until(lambda: maps[2 * HEADS + 1].get_attribute("aria-pressed") == "true")
        self.assertIn("Layer 2, head 1", maps[2 * HEADS + 1].get_attribute("aria-label"))
        tokens = self.all("#attention-result .token")
        webdriver.ActionChains(browser).move_to_element(tokens[8]).perform()
        self.until(lambda: "Token 8 looks at" in self.find("attention-result").text)
        answer = server.post(
            "/v1/attention",
            {
                "prompt": "The cat sat on the mat. The cat sat on the mat.",
                "layers": [2],
                "heads": [1],
                "rows": [8],
            },
        )
        row = answer["rows"][0]
        self.assertIn(
            f"looks at {row['num_nonzero']} of 9 keys", self.find("attention-result").text
        )
        self.assertEqual(len(self.all("svg.arcs path")), min(24, row["num_nonzero"]))
        # Arcs over the text go to every key but the token itself; the same keys are underlined.
        others = [(key, weight) for key, weight in zip(row["keys"], row["weights"]) if key != 8]
        self.assertEqual(len(self.all("svg.over path")), len(others))
        seen = self.run_script(
            "return [...document.querySelectorAll('.arced .token')].flatMap("
            "(token, i) => token.classList.contains('seen') ? [i] : [])"
        )
        self.assertEqual(
            seen, sorted(key for key, weight in zip(row["keys"], row["weights"]) if weight >= 0.01)
        )
        self.screenshot("attention")
        self.assertEqual(self.console_errors(), [])
        self.assertFalse(
            self.find("compare").is_displayed()
        )  # this server allows no other function

    def test_the_large_map_is_a_figure(self) -> None:
        text = "The cat sat on the mat."
        self.open(view="attention")
        self.see(text)
        pieces = server.post("/tokenize", {"prompt": text, "return_token_strs": True})
        names = [piece.replace(" ", "␣") for piece in pieces["token_strs"]]
        self.assertEqual(self.shown(".axes .title"), "lssar-6m, lssar p=15: layer 5, head 0")
        for axis in ("line", "key"):
            shown = [node.text for node in self.all(f".axes text.{axis}")]
            self.assertEqual(shown, names, axis)
        self.assertEqual([node.text for node in self.all(".axes text.axis")],
                         ["query token", "key"])
        box = browser.find_element(By.CSS_SELECTOR, "canvas.large").rect
        self.assertAlmostEqual(box["width"], box["height"], delta=1)
        frame = browser.find_element(By.CSS_SELECTOR, ".map").rect
        for node in self.all(".axes text"):
            place = node.rect
            self.assertGreaterEqual(place["x"], frame["x"] - 1, node.text)
            self.assertLessEqual(place["x"] + place["width"], frame["x"] + frame["width"] + 1,
                                 node.text)
            self.assertLessEqual(place["y"] + place["height"], frame["y"] + frame["height"] + 1,
                                 node.text)
        self.screenshot("large_map")

        picture = self.download("button[data-file=png]")
        self.assertEqual(picture.name, "lssar-6m-lssar_p=15-layer_5_head_0.png")
        pixels = matplotlib.image.imread(picture)
        self.assertGreater(min(pixels.shape[:2]), 1000)
        self.assertEqual(list(pixels[0, 0, :3]), [1, 1, 1])
        # The first token looks at itself alone: a square of the brightest colour.
        bright = (abs(pixels[..., :3] - [253 / 255, 231 / 255, 37 / 255]).max(axis=-1) < 0.01)
        self.assertGreater(bright.sum(), (1100 / len(names)) ** 2 * 0.9)

        document = json.loads(self.download("button[data-file=json]").read_text("utf-8"))
        answer = server.post("/v1/attention", {
            "prompt": text, "layers": [5], "heads": [0], "rows": list(range(len(names))),
            "top_k": 256})
        self.assertEqual(document["rows"], answer["rows"])
        zero = statistics.fmean(row["num_zero"] / (row["row"] + 1) for row in answer["rows"])
        self.assertIn(f"{100 * zero:.{1 if zero >= 0.1 else 2}f}% of the keys zero, ",
                      self.shown("#attention-result section > p[role=status]"))
        self.assertEqual([token["id"] for token in document["tokens"]], pieces["tokens"])
        self.assertEqual([token["piece"] for token in document["tokens"]], pieces["token_strs"])
        self.assertEqual((document["attention"], document["model"]), ("lssar p=15", "lssar-6m"))
        self.assertEqual(self.console_errors(), [])

    def test_all_heads_of_a_layer_stand_side_by_side(self) -> None:
        self.open(view="attention")
        self.see("The cat sat on the mat.")
        heads = lambda: self.all(".heads button")
        layer = [f"Layer 5, head {head}" for head in range(HEADS)]
        labels = [button.get_attribute("aria-label").split(":")[0] for button in heads()]
        self.assertEqual(labels, layer)
        self.assertEqual(len({button.rect["y"] for button in heads()}), 1)
        self.assertGreater(heads()[0].rect["width"], 120)
        heads()[2].click()
        self.until(lambda: "layer 5, head 2" in self.shown(".axes .title"))
        self.assertEqual(self.all(".maps button")[5 * HEADS + 2].get_attribute("aria-pressed"),
                         "true")
        self.all(".maps button")[HEADS + 3].click()
        self.until(lambda: "Layer 1, head 0" in heads()[0].get_attribute("aria-label"))
        self.assertEqual(heads()[3].get_attribute("aria-pressed"), "true")

    def test_two_functions_stand_side_by_side(self) -> None:
        other = Server("--allow-attention-override")
        text = "The cat sat on the mat. The cat sat"
        looks = []
        try:
            self.open(other.http_address, view="attention")
            self.until(lambda: self.find("compare").is_displayed())
            self.set("compare-p", 3)
            self.see(text)
            boxes = self.all("#attention-result section")
            titles = [box.find_element(By.TAG_NAME, "h2").text for box in boxes]
            self.assertEqual(titles, ["lssar p=15 (the checkpoint's)", "lssar p=3"])
            self.assertEqual(boxes[0].rect["y"], boxes[1].rect["y"])
            self.assertEqual(len(self.all(".maps button")), 2 * LAYERS * HEADS)
            self.all(".maps button")[5].click()  # in one of them chooses in both
            pressed = [button.get_attribute("aria-pressed") for button in self.all(".maps button")]
            self.assertEqual(
                [i for i, each in enumerate(pressed) if each == "true"], [5, LAYERS * HEADS + 5]
            )
            ask = {"prompt": text, "layers": [1], "heads": [1], "rows": [-1]}
            for override in ({}, {"attention_override": {"p": 3}}):
                [row] = other.post("/v1/attention", {**ask, **override})["rows"]
                looks.append(f"looks at {row['num_nonzero']} of {row['row'] + 1} keys; "
                             f"effective keys {math.exp(row['entropy']):.4g}.")
            self.assertNotEqual(looks[0], looks[1])
            self.until(lambda: all(look in box.text for look, box in zip(looks, boxes)))
            self.screenshot("attention_compared")
            self.set("compare-kind", "softmax")
            self.set("compare-p", "")
            self.see(text)
            self.assertEqual(self.all("#attention-result h2")[1].text, "softmax")
            self.assertEqual(self.console_errors(), [])
        finally:
            self.assertEqual(other.stop(), 0)

    def test_a_refused_capture_offers_fewer_rows(self) -> None:
        self.open(view="attention")
        self.run_script("""
            const ask = window.fetch;
            window.param = "layers";  // what the server names
            window.fetch = (path, options) => {
              const rows = path === "v1/attention" ? JSON.parse(options.body).rows.length : 0;
              if (rows <= 16) return ask(path, options);
              const error = { message: `${rows} rows are too many`, param: window.param };
              return Promise.resolve(Response.json({ error }, { status: 400 }));
            };""")
        self.set("attention-text", "a b c d e f g h " * 10)
        self.find("see").click()
        self.until(
            lambda: self.text("attention-status") == "64 rows are too many Try with 16 rows a map"
        )
        self.screenshot("capture_refused")
        browser.find_element(By.CSS_SELECTOR, "#attention-status button").click()
        self.until(lambda: len(self.all(".maps button")) == LAYERS * HEADS)
        # Other errors stay with fewer rows.
        self.run_script("window.param = 'prompt'")
        self.find("see").click()
        self.until(lambda: self.text("attention-status") == "64 rows are too many")

    def test_a_pointer_waits_for_the_maps(self) -> None:
        self.open(view="attention")
        self.run_script("""
            const ask = window.fetch;
            const begun = new Promise((resolve) => { window.begin = resolve; });
            window.fetch = async (path, options) => {
              if (path === "v1/attention") await begun;
              return ask(path, options);
            };""")
        self.find("see").click()
        self.until(lambda: self.all(".arced .token"))
        for selector in ".arced .token", "canvas.large":
            node = browser.find_element(By.CSS_SELECTOR, selector)
            webdriver.ActionChains(browser).move_to_element(node).perform()
        self.assertEqual(self.text("attention-status"), "Computing…")
        self.run_script("window.begin()")
        self.until(lambda: " tokens in " in self.text("attention-status"))
        self.assertEqual(self.console_errors(), [])

    def test_a_long_prompt_stays_usable(self) -> None:
        self.open(view="attention")
        corpus = pathlib.Path("README.md").read_text(encoding="utf-8")
        self.see(corpus[:6200])
        self.assertEqual(len(self.all(".maps button")), LAYERS * HEADS)
        self.assertRegex(
            self.text("attention-status"),
            r"^[34]\d\d\d tokens in .*; each small map shows 64 rows$",
        )
        self.assertEqual(len(self.all("#attention-result .token")), 3000)
        large = browser.find_element(By.CSS_SELECTOR, "canvas.large")
        self.assertIn("64 rows", large.get_attribute("aria-label"))
        self.all(".maps button")[5].click()
        self.until(
            lambda: re.search("layer 1, head 1: 256 rows", large.get_attribute("aria-label"))
        )


class SecondServerTest(Page):
    """LSSAR beside softmax: two servers, each of which lists the other."""

    def add(self, address: str, key: str = "") -> None:
        self.find("second-button").click()
        self.set("second-address", f"http://{address}")
        self.set("second-key", key)
        self.run_script("document.getElementById('second-error').textContent = ''")
        browser.find_element(By.CSS_SELECTOR, "#second-form button[type=submit]").click()
        self.until(lambda: self.text("second-error")
                   or not self.find("second-dialog").is_displayed())

    def test_twins(self) -> None:
        keys = self.enterContext(tempfile.NamedTemporaryFile("w", suffix=".toml"))
        keys.write('[alice]\nkey = "a-long-and-secret-key-0123456789"\n')
        keys.flush()
        first = Server("--http-cors-origins", "*", model=LSSAR)
        self.addCleanup(first.stop)
        other = Server("--http-cors-origins", f"http://{first.http_address}",
                       "--api-keys", keys.name, model=SOFTMAX)
        self.addCleanup(other.stop)
        key = {"Authorization": "Bearer a-long-and-secret-key-0123456789"}
        self.open(first.http_address, view="attention", ready=False)
        self.until(lambda: self.text("model-name") == "lssar")
        self.add(other.http_address)
        self.assertIn(f"http://{other.http_address}: ", self.text("second-error"))
        self.assertIn("key", self.text("second-error"))
        browser.find_element(By.CSS_SELECTOR, "#second-dialog").send_keys(Keys.ESCAPE)
        self.console_errors()  # the 401
        self.add(other.http_address, "a-long-and-secret-key-0123456789")
        self.assertEqual(self.text("model-name"), "lssar beside softmax")
        self.assertIn("4 heads with softmax attention", self.text("about"))
        self.screenshot("second_server")

        text = "The key is 71432. Remember it. The key is"
        self.set("attention-text", text)
        self.find("see").click()
        self.until(lambda: " tokens in " in self.text("attention-status"))
        boxes = self.all("#attention-result section")
        titles = [box.find_element(By.TAG_NAME, "h2").text for box in boxes]
        self.assertEqual(titles, ["lssar p=15 (the checkpoint's)",
                                  f"softmax of softmax at http://{other.http_address}"])
        ask = {"prompt": text, "layers": [5], "heads": [0], "rows": [-1]}
        for box, one, headers in zip(boxes, (first, other), ({}, key)):
            [row] = one.post("/v1/attention", ask, **headers)["rows"]
            look = f"effective keys {math.exp(row['entropy']):.4g}."
            self.until(lambda: look in box.text)
        self.screenshot("attention_of_twins")

        self.find("tab-score").click()
        self.set("score-text", text * 4)
        self.find("score").click()
        self.until(lambda: self.all("#score-difference"))
        losses = []
        for one, headers in ((first, {}), (other, key)):
            [item] = one.post("/v1/score", {"items": [{"continuations": [text * 4]}],
                                            "logprobs": 0}, **headers)["data"]
            losses.append([-each["logprob"]
                           for each in item["continuations"][0]["logprobs"]["content"]])
        apart = [b - a for a, b in zip(*losses)]
        mean = statistics.fmean(apart)
        half = 1.96 * statistics.stdev(apart) / len(apart) ** 0.5
        shown = [float(each) for each in re.findall(r"-?\d+\.?\d*(?:e-\d+)?",
                                                    self.text("score-difference"))]
        for got, expected in zip(shown, (mean, 95, mean - half, mean + half), strict=True):
            self.assertAlmostEqual(got, expected, delta=1e-3 * abs(expected))
        self.assertEqual(len(self.all("#score-result svg.plot")), 2)
        self.screenshot("score_of_twins")

        self.find("tab-write").click()
        self.generate("The old house", max_tokens=12, seed=5)
        texts = [box.get_attribute("textContent") for box in self.all(".choice .text")]
        self.assertEqual(texts, [
            "The old house" + one.post("/v1/completions", {
                "prompt": "The old house", "max_tokens": 12, "seed": 5, "temperature": 0.8},
                **headers)["choices"][0]["text"]
            for one, headers in ((first, {}), (other, key))])
        self.screenshot("write_of_twins")
        self.assertEqual(self.console_errors(), [])

        self.find("second-button").click()
        self.find("second-remove").click()
        self.assertEqual(self.text("model-name"), "lssar")
        self.generate("The old house", max_tokens=4, seed=5)
        self.assertEqual(len(self.all(".choice")), 1)

    def test_a_server_that_is_not_listed_is_refused_with_the_reason(self) -> None:
        other = Server(model=SOFTMAX)
        self.addCleanup(other.stop)
        self.open()
        self.add(other.http_address)
        self.assertEqual(
            self.text("second-error"),
            f"http://{other.http_address}: it does not answer, or one of the two servers does not "
            f"list the other's address in --http-cors-origins (http://{server.http_address} "
            f"there, http://{other.http_address} here)")
        self.screenshot("second_server_refused")
        self.assertEqual(self.text("model-name"), "lssar-6m")
        self.assertFalse(self.find("banner").is_displayed())  # this server is well

    def test_other_tokens_are_not_compared(self) -> None:
        first = Server("--http-cors-origins", "*")
        self.addCleanup(first.stop)
        self.open(first.http_address, view="attention")
        self.add(first.http_address)  # itself
        self.run_script("""
            const ask = window.fetch;
            window.fetch = (path, options) => path.endsWith("/tokenize")
              ? Promise.resolve(Response.json({ tokens: [1, 2] })) : ask(path, options);""")
        self.set("attention-text", "The cat")
        self.find("see").click()
        self.until(lambda: "cannot be compared" in self.text("attention-status"))
        self.assertRegex(self.text("attention-status"),
                         "has another tokenizer: 2 tokens there, [34] here")


class ServingTest(Page):
    def until_a_figure_moves(self, address: Server, figure: str) -> None:
        """Calls as long as it takes: a rate is that of the page's last interval, and 0 after it."""
        def is_shown() -> Any:
            address.post("/v1/completions", {"prompt": "The old house", "max_tokens": 64,
                                             "ignore_eos": True})
            return re.search(rf"{figure}\n[0-9.]*[1-9]", self.text("serving-charts"))
        self.until(is_shown)

    def test_draws_the_servers_metrics(self) -> None:
        self.open(view="serving")
        self.assertIn("LSSAR (p = 15)", self.text("serving-model"))
        self.until(lambda: len(self.all("#serving-charts svg")) >= 4)
        self.until_a_figure_moves(server, "Tokens written per second")
        self.screenshot("serving")

    def test_has_the_same_figures_with_the_names_of_vllm(self) -> None:
        other = Server("--metrics-prefix", "vllm")
        try:
            self.open(other.http_address, view="serving", ready=False)
            self.until(lambda: len(self.all("#serving-charts svg")) >= 4)
            for figure in "Tokens written per second", "Prompt tokens read per second", \
                    r"Time between tokens, median \(ms\)", "V rows read":
                self.until_a_figure_moves(other, figure)
            self.assertRegex(self.text("serving-charts"), "K/V cache in use\n[0-9]")
        finally:
            self.assertEqual(other.stop(), 0)

    def test_a_figure_that_the_server_does_not_have_is_not_zero(self) -> None:
        self.open()
        self.run_script("window.fetch = () => Promise.resolve("
                        "new Response('lssar_num_requests_running 1\\n'))")
        self.find("tab-serving").click()
        self.until(lambda: "Requests running\n1" in self.text("serving-charts"))
        self.assertIn("Tokens written per second\n-", self.text("serving-charts"))


    def test_a_counter_that_fell_has_no_rate(self) -> None:
        self.open()
        self.run_script("""
            const tokens = [100, 5, 5];
            window.fetch = () => {
              const count = tokens.length > 1 ? tokens.shift() : tokens[0];
              window.isLast = tokens.length === 1;
              const name = "lssar_inter_token_latency_seconds_bucket";
              return Promise.resolve(new Response(`lssar_generation_tokens_total ${count}\\n` +
                `${name}{le="0.1"} ${count / 2}\\n${name}{le="+Inf"} ${count}\\n`));
            };
            window.seen = [];
            new MutationObserver(() => window.seen.push(
              document.getElementById("serving-charts").textContent)).observe(
              document.getElementById("serving-charts"), { childList: true });""")
        self.find("tab-serving").click()
        self.until(lambda: "Tokens written per second\n0" in self.text("serving-charts"))
        for text in self.run_script("return window.seen"):
            self.assertNotRegex(text, r"-[0-9]")

    def record_timers(self) -> None:
        """window.timers: the milliseconds of those that the page sets from now on."""
        self.run_script("""
            window.timers = [];
            for (const name of ["setTimeout", "setInterval"]) {
              const set = window[name];
              window[name] = (run, time, ...rest) => {
                window.timers.push(time);
                return set(run, time, ...rest);
              };
            }""")

    def test_the_next_sample_waits_for_the_last(self) -> None:
        self.open()
        self.record_timers()
        self.run_script("""
            window.signals = [];
            window.fetch = (path, { signal } = {}) => {
              window.signals.push(signal instanceof AbortSignal);
              return new Promise(() => {});
            };""")
        self.find("tab-serving").click()
        self.until(lambda: self.run_script("return window.signals.length"))
        self.assertEqual(self.run_script("return [window.signals, window.timers]"), [[True], []])

    def test_a_refused_sample_is_the_last_until_the_key_changes(self) -> None:
        self.open()
        self.run_script("""
            const ask = window.fetch;
            window.asked = 0;
            window.fetch = (path, options) => {
              if (path !== "metrics") return ask(path, options);
              ++window.asked;
              const error = { message: "admins only" };
              return Promise.resolve(Response.json({ error }, { status: 403 }));
            };
            window.banners = 0;
            new MutationObserver(() => ++window.banners).observe(
              document.getElementById("banner"), { childList: true });""")
        self.find("tab-serving").click()
        self.until(lambda: "admins only" in self.text("banner"))
        self.assertEqual(self.run_script("return window.banners"), 1)
        self.record_timers()
        self.run_script("document.getElementById('serving-status').textContent = ''")
        self.find("tab-serving").click()  # asks again: the banner and its buttons stay as they are
        self.until(lambda: "admins only" in self.text("serving-status"))
        self.assertEqual(self.run_script("return [window.asked, window.banners, window.timers]"),
                         [2, 1, []])
        [button] = [each for each in self.all("#banner button") if each.text == "Dismiss"]
        button.click()
        self.assertFalse(self.find("banner").is_displayed())
        self.find("key-button").click()
        browser.find_element(By.CSS_SELECTOR, "#key-dialog button[value=save]").click()
        self.until(lambda: self.run_script("return window.asked") == 3)

    def test_another_checkpoint_is_shown(self) -> None:
        """By Serving, and by the receipt of an answer."""
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        model = folder / "model"
        model.symlink_to(pathlib.Path(LSSAR).resolve())
        other = Server(model=str(model))
        self.addCleanup(other.stop)

        def reload(path: str) -> None:
            (folder / "next").symlink_to(pathlib.Path(path).resolve())
            os.rename(folder / "next", model)
            other.process.send_signal(signal.SIGHUP)
            other.wait_for("serving")

        self.open(other.http_address, view="serving", ready=False)
        self.until(lambda: "LSSAR (p = 15)" in self.text("serving-model"))
        reload(SOFTMAX)
        self.until(lambda: "with softmax attention" in self.text("about"))
        self.assertIn("softmax", self.text("serving-model"))
        self.find("tab-write").click()
        self.set("field-top_k", 7)
        reload(LSSAR)
        self.assertIn("4 tokens", self.generate("The old house", max_tokens=4, min_tokens=4))
        self.until(lambda: "with LSSAR (p = 15) attention" in self.text("about"))
        self.assertEqual(self.find("field-top_k").get_attribute("value"), "7")
        # Maps that began with the old one say so.
        self.find("tab-attention").click()
        reload(SOFTMAX)
        self.find("see").click()
        self.until(lambda: "has another checkpoint by now" in self.text("attention-status"))
        self.until(lambda: "with softmax attention" in self.text("about"))
        self.find("see").click()
        self.until(lambda: " tokens in " in self.text("attention-status"))
        self.assertIn("softmax", self.shown(".axes .title"))


class ErrorTest(Page):
    """What a person sees, and can do, when the server refuses or is gone."""

    def test_an_api_key_is_asked_for(self) -> None:
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as keys:
            keys.write('[alice]\nkey = "a-long-and-secret-key-0123456789"\n')
            keys.flush()
            locked = Server("--api-keys", keys.name)
            try:
                self.open(locked.http_address, ready=False)
                self.until(lambda: self.find("banner").is_displayed())
                self.screenshot("key_missing")
                browser.find_element(By.CSS_SELECTOR, "#banner button").click()
                self.find("key").send_keys("a-long-and-secret-key-0123456789")
                browser.find_element(By.CSS_SELECTOR, "#key-dialog button[value=save]").click()
                self.until(lambda: self.text("model-name") == "lssar-6m")
                self.assertFalse(self.find("banner").is_displayed())
                self.assertIn("4 tokens", self.generate("x", max_tokens=4, min_tokens=4))
                self.run_script("sessionStorage.clear()")
            finally:
                self.assertEqual(locked.stop(), 0)

    def test_escape_leaves_the_key_as_it_is(self) -> None:
        self.open()
        key = lambda: self.run_script("return sessionStorage.getItem('lssar-api-key')")
        try:
            self.find("key-button").click()
            self.find("key").send_keys("first")
            browser.find_element(By.CSS_SELECTOR, "#key-dialog button[value=save]").click()
            self.until(lambda: key() == "first")
            self.run_script("""
                document.getElementById("key-dialog").addEventListener("close", () => {
                  window.closed_again = true;
                });""")
            self.find("key-button").click()
            self.find("key").send_keys("second", Keys.ESCAPE)
            self.until(lambda: self.run_script("return window.closed_again"))
            self.assertEqual(key(), "first")
        finally:
            self.run_script("sessionStorage.clear()")

    def test_a_full_queue_is_explained(self) -> None:
        small = Server(
            "--max-num-seqs", "1", "--max-queued-requests", "1", "--max-queued-tokens", "16384"
        )
        try:
            self.open(small.http_address)
            clients = [small.connect() for _ in range(2)]
            for client, state in zip(clients, ("running", "waiting")):
                client.request(
                    "POST",
                    "/v1/completions",
                    '{"prompt": "x", "max_tokens": 16000, "ignore_eos": true}',
                    {"Content-Type": "application/json"},
                )
                self.until(lambda: small.metric(f"lssar_num_requests_{state}") == 1)
            self.generate("The", max_tokens=4)
            self.assertRegex(self.text("banner"), "at its limit: .* try again in [0-9]+ s")
            self.screenshot("queue_full")
            for client in clients:
                client.close()
        finally:
            self.assertEqual(small.stop(), 0)

    def test_an_error_within_a_stream_has_its_banner(self) -> None:
        self.open()
        for code, banner in (("rate_limit_exceeded", "The server is at its limit: no more"),
                             ("service_unavailable", "The server is not ready: no more")):
            self.run_script("""
                const event = `data: ${JSON.stringify({ error: { message: "no more",
                  code: arguments[0] } })}\n\n`;
                window.fetch = (path) => (path.startsWith("v1/")
                  ? Promise.resolve(new Response(event)) : new Promise(() => {}));""", code)
            self.assertEqual(self.generate("The"), "no more")
            self.assertIn(banner, self.text("banner"))

    def test_the_page_tries_again_until_it_has_all_that_it_needs(self) -> None:
        # The second request at the start fails once, in a way that no other banner waits for.
        script = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": """
            const send = window.fetch.bind(window);
            window.failures = 0;
            window.fetch = (path, options) => (path === "openapi.json" && !window.failures++
              ? Promise.resolve(Response.json({ error: { message: "no" } }, { status: 429 }))
              : send(path, options));"""})
        try:
            self.open(ready=False)
            self.until(lambda: "at its limit" in self.text("banner"))
            self.find("generate").click()  # does not leave the page
            self.until(lambda: self.all("#field-max_tokens"), 30)
            self.assertEqual(self.run_script("return window.failures"), 2)
            self.assertFalse(self.find("banner").is_displayed())
            self.assertIn("tokens, first after", self.generate("The", max_tokens=4))
        finally:
            browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)

    def test_a_server_that_drains_or_is_gone(self) -> None:
        other = Server("--drain-timeout", "2m")
        self.open(other.http_address)
        self.set("prompt", "The")
        self.set("field-max_tokens", 16000)
        self.set("field-min_tokens", 16000)
        self.find("generate").click()
        self.until(lambda: len(self.all(".choice .token")) > 5)
        other.process.send_signal(signal.SIGTERM)
        self.until(lambda: other.request("GET", "/readyz").status == 503)
        self.find("tab-score").click()
        self.set("score-text", "A text.")
        self.find("score").click()
        self.until(lambda: "not ready" in self.text("banner"))
        self.screenshot("draining")
        first = browser.current_window_handle
        browser.switch_to.new_window("tab")  # a page that is opened now
        self.open(other.http_address, ready=False)
        self.until(lambda: "not ready" in self.text("banner"))
        browser.close()
        browser.switch_to.window(first)
        self.find("tab-write").click()
        self.find("stop").click()
        self.assertEqual(other.process.wait(timeout=180), 0)  # a second signal would not drain
        other.stop()
        self.generate("The", max_tokens=4)
        self.assertIn("does not answer", self.text("banner"))
        self.screenshot("server_gone")


class AccessTest(Page):
    """Keyboard, phones, contrast."""

    def test_the_keyboard_reaches_every_view(self) -> None:
        self.open()
        tab = self.find("tab-write")
        self.run_script("arguments[0].focus()", tab)
        for name in ("score", "attention", "serving", "write"):
            browser.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
            self.assertEqual(browser.switch_to.active_element.get_attribute("id"), f"tab-{name}")
            self.assertTrue(self.find(f"view-{name}").is_displayed())
        for key, name in ((Keys.END, "serving"), (Keys.HOME, "write")):
            browser.switch_to.active_element.send_keys(key)
            self.assertTrue(self.find(f"view-{name}").is_displayed())
        self.set("field-max_tokens", 4)
        self.find("prompt").send_keys(Keys.CONTROL, Keys.ENTER)
        self.until(lambda: " tokens, first after" in self.text("write-status"))

    def test_the_address_names_the_view(self) -> None:
        self.open(view="serving")
        self.run_script("document.querySelector('.skip').click()")
        self.assertEqual(browser.switch_to.active_element.get_attribute("id"), "main")
        self.assertEqual(self.run_script("return location.hash"), "#serving")
        self.run_script("location.hash = '#score'")
        self.until(lambda: self.find("view-score").is_displayed())
        self.run_script("location.hash = '#nothing'")
        self.until(lambda: self.run_script("return location.hash") == "#score")

    def test_every_control_has_a_name(self) -> None:
        self.open()
        unnamed = self.run_script(
            """
            const nodes = [...document.querySelectorAll("button, input, textarea, select")];
            return nodes.filter((node) => !node.textContent.trim() && !node.labels?.length &&
              !node.getAttribute("aria-label")).map((node) => node.id);"""
        )
        self.assertEqual(unnamed, [])

    def test_a_phone_needs_no_sideways_scrolling(self) -> None:
        try:
            browser.execute_cdp_cmd(
                "Emulation.setDeviceMetricsOverride",
                {"width": 390, "height": 800, "deviceScaleFactor": 2, "mobile": True},
            )
            self.open()
            self.generate("The old house", max_tokens=30, n=2, seed=1)
            for view in ("write", "score", "attention", "serving"):
                self.find(f"tab-{view}").click()
                width = self.run_script(
                    "const root = document.documentElement; "
                    "return [root.scrollWidth, root.clientWidth]"
                )
                self.assertLessEqual(width[0], width[1], view)
                self.screenshot(f"phone_{view}")
        finally:
            browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})

    def test_contrast_is_at_least_aa(self) -> None:
        script = """
            const linear = (x) => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4;
            const channel = (value) => linear(value / 255);
            const luminance = ([r, g, b]) =>
              0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
            const parse = (text) => text.match(/[0-9.]+/g).map(Number);
            const background = (node) => {
              for (; node; node = node.parentElement) {
                const colour = parse(getComputedStyle(node).backgroundColor);
                if (colour.length < 4 || colour[3] > 0) return colour;
              }
              return [255, 255, 255];
            };
            const low = [];
            for (const node of document.querySelectorAll("body *")) {
              const own = [...node.childNodes].some(
                (child) => child.nodeType === 3 && child.textContent.trim());
              if (!own || !node.offsetParent || node.disabled) continue;
              const colours = [parse(getComputedStyle(node).color), background(node)];
              const [a, b] = colours.map(luminance).sort((x, y) => y - x);
              const contrast = (a + 0.05) / (b + 0.05);
              const name = `${node.tagName}.${node.className}`;
              if (contrast < 4.5) low.push(`${name} ${contrast.toFixed(2)}`);
            }
            return low;"""
        try:
            for scheme in ("light", "dark"):
                browser.execute_cdp_cmd(
                    "Emulation.setEmulatedMedia",
                    {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
                )
                self.open()
                self.generate("The old house", max_tokens=60, seed=2)
                self.assertEqual(self.run_script(script), [], scheme)
                self.find("to-score").click()
                self.until(lambda: self.all("#score-result figure"))
                self.assertEqual(self.run_script(script), [], scheme)
                self.screenshot(scheme)
                self.find("tab-attention").click()
                self.find("see").click()
                self.until(lambda: self.all("#attention-result tbody td"))
                self.assertEqual(self.run_script(script), [], scheme)
                self.screenshot(f"{scheme}_attention")
        finally:
            browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})

    def test_the_page_needs_nothing_but_this_server(self) -> None:
        self.open()
        loaded = self.run_script(
            "return performance.getEntriesByType('resource').map((entry) => entry.name)"
        )
        self.assertTrue(loaded)
        self.assertEqual(
            [name for name in loaded if not name.startswith(f"http://{server.http_address}/")], []
        )
        policy = server.request("GET", "/").headers["Content-Security-Policy"]
        self.assertIn("default-src 'none'", policy)
        self.assertNotIn("unsafe", policy)


if __name__ == "__main__":
    unittest.main(verbosity=2)
