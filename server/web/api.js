// The HTTP API of this server, and of a second one: requests, streams of events, and errors in one
// shape. A request without `server` goes to the server that this page is from.

const KEY = "lssar-api-key";

export const getKey = () => sessionStorage.getItem(KEY) ?? "";
export const setKey = (key) => (key ? sessionStorage.setItem(KEY, key) : sessionStorage.removeItem(KEY));

// A server beside this one, {origin, key, model}, or null.
let second = null;
export const getSecond = () => second;
export const setSecond = (server) => { second = server; };

// An answer other than 2xx, or no answer (status 0).
export class ApiError extends Error {
  constructor(status, message, { param = null, retryAfter = null } = {}) {
    super(message);
    this.status = status;
    this.param = param;
    this.retryAfter = retryAfter; // seconds
  }
}

// Listeners hear of every failed request to this server: main.js shows a banner.
const failureListeners = [];
export const onFailure = (listener) => failureListeners.push(listener);

// Listeners hear of the checkpoint of every answer of this server: main.js shows what it is.
const checkpointListeners = [];
export const onCheckpoint = (listener) => checkpointListeners.push(listener);
export function sawCheckpoint(hash) {
  for (const listener of checkpointListeners) listener(hash);
}

function withReceipt(answer, server) {
  if (!server && answer.receipt) sawCheckpoint(answer.receipt.checkpoint_hash);
  return answer;
}

function fail(error, server) {
  if (server) error.message = `${server.origin}: ${error.message}`;
  else for (const listener of failureListeners) listener(error);
  throw error;
}

function unreachable(server) {
  return new ApiError(0, server ? "it does not answer, or one of the two servers does not list the other's address in " +
    `--http-cors-origins (${location.origin} there, ${server.origin} here)` : "The server does not answer.");
}

async function open(path, { body, signal, server } = {}) {
  const headers = {};
  const key = server ? server.key : getKey();
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(server ? `${server.origin}/${path}` : path, {
      method: body === undefined ? "GET" : "POST", headers, signal,
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    return fail(unreachable(server), server);
  }
  if (response.ok) return response;
  const text = await response.text();
  let detail = {};
  try {
    detail = JSON.parse(text).error ?? {};
  } catch { /* the pages for people and probes answer with plain text */ }
  return fail(new ApiError(response.status, detail.message ?? (text.trim() || `HTTP ${response.status}`), {
    param: detail.param ?? null,
    retryAfter: Number(response.headers.get("Retry-After")) || null,
  }), server);
}

export const getJson = async (path, options) => (await open(path, options)).json();
export const getText = async (path, options) => (await open(path, options)).text();
export const post = async (path, body, signal, server) => withReceipt(await (await open(path, { body, signal, server })).json(), server);

// The status that an error has which comes within a stream: its reply began with 200.
const STATUS_OF_CODE = { rate_limit_exceeded: 429, not_implemented: 501, service_unavailable: 503, deadline_exceeded: 504 };

// Yields the JSON of each server-sent event until [DONE]. An event that holds an error throws it.
export async function* streamEvents(path, body, signal, server) {
  const response = await open(path, { body: { ...body, stream: true }, signal, server });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      let chunk;
      try {
        chunk = await reader.read();
      } catch (error) {
        if (error.name === "AbortError") throw error;
        fail(new ApiError(0, "The connection broke before the text was complete."), server);
      }
      if (chunk.done) fail(new ApiError(0, "The stream ended before the text was complete."), server);
      const events = (rest + chunk.value).split("\n\n");
      rest = events.pop();
      for (const event of events) {
        if (!event.startsWith("data: ")) continue;
        const data = event.slice("data: ".length);
        if (data === "[DONE]") return;
        const value = JSON.parse(data);
        if (value.error) fail(new ApiError(STATUS_OF_CODE[value.error.code] ?? 500, value.error.message), server);
        yield withReceipt(value, server);
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
