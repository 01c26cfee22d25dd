// Elements. Text always goes in as text: nothing that a model or a user wrote is parsed as HTML.

export const byId = (id) => document.getElementById(id);

// element("p", {class: "quiet"}, "text", child)
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "class") made.className = value;
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null) made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

export function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

export function table(head, rows) {
  const cell = (tag) => (value) => (value instanceof Node ? element(tag, {}, value) : element(tag, {}, String(value)));
  return element("div", { class: "scroll", tabindex: "0" }, element("table", {},
    element("thead", {}, element("tr", {}, ...head.map(cell("th")))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map(cell("td")))))));
}

// Four significant digits.
export const digits = (value) => (Number.isFinite(value) ? String(Number(value.toPrecision(4))) : "-");
export const percent = (value) => `${(100 * value).toFixed(value < 0.1 ? 2 : 1)}%`;
