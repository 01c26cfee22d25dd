// A text as tokens that are coloured by probability. Hover or focus shows a card with the
// alternatives. The tokens of a text are one tab stop: arrow keys move within it.
import { byId, digits, element, percent } from "./dom.js";

const LIMITS = [0.5, 0.2, 0.05, 0.01, 0.001]; // lower bounds of levels 0..4; level 5 is the rest

const level = (logprob) => {
  const probability = Math.exp(logprob);
  const found = LIMITS.findIndex((limit) => probability >= limit);
  return found < 0 ? LIMITS.length : found;
};

export function legend() {
  const names = LIMITS.map((limit) => `≥ ${limit}`).concat(`< ${LIMITS.at(-1)}`);
  return [element("b", {}, "Probability of a token: "),
    ...names.map((name, i) => element("span", { class: `p${i}` }, name))];
}

// The bytes of a token that is not whole UTF-8 ("bytes:\xc3\xb1" in replies), or null.
const bytesOf = (text) => (/^bytes:(\\x[0-9a-f]{2})+$/.test(text) ? text.match(/[0-9a-f]{2}/g).map((hex) => parseInt(hex, 16)) : null);

// A token by itself: shows white space that would be invisible in a list, and bytes as ‹C3›.
export function visible(text) {
  const bytes = bytesOf(text);
  if (bytes) return `‹${bytes.map((byte) => byte.toString(16).toUpperCase().padStart(2, "0")).join(" ")}›`;
  return text.replaceAll("\n", "↵").replaceAll(" ", "␣");
}

// A text of tokens some of which hold parts of characters. A character stands in the token with its
// first byte; tokens with only later bytes show nothing. What never becomes a character is \ufffd.
export class Characters {
  shown = [];      // by token
  #texts = [];
  #parts = [];     // by token: the characters that it shares with other tokens
  #open = [];      // bytes of a character that is not complete
  #missing = 0;    // bytes of it to come
  #began = 0;      // the token with its first byte

  // Adds a token; returns the token from which on `shown` has changed.
  add(text) {
    const at = this.shown.length;
    const changed = this.#missing ? this.#began : at;
    this.#texts.push(text);
    this.#parts.push("");
    this.shown.push("");
    const bytes = bytesOf(text);
    if (!bytes) {
      this.#missing = 0;
      this.shown[at] = text;
    }
    for (const byte of bytes ?? []) this.#addByte(byte, at);
    return changed;
  }

