// The Attention view: maps of every layer and head, one of them large, and where a token looked.
// Rows are fetched as they are looked at, so that a prompt of 16K tokens stays usable.
import { getSecond, post, streamEvents } from "./api.js";
import { byId, digits, element, percent, svg, table } from "./dom.js";
import { LargeMap } from "./map.js";
import { CLAMP, drawMap } from "./plot.js";
import { TokenText, tokenNames } from "./tokens.js";

const OVERVIEW_ROWS = 64;        // rows and columns of a small map, at most
const LARGE_ROWS = 256;          // of the large map
const CHEAP_TOKENS = 2048;       // of a longer text the large map gets its rows when it is chosen
const TOP_K = 256;               // weights fetched per row; the reply says what they leave out
const MAX_OVERVIEW_KEYS = 30e6;  // layers x heads x keys of all rows: about 6 s of the server's time
const MAX_ROW_KEYS = 4194304;    // layers x heads x keys of one row; the server's limit
const MAX_TOKENS_SHOWN = 3000;   // the last ones of a text
const ARCS = 24;                 // strongest keys with an arc
const FEWER = 4;                 // "fewer rows" are this many times fewer

let model = null;
let controller = null;  // AbortController of the text that is shown

// `count` positions of [0, length), evenly spaced, with the last.
function spread(length, count) {
  if (length <= count) return Array.from({ length }, (_, i) => i);
  return Array.from({ length: count }, (_, i) => Math.round((i + 1) * length / count) - 1);
}

async function capture(request, signal, server) {
  const rows = [];
  let receipt = null;
  for await (const event of streamEvents("v1/attention", { top_k: TOP_K, ...request }, signal, server)) {
    rows.push(...event.rows ?? []);
    receipt = event.receipt ?? receipt;
  }
  return { rows, receipt };
}

function describe(rows) {
  const mean = (figure) => rows.reduce((sum, row) => sum + figure(row), 0) / rows.length;
  const zero = mean((row) => row.num_zero / (row.row + 1));
  const negligible = mean((row) => 1 - row.num_nonzero / (row.row + 1));
  const keys = mean((row) => Math.exp(row.entropy));
  const first = mean((row) => row.weights[row.keys.indexOf(0)] ?? 0);
  return `${percent(zero)} of the keys zero, ${percent(negligible)} negligible (below 2^-32 of the largest weight, zeros among them), ${digits(keys)} effective keys, ${percent(first)} on the first token (mean of ${rows.length} rows)`;
}

// [[key, weight], ...] of the strongest keys of a row.
const strongest = (row) => row.keys.map((key, i) => [key, row.weights[i]]).sort((a, b) => b[1] - a[1]).slice(0, ARCS);

function arc(path, key, weight) {
  return svg("path", { d: path, "stroke-opacity": Math.max(0.15, Math.min(1, weight / CLAMP)), "stroke-width": 1 + 4 * Math.min(weight, 1) },
    svg("title", {}, `${key}: ${digits(weight)}`));
}

// The text's tokens with arcs over them, from the token that is looked at to its keys.
class ArcedText {
  constructor(pieces, onPoint) {
    this.first = Math.max(0, pieces.length - MAX_TOKENS_SHOWN);
    this.text = new TokenText({ label: "Tokens of the text", onPoint: (index) => { if (index !== null) onPoint(this.first + index); } });
    pieces.slice(this.first).forEach((text, i) => this.text.add({ text, note: `position ${this.first + i}` }));
    this.arcs = svg("svg", { class: "over", "aria-hidden": "true" });
    this.node = element("div", { class: "scroll tall" }, element("div", { class: "arced" }, this.text.node, this.arcs));
  }

  // `rows`: the row of each function that is shown.
  draw(position, rows) {
    const base = this.arcs.getBoundingClientRect();
    const point = (index) => {
      const box = this.text.spans[index]?.getClientRects()[0];
      return box && [box.left + box.width / 2 - base.left, box.top - base.top];
    };
    const from = point(position - this.first);
    this.arcs.replaceChildren(...rows.map((row, i) => svg("g", { class: `function${i}` }, ...strongest(row).flatMap(([key, weight]) => {
      const to = point(key - this.first);
      if (!from || !to || key === position) return [];
      const up = Math.min(from[1], to[1]) - Math.min(40, 12 + Math.abs(from[0] - to[0]) / 8);
      return [arc(`M${from[0]} ${from[1]}C${from[0]} ${up} ${to[0]} ${up} ${to[0]} ${to[1]}`, key, weight)];
    }))));
    const looked = new Set(rows.flatMap((row) => row.keys.filter((_, i) => row.weights[i] >= 0.01)));
    this.text.mark((index) => looked.has(this.first + index));
  }
}

