// The Write view: a prompt or a chat, streamed, with the probability of every token.
import { getJson, streamEvents } from "./api.js";
import { byId, digits, element } from "./dom.js";
import { TokenText, legend, tokensOf } from "./tokens.js";

// Shown controls, in order; limits and defaults come from the server's openapi.json.
const CONTROLS = [
  ["max_tokens", "Tokens"], ["temperature", "Temperature"], ["top_p", "Top-p"], ["top_k", "Top-k"],
  ["min_p", "Min-p"], ["repetition_penalty", "Repetition penalty"], ["presence_penalty", "Presence penalty"],
  ["frequency_penalty", "Frequency penalty"], ["n", "Choices side by side"], ["min_tokens", "Least tokens"],
];
const FIRST_VALUES = { max_tokens: 100, temperature: 0.8 };
const ALTERNATIVES = 5;

let running = null; // AbortController of the request that streams
let history = [];   // chat messages that were answered
let written = "";   // prompt and text of choice 0 of the last request
let openText = {};  // views that a text can be handed to

const isChat = () => byId("write-form").elements.mode.value === "chat";

function control(name, label, schema, maximum) {
  const low = schema.minimum ?? schema.exclusiveMinimum;
  const high = maximum ?? schema.maximum;
  const isInteger = [schema.type].flat().includes("integer");
  const limits = [low === undefined ? "" : `${schema.exclusiveMinimum !== undefined ? "above " : "from "}${low}`,
    high === undefined ? "" : `to ${high}`].join(" ").trim();
  return element("div", {},
    element("label", { for: `field-${name}` }, label),
    element("input", { id: `field-${name}`, name, type: "number", step: isInteger ? 1 : "any",
      min: schema.minimum ?? null, max: high ?? null, value: FIRST_VALUES[name] ?? schema.default ?? "",
      "aria-describedby": `limits-${name}` }),
    element("small", { id: `limits-${name}` }, limits));
}

const randomSeed = () => crypto.getRandomValues(new Uint32Array(1))[0];

function makeControls(openApi, model) {
  const schemas = openApi.components.schemas;
  const fields = { ...schemas.Sampling.properties };
  for (const part of schemas.CompletionRequest.allOf) Object.assign(fields, part.properties);
  byId("sampling").replaceChildren(
    ...CONTROLS.filter(([name]) => fields[name]).map(([name, label]) =>
      control(name, label, fields[name], name.endsWith("_tokens") ? model.max_model_len : undefined)),
    element("div", {}, element("label", { for: "field-stop" }, "Stop strings, one a line"),
      element("textarea", { id: "field-stop", rows: 2 })),
    element("div", {}, element("label", { for: "field-seed" }, "Seed"),
      element("input", { id: "field-seed", type: "number", min: 0, step: 1, placeholder: "new for each text" }),
      element("small", {}, "The same request with the same seed gives the same text.")));
}

function samplingFields() {
  const fields = {};
  for (const [name] of CONTROLS) {
    const input = byId(`field-${name}`);
    if (input && input.value !== "") fields[name] = Number(input.value);
  }
  const stop = byId("field-stop").value.split("\n").filter((line) => line !== "");
  if (stop.length) fields.stop = stop;
  return fields;
}

// A choice's panel. Tokens arrive before or after their text: text without tokens is shown plain.
class Choice {
  constructor(index, count, prompt) {
    this.text = "";
    this.view = new TokenText({ label: `Text of choice ${index + 1}` });
    if (prompt) this.view.addPlain(prompt);
    this.title = element("h3", {}, count > 1 ? `Choice ${index + 1}` : "");
    this.node = element("div", { class: "choice" }, this.title, this.view.node);
  }
  add(text, logprobs) {
    this.text += text;
    for (const token of tokensOf(logprobs)) this.view.add(token);
  }
  finish(reason, stopReason) {
    const why = { stop: stopReason ? `stopped at ${JSON.stringify(stopReason)}` : "ended", length: "length reached" };
    this.title.textContent += ` ${why[reason] ?? reason}`;
  }
}

