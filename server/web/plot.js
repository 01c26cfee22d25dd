// Small line charts in SVG, and heat maps on a canvas.
import { digits, svg } from "./dom.js";

const WIDTH = 480, LEFT = 46, RIGHT = 8, TOP = 8, BOTTOM = 22;

// Round values from low to high, about four.
function ticks(low, high) {
  const span = high - low || 1;
  const step = 10 ** Math.floor(Math.log10(span / 3));
  const size = step * (span / step > 8 ? 5 : span / step > 4 ? 2 : 1);
  const values = [];
  for (let value = Math.ceil(low / size) * size; value <= high + size / 1e6; value += size) values.push(value);
  return values;
}

// points: [[x, y], ...] in rising x; band: [[x, low, high], ...], raw: points drawn as dots.
export function lineChart({ points, band = [], raw = [], label, height = 160, zero = false, xTicks = null, yUnit = digits }) {
  const xs = points.map(([x]) => x);
  const ys = points.map(([, y]) => y).concat(band.flatMap(([, low, high]) => [low, high]), raw.map(([, y]) => y));
  const low = zero ? 0 : Math.min(...ys), most = Math.max(...ys), high = most > low ? most : low + 1;
  const first = xs[0] ?? 0, last = xs.at(-1) ?? 1;
  const x = (value) => LEFT + (WIDTH - LEFT - RIGHT) * ((value - first) / ((last - first) || 1));
  const y = (value) => TOP + (height - TOP - BOTTOM) * (1 - (value - low) / ((high - low) || 1));
  const path = (list) => list.map(([px, py], i) => `${i ? "L" : "M"}${x(px).toFixed(1)} ${y(py).toFixed(1)}`).join("");
  const made = svg("svg", { class: "plot", viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": label });
  for (const value of ticks(low, high)) {
    made.append(svg("line", { class: "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }),
      svg("text", { x: LEFT - 5, y: y(value) + 4, "text-anchor": "end" }, yUnit(value)));
  }
  for (const value of xTicks ?? ticks(first, last)) {
    made.append(svg("text", { x: x(value), y: height - 5, "text-anchor": "middle" }, digits(value)));
  }
  for (const [px, py] of raw) made.append(svg("circle", { class: "raw", cx: x(px), cy: y(py), r: 1.5 }));
  if (band.length) {
    const upper = band.map(([px, , top]) => [px, top]), lower = band.map(([px, bottom]) => [px, bottom]).reverse();
    made.append(svg("path", { class: "band", d: `${path(upper)}${path(lower).replace("M", "L")}Z` }));
  }
  if (points.length) made.append(svg("path", { class: "series", d: path(points) }));
  return made;
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

// Rows of a text of `length` tokens, in at most `cells` columns; keys after a row's own stay empty.
export function drawMap(canvas, rows, length, cells) {
  const columns = Math.min(length, cells);
  const drawn = rows.map((row) => bins(row, length, columns));
  heatMap(canvas, rows.length, columns, (y, x) => (Math.floor(x * length / columns) > rows[y].row ? null : drawn[y][x]));
}

// Colours from a plain page to the accent, as the paper's Fig. A1: weights are clamped to [0, 0.5].
export const CLAMP = 0.5;
const RAMP = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]]; // viridis
export function colour(weight) {
  const at = Math.min(Math.max(weight, 0) / CLAMP, 1) ** 0.5 * (RAMP.length - 1);
  const i = Math.min(Math.floor(at), RAMP.length - 2), part = at - i;
  return RAMP[i].map((channel, c) => Math.round(channel + part * (RAMP[i + 1][c] - channel)));
}

// cells: a function (row, column) -> weight or null (outside); drawn one pixel a cell.
export function heatMap(canvas, rows, columns, cells) {
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  for (let row = 0; row < rows; ++row) {
    for (let column = 0; column < columns; ++column) {
      const weight = cells(row, column);
      if (weight === null) continue;
      const [red, green, blue] = colour(weight);
      image.data.set([red, green, blue, 255], 4 * (row * columns + column));
    }
  }
  context.putImageData(image, 0, 0);
}