// The maps of one checkpoint and attention function.
class Panel {
  // `source`: {model, override, server}; override is null for the checkpoint's own function, server
  // null for this one. `panels`: all that are shown; a map that is chosen in one is chosen in all.
  constructor(source, ids, pieces, onRow, panels, signal) {
    Object.assign(this, { ...source, ids, pieces, panels, signal, length: ids.length });
    this.names = tokenNames(pieces);
    this.buttons = [];       // of the small maps
    this.rows = new Map();   // every row that was fetched, by layer, head and position
    this.maps = element("div", { class: "maps", role: "group", "aria-label": "Maps of all layers and heads" });
    this.large = new LargeMap(onRow, () => this.#toJson());
    this.caption = element("p", { role: "status" });
    this.heads = element("div", { class: "heads", role: "group", "aria-label": "All heads of the layer" });
    this.arcs = svg("svg", { class: "arcs", viewBox: "0 0 1000 140", preserveAspectRatio: "none", role: "img", "aria-label": "Arcs from the token to the keys it looked at" });
    this.rowTable = element("div", {});
    this.title = element("h2", { id: `function-${panels.length}` });
    this.node = element("section", { "aria-labelledby": this.title.id }, this.title, this.caption,
      element("div", { class: "panel" }, this.maps, this.large.node), this.heads, this.arcs, this.rowTable);
  }

  async fetch(request) {
    const override = this.override ? { attention_override: this.override } : {};
    const { rows, receipt } = await capture({ prompt: this.ids, ...request, ...override }, this.signal, this.server);
    if (receipt.checkpoint_hash !== this.model.checkpoint_hash) {
      throw new Error(this.server ? `${this.server.origin} has another checkpoint by now: add it again.`
        : "The server has another checkpoint by now: see the attention again.");
    }
    this.receipt = receipt;
    // What the server says has answered.
    const where = this.server ? ` of ${this.model.id} at ${this.server.origin}` : this.override ? "" : " (the checkpoint's)";
    this.title.textContent = receipt.attention + where;
    for (const row of rows) this.rows.set(`${row.layer} ${row.head} ${row.row}`, row);
    return rows;
  }

  // Draws the small maps from at most `wanted` rows each; returns how many there are.
  async load(wanted) {
    const { num_hidden_layers: layers, num_attention_heads: heads } = this.model;
    const affordable = Math.floor(MAX_OVERVIEW_KEYS / (layers * heads * this.length / 2));
    const positions = spread(this.length, Math.max(1, Math.min(wanted, affordable)));
    this.maps.style.gridTemplateColumns = `max-content repeat(${heads}, minmax(2.2rem, 5rem))`;
    this.maps.replaceChildren(element("span"), ...Array.from({ length: heads }, (_, head) => element("small", { class: "quiet" }, `head ${head}`)));
    this.buttons = [];
    const atOnce = Math.max(1, Math.floor(MAX_ROW_KEYS / (heads * this.length)));
    for (let layer = 0; layer < layers; layer += atOnce) {
      const chosen = Array.from({ length: Math.min(atOnce, layers - layer) }, (_, i) => layer + i);
      await this.fetch({ layers: chosen, rows: positions });
      for (const one of chosen) this.#addMaps(one, heads, positions);
    }
    await this.select(this.find(layers - 1, 0), this.length <= CHEAP_TOKENS);
    return positions.length;
  }

  find(layer, head) {
    return this.buttons.find((map) => map.layer === layer && map.head === head);
  }

  // A button that chooses `map` in all panels that have it.
  #button(map) {
    const canvas = element("canvas");
    drawMap(canvas, map.rows, this.length, OVERVIEW_ROWS);
    const choose = (panel) => {
      const found = panel.find(map.layer, map.head);
      if (found) panel.select(found).catch(showError);
    };
    return element("button", { type: "button", "aria-pressed": "false", "aria-label": map.label, title: map.label,
      onclick: () => this.panels.forEach(choose) }, canvas);
  }

