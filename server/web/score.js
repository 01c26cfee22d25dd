// The Score view: a text's loss by position, or continuations of a context.
import { getSecond, post } from "./api.js";
import { byId, digits, element, percent, table } from "./dom.js";
import { lineChart } from "./plot.js";
import { TokenText, legend, tokensOf } from "./tokens.js";

const ALTERNATIVES = 5;
const MAX_DOTS = 1500;      // raw losses in the chart
const MIN_BIN = 8;          // tokens whose mean is one point of the curve
const MAX_COLOURED = 4096;  // tokens of a text that are drawn one by one
const NATS_TO_BITS = Math.LOG2E;

let model = null;
let controller = null; // AbortController of the text that is scored

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

// Mean loss in at most `count` equal ranges of positions: [[middle, mean, low, high]], with the
// 95% interval of the mean.
function binned(losses, count) {
  const size = Math.max(1, Math.ceil(losses.length / count));
  const bins = [];
  for (let first = 0; first < losses.length; first += size) {
    const part = losses.slice(first, first + size);
    const middle = mean(part);
    const variance = part.length > 1 ? part.reduce((sum, value) => sum + (value - middle) ** 2, 0) / (part.length - 1) : 0;
    const half = 1.96 * Math.sqrt(variance / part.length);
    bins.push([first + part.length / 2, middle, middle - half, middle + half]);
  }
  return bins;
}

function showText(score, trainedLength) {
  const tokens = tokensOf(score.logprobs);
  const losses = tokens.map((token) => -token.logprob);
  const bins = binned(losses, Math.min(64, Math.ceil(losses.length / MIN_BIN)));
  const every = Math.max(1, Math.ceil(losses.length / MAX_DOTS));
  const view = new TokenText({ label: "Tokens of the text, coloured by probability" });
  tokens.slice(0, MAX_COLOURED).forEach((token, i) => view.add({ ...token, note: `position ${i}` }));
  const more = tokens.length > MAX_COLOURED ? [element("p", { class: "quiet" }, `The first ${MAX_COLOURED} of ${tokens.length} tokens.`)] : [];
  return [
    element("p", { class: "summary" }, `${tokens.length} tokens, ${digits(mean(losses))} nats a token, ` +
      `${digits(-score.logprob * NATS_TO_BITS / score.num_bytes)} bits a byte, perplexity ${digits(Math.exp(mean(losses)))}.`),
    element("figure", {},
      element("figcaption", {}, `Loss (nats) by position: mean with its 95% interval${trainedLength ? `; trained on ${trainedLength} tokens` : ""}`),
      lineChart({ points: bins.map(([at, value]) => [at, value]), band: bins.map(([at, , low, high]) => [at, Math.max(low, 0), high]),
        raw: losses.map((loss, i) => [i, loss]).filter((_, i) => i % every === 0), zero: true, height: 220,
        label: `Loss by position, mean ${digits(mean(losses))} nats` })),
    element("h2", {}, "Tokens"), element("div", { class: "legend" }, ...legend()), view.node, ...more];
}

function showContinuations(continuations, texts) {
  const total = continuations.reduce((sum, one) => sum + Math.exp(one.logprob), 0);
  const rows = continuations.map((one, i) => [
    element("span", { class: "text" }, texts[i]), digits(one.logprob), digits(one.logprob / one.num_tokens),
    digits(one.logprob / one.num_bytes), one.num_tokens, one.is_greedy ? "yes" : "no", percent(Math.exp(one.logprob) / total)]);
  const views = continuations.map((one) => {
    const view = new TokenText({ label: "Tokens of a continuation" });
    for (const token of tokensOf(one.logprobs)) view.add(token);
    return element("p", {}, view.node);
  });
  return [table(["continuation", "log-probability", "per token", "per byte", "tokens", "greedy", "share"], rows),
    element("h2", {}, "Tokens"), element("div", { class: "legend" }, ...legend()), ...views];
}

// Mean of b - a with its 95% interval, over tokens: the spread of the text's difficulty cancels.
function difference([a, b], servers) {
  const [first, other] = [a, b].map((score) => tokensOf(score.logprobs));
  if (first.length !== other.length || first.some(({ text }, i) => text !== other[i].text)) return "The two checkpoints have different tokens: their losses a token cannot be compared.";
  const [[, middle, low, high]] = binned(first.map(({ logprob }, i) => logprob - other[i].logprob), 1);
  return `Difference of the losses, ${servers[1].model.id} less ${servers[0].model.id}: ${digits(middle)} nats a token, 95% interval ${digits(low)} to ${digits(high)} (paired by token).`;
}

// A column for each server.
function columns(scores, servers, show) {
  const shown = scores.map(show);
  if (scores.length === 1) return shown[0];
  return [element("div", { class: "split" }, ...shown.map((nodes, i) => element("section", { "aria-label": servers[i].name },
    element("h2", {}, servers[i].name), ...nodes)))];
}

async function score() {
  const isText = byId("score-form").elements.what.value === "text";
  const status = byId("score-status");
  const continuations = isText ? [byId("score-text").value] : byId("score-continuations").value.split("\n").filter((line) => line !== "");
  if (continuations.join("") === "") {
    status.textContent = isText ? "Paste a text first." : "Write at least one continuation.";
    return;
  }
  const item = isText ? { continuations } : { context: byId("score-context").value, continuations };
  controller?.abort();
  const mine = controller = new AbortController();
  byId("score-stop").disabled = false;
  status.textContent = "Scoring…";
  const started = performance.now();
  try {
    const second = getSecond();
    const servers = [{ model, name: model.id, server: null }];
    if (second) servers.push({ model: second.model, name: `${second.model.id} at ${second.origin}`, server: second });
    const replies = await Promise.all(servers.map(({ server }) =>
      post("v1/score", { items: [item], logprobs: ALTERNATIVES }, mine.signal, server)));
    status.textContent = `${replies[0].usage.total_tokens} tokens in ${digits((performance.now() - started) / 1000)} s`;
    const scores = replies.map((reply) => reply.data[0].continuations);
    const shown = columns(scores, servers, (one, i) =>
      (isText ? showText(one[0], servers[i].model.max_position_embeddings) : showContinuations(one, continuations)));
    if (isText && second) shown.unshift(element("p", { id: "score-difference" }, difference(scores.map(([text]) => text), servers)));
    byId("score-result").replaceChildren(...shown);
  } catch (error) {
    if (controller !== mine) return; // another text is scored by now
    status.textContent = error.name === "AbortError" ? "Stopped." : error.message;
  }
  controller = null;
  byId("score-stop").disabled = true;
}

export function serve(served) {
  model = served;
}

export function start() {
  byId("score-form").addEventListener("submit", (event) => {
    event.preventDefault();
    score();
  });
  byId("score-stop").addEventListener("click", () => controller?.abort());
  for (const radio of byId("score-form").elements.what) {
    radio.addEventListener("change", () => {
      const isText = byId("score-form").elements.what.value === "text";
      byId("score-text-fields").hidden = !isText;
      byId("score-item-fields").hidden = isText;
    });
  }
}

export function openText(text) {
  byId("score-form").elements.what.value = "text";
  byId("score-text-fields").hidden = false;
  byId("score-item-fields").hidden = true;
  byId("score-text").value = text;
  byId("score-form").requestSubmit();
}
