// The large attention map: a square of query tokens by keys, with a title and axes, on screen and as a
// PNG file. Both have one layout.
import { element, svg } from "./dom.js";
import { CLAMP, drawMap, heatMap } from "./plot.js";

const CELLS = 256;          // columns, at most
const LABEL_CHARACTERS = 12;
const LINE = 1.25;          // of the font: room of a label
const SCREEN_FONT = 11;     // pixels
const LEAST_SIDE = 120;
const PNG_FONT = 22, PNG_SIDE = 1100;
const FONT_FAMILY = "ui-monospace, monospace";

// Indices of [0, count) that have a label: each, or each 2nd, 5th, 10th, 20th, ...
function labelled(count, room) {
  let step = 1;
  for (let i = 0; count > room * step; ++i) step *= i % 3 === 1 ? 2.5 : 2;
  return Array.from({ length: Math.ceil(count / step) }, (_, i) => i * step);
}

const ruler = element("canvas").getContext("2d");
function widest(labels, font) {
  ruler.font = `${font}px ${FONT_FAMILY}`;
  return Math.max(...labels.map((label) => ruler.measureText(label).width));
}

// Where everything is, in pixels. map: {title, rows (positions), names (of all tokens)}.
function layout(map, font, sideOf) {
  const length = map.names.length;
  // The side depends on the width of the labels, and their number on the side: a first guess will do.
  const room = Math.max(2, Math.floor(sideOf(6 * font) / (LINE * font)));
  const lines = labelled(map.rows.length, room), keys = labelled(length, room);
  const name = (position, isEach) => {
    const short = map.names[position].length > LABEL_CHARACTERS ? `${map.names[position].slice(0, LABEL_CHARACTERS - 1)}…` : map.names[position];
    return isEach ? short : `${position} ${short}`;
  };
  const lineNames = lines.map((line) => name(map.rows[line], map.rows.length === length && lines.length === length));
  const keyNames = keys.map((key) => name(key, keys.length === length));
  const left = 2 * font + widest(lineNames, font), top = 2.2 * font, gap = 0.4 * font;
  const side = sideOf(left + gap), below = top + side + gap + widest(keyNames, font);
  const at = (i, count) => (i + 0.5) * side / count + 0.35 * font;
  return {
    left, top, side, font, width: left + side + gap, height: below + 3.6 * font,
    bar: { left, top: below + 2.2 * font, width: side / 3, height: font },
    texts: [
      { kind: "title", text: map.title, x: 0, y: 1.2 * font, anchor: "start" },
      ...lines.map((line, i) => ({ kind: "line", text: lineNames[i], x: left - gap, y: top + at(line, map.rows.length), anchor: "end" })),
      ...keys.map((key, i) => ({ kind: "key", text: keyNames[i], x: left + at(key, length), y: top + side + gap, anchor: "end", turn: -90 })),
      { kind: "axis", text: "query token", x: font, y: top + side / 2, anchor: "middle", turn: -90 },
      { kind: "axis", text: "key", x: left + side / 2, y: below + 1.1 * font, anchor: "middle" },
      { kind: "scale", text: `weight, 0 to ${CLAMP} and above`, x: left + side / 3 + gap, y: below + 3 * font, anchor: "start" }],
  };
}

function colourBar() {
  const canvas = element("canvas", { class: "bar", "aria-hidden": "true" });
  heatMap(canvas, 1, 128, (_, x) => CLAMP * x / 127);
  return canvas;
}

// A canvas with the whole figure on white.
function picture(map, heat, bar) {
  const placed = layout(map, PNG_FONT, () => PNG_SIDE);
  const canvas = element("canvas", { width: Math.ceil(placed.width), height: Math.ceil(placed.height) });
  const context = canvas.getContext("2d");
  context.fillStyle = "#fff";
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.imageSmoothingEnabled = false;
  context.drawImage(heat, placed.left, placed.top, placed.side, placed.side);
  context.drawImage(bar, placed.bar.left, placed.bar.top, placed.bar.width, placed.bar.height);
  context.strokeStyle = context.fillStyle = "#1b1f24";
  context.strokeRect(placed.left, placed.top, placed.side, placed.side);
  context.font = `${placed.font}px ${FONT_FAMILY}`;
  for (const { text, x, y, anchor, turn = 0 } of placed.texts) {
    context.save();
    context.translate(x, y);
    context.rotate(turn * Math.PI / 180);
    context.textAlign = { start: "left", middle: "center", end: "right" }[anchor];
    context.fillText(text, 0, 0);
    context.restore();
  }
  return canvas;
}

function download(blob, name) {
  const link = element("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

export class LargeMap {
  // `onRow(position)`: the row under the pointer. `toJson()`: the object of the JSON file.
  constructor(onRow, toJson) {
    this.heat = element("canvas", { class: "large", role: "img" });
    this.bar = colourBar();
    this.axes = svg("svg", { class: "axes", "aria-hidden": "true" });
    this.frame = element("div", { class: "map" }, this.axes, this.heat, this.bar);
    const save = (kind, make) => element("button", { type: "button", class: "plain", "data-file": kind,
      onclick: async () => this.map && download(await make(), `${this.map.file}.${kind}`) }, `Download ${kind.toUpperCase()}`);
    this.node = element("div", { class: "large-map" }, this.frame, element("p", { class: "actions" },
      save("png", () => new Promise((done) => picture(this.map, this.heat, this.bar).toBlob(done))),
      save("json", () => new Blob([JSON.stringify(toJson())], { type: "application/json" }))));
    this.heat.addEventListener("pointermove", (event) => {
      if (!this.map) return; // it is computed
      const position = this.map.rows[Math.floor(event.offsetY / this.heat.clientHeight * this.map.rows.length)];
      if (position !== undefined) onRow(position);
    });
    new ResizeObserver(() => this.#place()).observe(this.node);
  }

  // map: {title, file, names}; rows: as the server sent them, by rising position.
  draw(map, rows) {
    this.map = { ...map, rows: rows.map((row) => row.row) };
    drawMap(this.heat, rows, map.names.length, CELLS);
    this.heat.setAttribute("aria-label", `Map of ${map.title}: ${rows.length} rows of ${map.names.length}`);
    this.placedWidth = 0;
    this.#place();
  }

  #place() {
    const width = this.node.clientWidth;
    if (!this.map || !width || width === this.placedWidth) return;
    this.placedWidth = width;
    const placed = layout(this.map, SCREEN_FONT, (margins) => Math.max(LEAST_SIDE, width - margins));
    const put = (node, { left, top, width: wide, height }) =>
      Object.assign(node.style, { left: `${left}px`, top: `${top}px`, width: `${wide}px`, height: `${height}px` });
    put(this.heat, { left: placed.left, top: placed.top, width: placed.side, height: placed.side });
    put(this.bar, placed.bar);
    this.frame.style.height = `${placed.height}px`;
    this.axes.replaceChildren(...placed.texts.map(({ kind, text, x, y, anchor, turn = 0 }) =>
      svg("text", { class: kind, "text-anchor": anchor, transform: `translate(${x.toFixed(1)} ${y.toFixed(1)}) rotate(${turn})` }, text)));
  }
}