  #addMaps(layer, heads, positions) {
    this.maps.append(element("small", { class: "quiet" }, `layer ${layer}`));
    for (let head = 0; head < heads; ++head) {
      const rows = positions.map((at) => this.rows.get(`${layer} ${head} ${at}`));
      const map = { layer, head, rows, label: `Layer ${layer}, head ${head}: ${describe(rows)}` };
      map.button = this.#button(map);
      this.buttons.push(map);
      this.maps.append(map.button);
    }
  }

  // All heads of a layer side by side.
  #showHeads(layer) {
    if (this.shownLayer === layer) return;
    this.shownLayer = layer;
    const maps = this.buttons.filter((map) => map.layer === layer);
    this.heads.replaceChildren(...maps.map((map) => {
      map.headButton = this.#button(map);
      return element("div", {}, element("small", { class: "quiet" }, `layer ${layer}, head ${map.head}`), map.headButton);
    }));
  }

  #drawLarge(map, rows) {
    const place = `layer ${map.layer}, head ${map.head}`;
    this.large.draw({ title: `${this.model.id}, ${this.receipt.attention}: ${place}`, names: this.names,
      file: `${this.model.id}-${this.receipt.attention}-${place}`.replace(/[^\w.=-]+/g, "_") }, rows);
  }

  // As `lssar attention --json` prints it: `lssar figure attention` draws it.
  #toJson() {
    const { receipt } = this;
    return { model: this.model.id, checkpoint_hash: receipt.checkpoint_hash, num_prompt_tokens: this.length, attention: receipt.attention, receipt,
      tokens: this.ids.map((token, i) => ({ id: token, piece: this.pieces[i] })), rows: this.map.largeRows ?? this.map.rows };
  }

  // Draws `map` large: from the rows of the small map at once, then from more, for which the server
  // reads the text again.
  async select(map, fine = true) {
    this.map = map;
    this.#showHeads(map.layer);
    for (const one of this.buttons) {
      for (const button of [one.button, one.headButton]) button?.setAttribute("aria-pressed", String(one === map));
    }
    this.caption.textContent = `${map.label}.`;
    this.#drawLarge(map, map.largeRows ?? map.rows);
    if (this.position !== undefined) this.look(this.position).catch(showError);
    if (map.largeRows || !fine) return;
    map.largeRows = map.rows.length === this.length ? map.rows
      : await this.fetch({ layers: [map.layer], heads: [map.head], rows: spread(this.length, LARGE_ROWS) });
    if (this.map === map) this.#drawLarge(map, map.largeRows);
  }

  // Draws the keys of `position`; returns its row.
  async look(position) {
    this.position = position;
    const map = this.map;
    const key = `${map.layer} ${map.head} ${position}`;
    if (!this.rows.has(key)) await this.fetch({ layers: [map.layer], heads: [map.head], rows: [position] });
    const row = this.rows.get(key);
    if (this.position !== position || this.map !== map) return row; // another one is drawn by now
    const x = (at) => 10 + 980 * (at + 0.5) / this.length;
    this.arcs.replaceChildren(...strongest(row).map(([at, weight]) => {
      const top = 138 - 130 * Math.sqrt(Math.abs(x(position) - x(at)) / 980);
      return arc(`M${x(position)} 138C${x(position)} ${top} ${x(at)} ${top} ${x(at)} 138`, at, weight);
    }));
    this.rowTable.replaceChildren(
      element("p", {}, `Token ${position} looks at ${row.num_nonzero} of ${position + 1} keys; effective keys ${digits(Math.exp(row.entropy))}.`),
      table(["key", "token", "weight"], strongest(row).slice(0, 8).map(([at, weight]) => [at, this.names[at], digits(weight)])));
    return row;
  }
}

// The function to show beside the checkpoint's, or null.
function comparedFunction() {
  const p = byId("compare-p").value, kind = byId("compare-kind").value;
  if (byId("compare").hidden || (p === "" && kind === "")) return null;
  return { ...(kind === "" ? {} : { kind }), ...(p === "" ? {} : { p: Number(p) }) };
}

