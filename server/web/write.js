// The Write view: a prompt or a chat, streamed, with the probability of every token.
import { getSecond, streamEvents } from "./api.js";
import { byId, digits, element } from "./dom.js";
import { TokenText, legend, tokensOf } from "./tokens.js";

// Shown controls, in order; limits and defaults come from the server's openapi.json.
const CONTROLS = [
  ["max_tokens", "Tokens"], ["temperature", "Temperature"], ["top_p", "Top-p"], ["top_k", "Top-k"],
  ["min_p", "Min-p"], ["repetition_penalty", "Repetition penalty"], ["presence_penalty", "Presence penalty"],
  ["frequency_penalty", "Frequency penalty"], ["n", "Choices side by side"], ["min_tokens", "Least tokens"],
];
// Texts are to vary, answers to be right.
const TEMPERATURES = { text: 0.8, chat: 0.2 };
const FIRST_VALUES = { max_tokens: 100, temperature: TEMPERATURES.text };
const ALTERNATIVES = 5;

let model = null;
let running = null; // AbortController of the request that streams
let history = [];   // chat messages that were answered
let written = "";   // prompt and text of choice 0 of the last request
let openText = {};  // views that a text can be handed to

const isChat = () => byId("write-form").elements.mode.value === "chat";

// What a field has, where the controls are made again for another model.
const typed = (name) => byId(`field-${name}`)?.value;

function control(name, label, schema, maximum) {
  const low = schema.minimum ?? schema.exclusiveMinimum;
  const high = maximum ?? schema.maximum;
  const isInteger = [schema.type].flat().includes("integer");
  const limits = [low === undefined ? "" : `${schema.exclusiveMinimum !== undefined ? "above " : "from "}${low}`,
    high === undefined ? "" : `to ${high}`].join(" ").trim();
  return element("div", {},
    element("label", { for: `field-${name}` }, label),
    element("input", { id: `field-${name}`, name, type: "number", step: isInteger ? 1 : "any",
      min: schema.minimum ?? null, max: high ?? null, value: typed(name) ?? FIRST_VALUES[name] ?? schema.default ?? "",
      "aria-describedby": `limits-${name}` }),
    element("small", { id: `limits-${name}` }, limits));
}

const randomSeed = () => crypto.getRandomValues(new Uint32Array(1))[0];

function makeControls(openApi) {
  const fields = openApi.components.schemas.CompletionRequest.properties;
  byId("sampling").replaceChildren(
    ...CONTROLS.filter(([name]) => fields[name]).map(([name, label]) =>
      control(name, label, fields[name], name === "top_k" ? model.vocab_size
        : name.endsWith("_tokens") ? model.max_model_len : undefined)),
    element("div", {}, element("label", { for: "field-stop" }, "Stop strings, one a line"),
      element("textarea", { id: "field-stop", rows: 2 }, typed("stop") ?? "")),
    element("div", {}, element("label", { for: "field-seed" }, "Seed"),
      element("input", { id: "field-seed", type: "number", min: 0, max: Number.MAX_SAFE_INTEGER, step: 1,
        value: typed("seed") ?? "", placeholder: "new for each text", "aria-describedby": "limits-seed" }),
      element("small", { id: "limits-seed" }, `to ${Number.MAX_SAFE_INTEGER}; the same request with the same seed gives the same text`)));
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
  constructor(name, prompt) {
    this.text = "";
    this.view = new TokenText({ label: name ? `Text of ${name}` : "Text" });
    if (prompt) this.view.addPlain(prompt);
    this.title = element("h3", {}, name);
    this.node = element("div", { class: "choice" }, this.title, this.view.node);
  }
  add(text, logprobs) {
    this.text += text;
    for (const token of tokensOf(logprobs)) this.view.add(token);
  }
  finish(reason, stopReason) {
    this.view.end(this.text);
    const why = { stop: stopReason ? `stopped at ${JSON.stringify(stopReason)}` : "ended", length: "length reached" };
    this.title.textContent += ` ${why[reason] ?? reason}`;
  }
}

// Streams the choices of one server into `box`; returns them, and a line on tokens and times. They
// are in `choices` as well, also when it throws.
async function run(body, { chat, box, signal, server = null, name = "", choices = [] }) {
  const count = body.n ?? 1;
  choices.push(...Array.from({ length: count }, (_, i) => new Choice(
    [name, count > 1 ? `choice ${i + 1}` : ""].filter(Boolean).join(", "), chat ? "" : body.prompt)));
  box.append(...choices.map((choice) => choice.node));
  const started = performance.now();
  let firstAt = null, usage = null;
  const path = chat ? "v1/chat/completions" : "v1/completions";
  for await (const event of streamEvents(path, body, signal, server)) {
    usage = event.usage ?? usage;
    for (const part of event.choices) {
      const choice = choices[part.index];
      firstAt ??= performance.now();
      choice.add(chat ? part.delta.content ?? "" : part.text, part.logprobs);
      if (part.finish_reason) choice.finish(part.finish_reason, part.stop_reason);
    }
    if (chat) followAnswer();
  }
  const seconds = (performance.now() - (firstAt ?? started)) / 1000;
  let summary = "";
  if (usage) {
    const rate = usage.completion_tokens > 1 ? `, ${digits((usage.completion_tokens - 1) / seconds)} tokens/s` : "";
    summary = `${usage.prompt_tokens} + ${usage.completion_tokens} tokens, first after ` +
      `${digits(firstAt - started)} ms${rate}, ${usage.prompt_tokens_details.cached_tokens} from the cache, seed ${body.seed}`;
  }
  return { choices, summary };
}

