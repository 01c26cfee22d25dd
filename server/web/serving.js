// The Serving view: the server's metrics as small charts, read every second while the view is open.
import { attentionName } from "./about.js";
import { getText, sawCheckpoint } from "./api.js";
import { byId, digits, element, percent, table } from "./dom.js";
import { lineChart } from "./plot.js";

const PERIOD_MS = 1000;    // between the end of a sample and the next
const TIMEOUT_MS = 5000;
const KEPT = 120; // samples

// With --metrics-prefix vllm some figures have the name and the labels that they have in vLLM.
function ownName(key) {
  if (!key.startsWith("vllm:")) return key;
  return key.replace("vllm:", "lssar_").replace("kv_cache_usage_perc", "kv_cache_usage_ratio")
    .replace(/(engine|model_name)="[^"]*",?/g, "").replace("{}", "");
}

// Prometheus' text format -> Map(name with labels -> value), with the names of the default prefix.
export function parseMetrics(text) {
  const values = new Map();
  for (const line of text.split("\n")) {
    const space = line.lastIndexOf(" ");
    if (line.startsWith("#") || space < 0) continue;
    values.set(ownName(line.slice(0, space)), Number(line.slice(space + 1)));
  }
  return values;
}

// Buckets of a histogram between two samples -> the quantile, linear within a bucket.
function quantile(name, now, before, q) {
  const buckets = [...now].filter(([key]) => key.startsWith(`${name}_bucket{`))
    .map(([key, value]) => [Number(/le="([^"]*)"/.exec(key)[1].replace("+Inf", "Infinity")), value - (before.get(key) ?? 0)])
    .sort((a, b) => a[0] - b[0]);
  const total = buckets.at(-1)?.[1] ?? 0;
  if (!total || buckets.some(([, count]) => count < 0)) return NaN; // negative: another server, or a reload
  let lower = 0, below = 0;
  for (const [upper, count] of buckets) {
    if (count >= q * total) {
      if (upper === Infinity) return lower;
      return lower + (upper - lower) * (q * total - below) / ((count - below) || 1);
    }
    lower = upper;
    below = count;
  }
  return NaN;
}

// NaN, which a chart leaves out, where the server does not have the figure, or counts anew.
const rate = (name) => (now, before, seconds) => {
  const change = value(name)(now) - value(name)(before);
  return change < 0 ? NaN : change / seconds;
};
const value = (name) => (now) => now.get(name) ?? NaN;
function hitRatio(now, before, seconds) {
  return rate("lssar_prefix_cache_hits_total")(now, before, seconds) / rate("lssar_prefix_cache_queries_total")(now, before, seconds);
}

const CHARTS = [
  ["Tokens written per second", rate("lssar_generation_tokens_total"), digits],
  ["Prompt tokens read per second", rate("lssar_prompt_tokens_total"), digits],
  ["Requests running", value("lssar_num_requests_running"), digits],
  ["Requests waiting", value("lssar_num_requests_waiting"), digits],
  ["K/V cache in use", value("lssar_kv_cache_usage_ratio"), percent],
  ["Prefix cache hits", hitRatio, percent],
  ["Time between tokens, median (ms)", (now, before) => 1000 * quantile("lssar_inter_token_latency_seconds", now, before, 0.5), digits],
  ["V rows read", (now, before, seconds) => rate("lssar_attention_value_rows_read_total")(now, before, seconds) /
    rate("lssar_attention_value_rows_total")(now, before, seconds), percent],
];

let timer = null;    // of the next sample
let loop = 0;        // of samples; another one begins with each show()
let previous = null; // {at, values}
const series = CHARTS.map(() => []);

function draw() {
  byId("serving-charts").replaceChildren(...CHARTS.map(([title, , unit], i) => {
    const known = series[i].filter(([, y]) => Number.isFinite(y));
    const last = known.at(-1)?.[1];
    return element("figure", {}, element("figcaption", {}, element("span", {}, title), element("b", {}, last === undefined ? "-" : unit(last))),
      known.length > 1 ? lineChart({ points: known, zero: true, height: 110, xTicks: [], yUnit: unit, label: `${title}: now ${unit(last)}` })
        : element("p", { class: "quiet" }, known.length ? "A chart needs one more figure." : "No figures yet."));
  }));
}

const checkpointOf = (values) => [...values.keys()].map((key) => /^lssar_model_info\{.*checkpoint_hash="([^"]*)"/.exec(key)?.[1]).find(Boolean);

// The next sample begins after this one has ended; none, once the server refuses them.
async function sample(mine) {
  try {
    const text = await getText("metrics", { signal: AbortSignal.timeout(TIMEOUT_MS) });
    if (mine !== loop) return;
    const now = { at: performance.now() / 1000, values: parseMetrics(text) };
    const hash = checkpointOf(now.values);
    if (hash) sawCheckpoint(hash);
    if (previous) {
      CHARTS.forEach(([, figure], i) => {
        series[i].push([now.at, figure(now.values, previous.values, now.at - previous.at)]);
        if (series[i].length > KEPT) series[i].shift();
      });
    }
    previous = now;
    byId("serving-status").textContent = "";
    draw();
  } catch (error) {
    if (mine !== loop) return;
    byId("serving-status").textContent = error.message;
    if (error.status === 401 || error.status === 403) return;
  }
  timer = setTimeout(() => sample(mine), PERIOD_MS);
}

export function serve(model) {
  byId("serving-model").replaceChildren(table(["model", "checkpoint", "attention", "layers x heads", "trained length", "context", "device"],
    [[model.id, model.checkpoint_hash, attentionName(model.attention), `${model.num_hidden_layers} x ${model.num_attention_heads}`,
      model.max_position_embeddings, model.max_model_len, model.device]]));
  draw();
}

export function show(visible) {
  clearTimeout(timer);
  ++loop;
  previous = visible ? previous : null;
  if (visible) sample(loop);
}