function showError(error) {
  if (error.name !== "AbortError") byId("attention-status").textContent = error.message;
}

// Follows the pointer: positions that it left before they were drawn are skipped.
function follower(panels, text) {
  let wanted = null, busy = false;
  return async (position) => {
    wanted = position;
    if (busy) return;
    busy = true;
    try {
      while (wanted !== null) {
        const at = wanted;
        wanted = null;
        const drawn = panels.filter((panel) => panel.map); // those that have their maps
        const rows = await Promise.all(drawn.map((panel) => panel.look(at)));
        text().draw(at, rows);
      }
    } catch (error) {
      showError(error);
    } finally {
      busy = false;
    }
  };
}

// What is shown: the checkpoint, its weights with another function, the second server.
function sources() {
  const compared = comparedFunction(), second = getSecond();
  return [{ model, override: null, server: null },
    ...(compared ? [{ model, override: compared, server: null }] : []),
    ...(second ? [{ model: second.model, override: null, server: second }] : [])];
}

// Errors  the second server splits the text into other tokens: rows and keys are not the same then
async function checkSameTokens(prompt, ids, signal) {
  const second = getSecond();
  if (!second) return;
  const { tokens } = await post("tokenize", { prompt }, signal, second);
  const same = tokens.length === ids.length && tokens.every((id, i) => id === ids[i]);
  if (!same) throw new Error(`${second.origin} has another tokenizer: ${tokens.length} tokens there, ${ids.length} here. Maps of different tokens cannot be compared.`);
}

async function see(wantedRows) {
  const prompt = byId("attention-text").value;
  const status = byId("attention-status");
  if (prompt === "") {
    status.textContent = "Write a text first.";
    return;
  }
  controller?.abort();
  controller = new AbortController();
  const { signal } = controller;
  status.textContent = "Computing…";
  const started = performance.now();
  let drawsMaps = false;
  try {
    const { tokens: ids, token_strs: pieces } = await post("tokenize", { prompt, return_token_strs: true }, signal);
    const panels = [];
    const lookAt = follower(panels, () => text);
    const text = new ArcedText(pieces, lookAt);
    await checkSameTokens(prompt, ids, signal);
    for (const source of sources()) panels.push(new Panel(source, ids, pieces, lookAt, panels, signal));
    byId("attention-result").replaceChildren(
      element("p", { class: "quiet" }, text.first > 0 ? `The last ${MAX_TOKENS_SHOWN} of ${ids.length} tokens. ` : "",
        "Point at a token, or at a row of the large map, to see where it looked."),
      text.node, element("div", { class: panels.length > 1 ? "split" : "" }, ...panels.map((panel) => panel.node)));
    drawsMaps = true;
    let shown = 0;
    for (const panel of panels) shown = await panel.load(wantedRows);
    const rows = shown < ids.length ? `; each small map shows ${shown} rows` : "";
    status.textContent = `${ids.length} tokens in ${digits((performance.now() - started) / 1000)} s${rows}`;
    await lookAt(ids.length - 1);
  } catch (error) {
    showError(error);
    const fewer = Math.ceil(wantedRows / FEWER);
    // The server names "layers" where layers x heads x keys of the rows are too many.
    if (!drawsMaps || fewer === wantedRows || error.param !== "layers") return;
    status.append(" ", element("button", { type: "button", class: "plain", onclick: () => see(fewer) }, `Try with ${fewer} rows a map`));
  }
}

function offerFunctions(openApi) {
  const { p, kind } = openApi.components.schemas.AttentionOverride.properties;
  byId("compare-p").max = p.maximum;
  const select = byId("compare-kind"), chosen = select.value;
  select.replaceChildren(select.options[0], ...kind.enum.filter((name) => name !== null && name !== "phi").map((name) => element("option", {}, name)));
  select.value = chosen;
}

export function serve(served, openApi) {
  model = served;
  byId("compare").hidden = !served.attention_override_allowed;
  offerFunctions(openApi);
}

export function start() {
  byId("attention-form").addEventListener("submit", (event) => {
    event.preventDefault();
    see(OVERVIEW_ROWS);
  });
}

export function openText(text) {
  byId("attention-text").value = text;
  byId("attention-form").requestSubmit();
}