async function run(body, chat, signal) {
  const choices = Array.from({ length: body.n ?? 1 }, (_, i) => new Choice(i, body.n ?? 1, chat ? "" : body.prompt));
  byId("choices").replaceChildren(...choices.map((choice) => choice.node));
  const started = performance.now();
  let firstAt = null, usage = null;
  const path = chat ? "v1/chat/completions" : "v1/completions";
  for await (const event of streamEvents(path, body, signal)) {
    usage = event.usage ?? usage;
    for (const part of event.choices) {
      const choice = choices[part.index];
      firstAt ??= performance.now();
      choice.add(chat ? part.delta.content ?? "" : part.text, part.logprobs);
      if (part.finish_reason) choice.finish(part.finish_reason, part.stop_reason);
    }
  }
  const seconds = (performance.now() - (firstAt ?? started)) / 1000;
  if (usage) {
    const rate = usage.completion_tokens > 1 ? `, ${digits((usage.completion_tokens - 1) / seconds)} tokens/s` : "";
    byId("write-status").textContent = `${usage.prompt_tokens} + ${usage.completion_tokens} tokens, first after ` +
      `${digits(firstAt - started)} ms${rate}, ${usage.prompt_tokens_details.cached_tokens} from the cache, seed ${body.seed}`;
  }
  return choices;
}

function showHistory() {
  const log = byId("chat-history");
  log.hidden = !isChat();
  byId("clear-chat").hidden = !isChat() || !history.length;
  log.replaceChildren(...history.map(({ role, content }) => element("p", {}, element("b", {}, role), content)));
}

async function generate(seed) {
  const chat = isChat();
  const prompt = byId("prompt").value;
  const body = { ...samplingFields(), seed, stream_options: { include_usage: true } };
  if (chat) {
    Object.assign(body, { messages: [...history, { role: "user", content: prompt }], logprobs: true, top_logprobs: ALTERNATIVES });
  } else {
    Object.assign(body, { prompt, logprobs: ALTERNATIVES });
  }
  running = new AbortController();
  setBusy(true);
  byId("write-status").textContent = "";
  byId("write-links").hidden = true;
  try {
    const choices = await run(body, chat, running.signal);
    written = chat ? choices[0].text : prompt + choices[0].text;
    if (chat) {
      history = [...body.messages, { role: "assistant", content: choices[0].text }];
      byId("prompt").value = "";
      showHistory();
    }
    byId("again").dataset.seed = chat ? "" : seed;
    byId("write-links").hidden = written === "";
  } catch (error) {
    byId("write-status").textContent = error.name === "AbortError" ? "Stopped." : error.message;
    if (!byId("choices").querySelector(".token")) byId("choices").replaceChildren();
  } finally {
    running = null;
    setBusy(false);
  }
}

function setBusy(busy) {
  byId("generate").disabled = busy;
  byId("stop").disabled = !busy;
  byId("again").disabled = busy || !byId("again").dataset.seed;
}

export async function start(model, views) {
  openText = views;
  makeControls(await getJson("openapi.json"), model);
  byId("chat-mode").hidden = !model.has_chat_template;
  byId("write-legend").replaceChildren(...legend());
  byId("write-legend").hidden = false;
  byId("write-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const seed = byId("field-seed").value;
    if (!running) generate(seed === "" ? randomSeed() : Number(seed));
  });
  byId("prompt").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("write-form").requestSubmit();
  });
  byId("stop").addEventListener("click", () => running?.abort());
  byId("again").addEventListener("click", () => generate(Number(byId("again").dataset.seed)));
  byId("clear-chat").addEventListener("click", () => { history = []; showHistory(); });
  for (const radio of byId("write-form").elements.mode) {
    radio.addEventListener("change", () => {
      byId("prompt-label").textContent = isChat() ? "Message" : "Prompt";
      showHistory();
    });
  }
  byId("to-score").addEventListener("click", () => openText.score(written));
  byId("to-attention").addEventListener("click", () => openText.attention(written));
}
