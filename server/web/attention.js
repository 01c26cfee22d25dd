// The Attention view: maps of every layer and head, one of them large, and where a token looked.
// Rows are fetched as they are looked at, so that a prompt of 16K tokens stays usable.
import { streamEvents } from "./api.js";
import { byId, digits, element, percent, svg, table } from "./dom.js";
import { CLAMP, heatMap } from "./plot.js";
import { TokenText, visible } from "./tokens.js";

const OVERVIEW_CELLS = 64;      // rows and columns of a small map, at most
const LARGE_CELLS = 256;        // of the large map
const TOP_K = 256;              // weights fetched per row; the reply says what they leave out
const MAX_ROW_KEYS = 60e6;      // layers x heads x keys of all rows; the server takes 67,108,864
const MAX_TOKENS_SHOWN = 3000;  // around the row that is looked at
const ARCS = 24;                // strongest keys with an arc

let model = null;
let functions = [];  // Panel for each attention function that is shown

// `count` positions of [0, length), evenly spaced, with the last.
function spread(length, count) {
  if (length <= count) return Array.from({ length }, (_, i) => i);
  return Array.from({ length: count }, (_, i) => Math.round((i + 1) * length / count) - 1);
}

async function capture(request, signal) {
  const rows = [], tokens = [];
  for await (const event of streamEvents("v1/attention", { top_k: TOP_K, ...request }, signal)) {
    rows.push(...event.rows ?? []);
    tokens.push(...event.tokens ?? []);
  }
  return { rows, tokens };
}

// Largest weight of each of `columns` ranges of keys.
function bins(row, length, columns) {
  const made = new Float32Array(columns);
  row.keys.forEach((key, i) => {
    const at = Math.floor(key * columns / length);
    made[at] = Math.max(made[at], row.weights[i]);
  });
  return made;
}

function drawMap(canvas, rows, length, cells) {
  const columns = Math.min(length, cells);
  const drawn = rows.map((row) => bins(row, length, columns));
  heatMap(canvas, rows.length, columns, (y, x) => (Math.floor(x * length / columns) > rows[y].row ? null : drawn[y][x]));
}

function statistics(rows) {
  const mean = (figure) => rows.reduce((sum, row) => sum + figure(row), 0) / rows.length;
  return {
    zeros: mean((row) => 1 - row.num_nonzero / (row.row + 1)),
    keys: mean((row) => Math.exp(row.entropy)),
    first: mean((row) => (row.keys[0] === 0 ? row.weights[0] : 0)),
  };
}

function colourBar() {
  const canvas = element("canvas", { class: "bar" });
  heatMap(canvas, 1, 128, (_, x) => CLAMP * x / 127);
  canvas.style.height = "0.8rem";
  return element("figure", {}, canvas, element("figcaption", {}, element("span", {}, "0"), element("span", {}, "weight"), element("span", {}, `≥ ${CLAMP}`)));
}

// One attention function's maps. `override` is null for the checkpoint's own.
class Panel {
  constructor(override, onRow) {
    this.override = override;
    this.onRow = onRow;
    this.maps = element("div", { class: "maps", role: "group", "aria-label": "Maps of all layers and heads" });
    this.large = element("canvas", { id: override ? null : "large" });
    this.caption = element("p", { role: "status" });
    this.arcs = svg("svg", { class: "arcs", viewBox: "0 0 1000 140", preserveAspectRatio: "none", role: "img", "aria-label": "Arcs from the token to the keys it looked at" });
    this.rowTable = element("div", {});
    const name = override ? `p = ${override.p}` : "the checkpoint's own attention";
    this.node = element("section", { "aria-label": name }, element("h2", {}, name), this.caption,
      element("div", { class: "panel" }, this.maps, element("div", {}, this.large, colourBar())), this.arcs, this.rowTable);
    this.rowCache = new Map();
    this.large.addEventListener("pointermove", (event) => {
      const at = Math.floor(event.offsetY / this.large.clientHeight * this.largeRows.length);
      if (this.largeRows[at]) this.onRow(this.largeRows[at].row);
    });
  }

  request(more) {
    return { ...this.source, ...more, ...(this.override ? { attention_override: this.override } : {}) };
  }

  async load(source, length, signal) {
    Object.assign(this, { source, length });
    this.rowCache.clear();
    const { num_hidden_layers: layers, num_attention_heads: heads } = model;
    const affordable = Math.floor(MAX_ROW_KEYS / (layers * heads * length));
    const { rows } = await capture(this.request({ rows: spread(length, Math.max(1, Math.min(OVERVIEW_CELLS, affordable))) }), signal);
    const byHead = Map.groupBy ? Map.groupBy(rows, (row) => row.layer * heads + row.head) : groupBy(rows, (row) => row.layer * heads + row.head);
    this.maps.style.gridTemplateColumns = `max-content repeat(${heads}, minmax(2.2rem, 5rem))`;
    this.maps.replaceChildren(element("span"), ...Array.from({ length: heads }, (_, head) => element("small", { class: "quiet" }, `head ${head}`)));
    this.buttons = [];
    for (let layer = 0; layer < layers; ++layer) {
      this.maps.append(element("small", { class: "quiet" }, `layer ${layer}`));
      for (let head = 0; head < heads; ++head) {
        const canvas = element("canvas");
        const own = byHead.get(layer * heads + head);
        drawMap(canvas, own, length, OVERVIEW_CELLS);
        const figures = statistics(own);
        const label = `Layer ${layer}, head ${head}: ${percent(figures.zeros)} zeros, ${digits(figures.keys)} effective keys, ${percent(figures.first)} on the first token`;
        const button = element("button", { type: "button", "aria-pressed": "false", "aria-label": label, title: label,
          onclick: () => this.select(layer, head, label) }, canvas);
        this.buttons.push({ button, layer, head });
        this.maps.append(button);
      }
    }
    const last = this.buttons[0];
    await this.select(last.layer, last.head, last.button.title);
  }