  #addByte(byte, at) {
    if (this.#missing && (byte & 0xc0) === 0x80) {
      this.#open.push(byte);
      if (--this.#missing) return;
      const character = new TextDecoder().decode(new Uint8Array(this.#open));
      this.shown[this.#began] = this.shown[this.#began].slice(0, -1) + character;
      for (let i = this.#began; i <= at; ++i) this.#parts[i] += character;
      return;
    }
    this.#open = [byte];
    this.#began = at;
    this.#missing = byte >= 0xf0 ? 3 : byte >= 0xe0 ? 2 : byte >= 0xc0 ? 1 : 0;
    this.shown[at] += byte < 0x80 ? String.fromCharCode(byte) : "\ufffd"; // until it is complete
  }

  // A token's name in a list: "␣cat"; "ñ‹B1›" for a part of ñ.
  name(index) {
    return this.#parts[index] + visible(this.#texts[index]);
  }
}

export function tokenNames(texts) {
  const characters = new Characters();
  for (const text of texts) characters.add(text);
  return texts.map((_, i) => characters.name(i));
}

// {text, logprob, top: [{text, logprob}]} -> the rows of the card.
function cardContent(token, name) {
  const lines = [element("b", {}, name)];
  if (token.logprob !== null && token.logprob !== undefined) {
    lines.push(` ${percent(Math.exp(token.logprob))}, log-probability ${digits(token.logprob)}`);
  }
  if (token.note) lines.push(element("br"), token.note);
  if (token.top?.length) {
    lines.push(element("table", {}, element("tbody", {}, ...token.top.map((other) => element("tr", {},
      element("td", {}, visible(other.text)), element("td", {}, percent(Math.exp(other.logprob))),
      element("td", {}, digits(other.logprob)))))));
  }
  return lines;
}

// What scrolls under a pointer that rests is not pointed at.
const placeOf = (event) => `${event.screenX},${event.screenY}`;
let pointerAt = "";
document.addEventListener("pointermove", (event) => { pointerAt = placeOf(event); });
const hasMoved = (event) => placeOf(event) !== pointerAt; // its own pointermove comes after it

export class TokenText {
  // `onPoint(index or null)`: the token under the pointer or with the focus.
  constructor({ label, onPoint = null }) {
    this.node = element("div", { class: "text", role: "group", tabindex: "0", "aria-label": label });
    this.tokens = [];
    this.spans = [];
    this.characters = new Characters();
    this.current = -1;
    this.onPoint = onPoint;
    this.node.addEventListener("pointerover", (event) => {
      if (hasMoved(event)) this.#point(this.spans.indexOf(event.target));
    });
    this.node.addEventListener("pointerleave", (event) => {
      if (event.pointerType !== "touch" && hasMoved(event)) this.#point(-1); // a finger leaves with each tap
    });
    this.node.addEventListener("blur", () => this.#point(-1));
    this.node.addEventListener("keydown", (event) => this.#move(event));
  }

  add(token) {
    const span = element("span", { class: "token" });
    if (token.logprob !== null && token.logprob !== undefined) span.classList.add(`p${level(token.logprob)}`);
    if (token.isPrompt) span.classList.add("prompt");
    this.tokens.push(token);
    this.spans.push(span);
    for (let i = this.characters.add(token.text); i < this.spans.length; ++i) this.#show(i);
    this.node.append(span);
  }

  // Cuts what the tokens have beyond `text`: the stop string that ended it, or what the server held
  // back when it was stopped. A token without anything left stays, with its probabilities.
  end(text) {
    const { shown } = this.characters;
    if (!shown.join("").startsWith(text)) return;
    let left = text.length;
    for (let i = 0; i < shown.length; ++i) {
      const kept = shown[i].slice(0, left);
      left -= kept.length;
      if (kept !== shown[i]) this.#show(i, kept || "·");
    }
  }

  #show(index, shown = this.tokens[index].text === "" ? "·" : this.characters.shown[index]) {
    const span = this.spans[index];
    span.textContent = shown;
    span.classList.toggle("line", shown.startsWith("\n"));
    span.classList.toggle("part", shown === ""); // its character stands in an earlier token
  }

  addPlain(text) {
    this.node.append(element("span", { class: "prompt" }, text));
  }

  #move(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10 }[event.key];
    if (event.key === "Escape") return this.#point(-1);
    if (!step || !this.spans.length) return undefined;
    event.preventDefault();
    const next = Math.min(Math.max(this.current + step, 0), this.spans.length - 1);
    this.spans[next].scrollIntoView({ block: "nearest" });
    return this.#point(next);
  }

  #point(index) {
    if (index === this.current) return;
    this.#setCurrent(index);
    const card = byId("card");
    const span = this.spans[index];
    card.hidden = !span;
    this.onPoint?.(span ? index : null);
    if (!span) return;
    card.replaceChildren(...cardContent(this.tokens[index], this.characters.name(index)));
    const box = span.getBoundingClientRect();
    const left = Math.min(box.left, document.documentElement.clientWidth - card.offsetWidth - 8);
    card.style.left = `${Math.max(left, 4) + window.scrollX}px`;
    const below = box.bottom + 6, above = box.top - 6 - card.offsetHeight;
    const top = below + card.offsetHeight > document.documentElement.clientHeight && above >= 0 ? above : below;
    card.style.top = `${top + window.scrollY}px`;
  }

  // For eyes and for screen readers: the token, and the card that describes it.
  #setCurrent(index) {
    const before = this.spans[this.current], span = this.spans[index];
    before?.classList.remove("current");
    before?.removeAttribute("id");
    before?.removeAttribute("aria-describedby");
    this.current = index;
    if (!span) {
      this.node.removeAttribute("aria-activedescendant");
      this.node.removeAttribute("aria-describedby");
      return;
    }
    span.classList.add("current");
    span.id = "current-token";
    span.setAttribute("aria-describedby", "card");
    this.node.setAttribute("aria-activedescendant", span.id);
    this.node.setAttribute("aria-describedby", "card");
  }

  // Underlines the tokens that `isSeen(index)` names.
  mark(isSeen) {
    this.spans.forEach((span, i) => span.classList.toggle("seen", isSeen(i)));
  }
}

// Tokens of one `logprobs` object of an OpenAI reply: a completion's or a chat's.
export function tokensOf(logprobs) {
  if (!logprobs) return [];
  if (logprobs.content) {
    return logprobs.content.map((entry) => ({
      text: entry.token, logprob: entry.logprob,
      top: entry.top_logprobs.map((other) => ({ text: other.token, logprob: other.logprob })),
    }));
  }
  return logprobs.tokens.map((text, i) => ({
    text, logprob: logprobs.token_logprobs[i],
    top: Object.entries(logprobs.top_logprobs?.[i] ?? {}).map(([other, logprob]) => ({ text: other, logprob }))
      .sort((a, b) => b.logprob - a.logprob),
  }));
}