// Keeps the end of the conversation in view, unless someone reads further up: once a frame, as tokens
// arrive faster than frames.
let follows = false, followedTo = 0; // the height whose end was in view
function followAnswer() {
  if (follows) return;
  follows = true;
  requestAnimationFrame(() => {
    follows = false;
    const box = byId("chat-history");
    if (box.scrollTop + box.clientHeight < followedTo - 2) return;
    box.scrollTo(0, Number.MAX_SAFE_INTEGER);
    followedTo = box.scrollHeight;
  });
}

function showMode() {
  byId("prompt-label").textContent = isChat() ? "Message" : "Prompt";
  byId("chat-history").hidden = !isChat();
  byId("clear-chat").hidden = !isChat() || !history.length;
  byId("choices").hidden = isChat();
}

function changeMode() {
  const field = byId("field-temperature");
  const { text, chat } = TEMPERATURES;
  if (field.value === String(isChat() ? text : chat)) field.value = isChat() ? chat : text;
  showMode();
}

function clearChat() {
  history = [];
  byId("chat-history").replaceChildren();
  showMode();
}

// The conversation stands above the box: the message, then the answer as it is written.
async function answer(body) {
  const asked = body.messages.at(-1);
  const box = element("div", { class: "choices" });
  const turn = [element("p", {}, element("b", {}, "user"), asked.content), element("div", { class: "answer" }, element("b", {}, "assistant"), box)];
  byId("chat-history").append(...turn);
  byId("prompt").value = "";
  followedTo = 0;
  const choices = [];
  try {
    const { summary } = await run(body, { chat: true, box, signal: running.signal, choices });
    history = [...body.messages, { role: "assistant", content: choices[0].text }];
    written = choices[0].text;
    byId("write-status").textContent = summary;
  } catch (error) {
    // What was written before it was stopped is the answer.
    const content = choices[0]?.text ?? "";
    if (content) {
      choices[0].view.end(content);
      history = [...body.messages, { role: "assistant", content }];
    } else {
      for (const node of turn) node.remove();
      byId("prompt").value = [asked.content, byId("prompt").value].filter(Boolean).join("\n"); // and what was typed since
    }
    throw error;
  } finally {
    showMode();
  }
}

// Continues a prompt, with a second server side by side.
async function complete(body) {
  const box = byId("choices"), second = getSecond(), { signal } = running;
  box.replaceChildren();
  const runs = [run(body, { box, signal, name: second ? model.id : "" })];
  if (second) runs.push(run(body, { box, signal, name: `${second.model.id} at ${second.origin}`, server: second }));
  const done = await Promise.allSettled(runs);
  for (const { reason } of done) if (reason) throw reason;
  written = body.prompt + done[0].value.choices[0].text;
  byId("write-status").textContent = done.map(({ value }) => value.summary).join("; beside it ");
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
  byId("again").dataset.seed = chat ? "" : seed;
  setBusy(true);
  byId("write-status").textContent = "";
  byId("write-links").hidden = true;
  try {
    await (chat ? answer(body) : complete(body));
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
  byId("clear-chat").disabled = busy;
  byId("again").disabled = busy || !byId("again").dataset.seed;
}

// Says which field is wrong, and opens the panel it is in: a browser shows no message in a closed one.
function showInvalid(event) {
  const field = event.target;
  field.closest("details")?.setAttribute("open", "");
  if (field !== byId("write-form").querySelector("input:invalid, textarea:invalid")) return;
  byId("write-status").textContent = `${field.labels[0].textContent}: ${field.validationMessage}`;
}

export function serve(served, openApi) {
  model = served;
  makeControls(openApi);
  byId("chat-mode").hidden = !model.has_chat_template;
  if (!model.has_chat_template) byId("write-form").elements.mode.value = "text";
  showMode();
}

export function start(views) {
  openText = views;
  byId("write-legend").replaceChildren(...legend());
  byId("write-legend").hidden = false;
  byId("write-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const seed = byId("field-seed").value;
    if (!running) generate(seed === "" ? randomSeed() : Number(seed));
  });
  byId("write-form").addEventListener("invalid", showInvalid, true); // it does not bubble
  byId("prompt").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("write-form").requestSubmit();
  });
  byId("stop").addEventListener("click", () => running?.abort());
  byId("again").addEventListener("click", () => generate(Number(byId("again").dataset.seed)));
  byId("clear-chat").addEventListener("click", clearChat);
  for (const radio of byId("write-form").elements.mode) {
    radio.addEventListener("change", changeMode);
  }
  byId("to-score").addEventListener("click", () => openText.score(written));
  byId("to-attention").addEventListener("click", () => openText.attention(written));
}