  async select(layer, head, label) {
    Object.assign(this, { layer, head });
    for (const one of this.buttons) one.button.setAttribute("aria-pressed", String(one.layer === layer && one.head === head));
    this.caption.textContent = `${label}.`;
    const { rows } = await capture(this.request({ layers: [layer], heads: [head], rows: spread(this.length, LARGE_CELLS) }));
    if (this.layer !== layer || this.head !== head) return; // another map was chosen meanwhile
    this.largeRows = rows;
    drawMap(this.large, rows, this.length, LARGE_CELLS);
    if (this.row !== undefined) this.look(this.row);
  }

  // Draws the keys of `position`; returns its row, or null if another position was looked at
  // meanwhile.
  async look(position) {
    this.row = position;
    const { layer, head } = this;
    const key = `${layer} ${head} ${position}`;
    if (!this.rowCache.has(key)) {
      this.rowCache.set(key, capture(this.request({ layers: [layer], heads: [head], rows: [position] })).then(({ rows }) => rows[0]));
    }
    const row = await this.rowCache.get(key);
    if (this.row !== position || this.layer !== layer || this.head !== head) return null;
    const strongest = row.keys.map((at, i) => [at, row.weights[i]]).sort((a, b) => b[1] - a[1]).slice(0, ARCS);
    const x = (at) => 10 + 980 * (at + 0.5) / this.length;
    this.arcs.replaceChildren(...strongest.map(([at, weight]) => {
      const height = 130 * Math.sqrt(Math.abs(x(position) - x(at)) / 980);
      const arc = svg("path", { d: `M${x(position)} 138C${x(position)} ${138 - height} ${x(at)} ${138 - height} ${x(at)} 138`,
        "stroke-opacity": Math.max(0.15, Math.min(1, weight / CLAMP)), "stroke-width": 1 + 4 * Math.min(weight, 1) });
      arc.append(svg("title", {}, `${at}: ${digits(weight)}`));
      return arc;
    }));
    this.rowTable.replaceChildren(
      element("p", {}, `Token ${position} looks at ${row.num_nonzero} of ${position + 1} keys; effective keys ${digits(Math.exp(row.entropy))}.`),
      table(["key", "token", "weight"], strongest.slice(0, 8).map(([at, weight]) => [at, visible(this.tokenText(at)), digits(weight)])));
    return row;
  }
}

function groupBy(values, key) {
  const groups = new Map();
  for (const value of values) {
    if (!groups.has(key(value))) groups.set(key(value), []);
    groups.get(key(value)).push(value);
  }
  return groups;
}

let controller = null;

async function see() {
  const text = byId("attention-text").value;
  const status = byId("attention-status");
  if (text === "") {
    status.textContent = "Write a text first.";
    return;
  }
  controller?.abort();
  controller = new AbortController();
  status.textContent = "Computing…";
  const started = performance.now();
  try {
    // The tokens first: they say how many rows there are.
    const { tokens } = await capture({ prompt: text, layers: [0], heads: [0], rows: [-1], top_k: 1 }, controller.signal);
    const ids = tokens.map((token) => token.id);
    const view = new TokenText({ label: "Tokens of the text", onPoint: (index) => { if (index !== null) lookAt(view.first + index); } });
    view.first = Math.max(0, tokens.length - MAX_TOKENS_SHOWN);
    tokens.slice(view.first).forEach((token) => view.add({ text: token.token }));
    const second = byId("second-p")?.value;
    const overrides = [null, ...(second ? [{ p: Number(second) }] : [])];
    const lookAt = async (position) => {
      const [row] = await Promise.all(functions.map((panel) => panel.look(position)));
      if (row) view.mark((index) => row.keys.includes(view.first + index) && row.weights[row.keys.indexOf(view.first + index)] >= 0.01);
    };
    functions = overrides.map((override) => new Panel(override, lookAt));
    for (const panel of functions) panel.tokenText = (at) => tokens[at].token;
    byId("attention-result").replaceChildren(
      element("p", { class: "quiet" }, tokens.length > MAX_TOKENS_SHOWN
        ? `The last ${MAX_TOKENS_SHOWN} of ${tokens.length} tokens. ` : "", "Point at a token, or at a row of the large map, to see where it looked."),
      element("div", { class: "scroll tall" }, view.node),
      element("div", { class: functions.length > 1 ? "split" : "" }, ...functions.map((panel) => panel.node)));
    for (const panel of functions) await panel.load({ prompt: ids }, tokens.length, controller.signal);
    status.textContent = `${tokens.length} tokens in ${digits((performance.now() - started) / 1000)} s`;
    await lookAt(tokens.length - 1);
  } catch (error) {
    if (error.name === "AbortError") return;
    status.textContent = error.message;
  }
}

export function start(served) {
  model = served;
  byId("attention-form").addEventListener("submit", (event) => {
    event.preventDefault();
    see();
  });
}

export function openText(text) {
  byId("attention-text").value = text;
  byId("attention-form").requestSubmit();
}
