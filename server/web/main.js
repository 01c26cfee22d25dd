// The page: views as tabs, the banner of errors, the API key.
import { getJson, getKey, getSecond, onCheckpoint, onFailure, setKey, setSecond } from "./api.js";
import { byId, element } from "./dom.js";
import { about } from "./about.js";
import * as attention from "./attention.js";
import * as score from "./score.js";
import * as serving from "./serving.js";
import * as write from "./write.js";

const VIEWS = ["write", "score", "attention", "serving"];
const RETRY_MS = 2000;
const PROBE_TIMEOUT_MS = 5000;

let shown = null; // the view

function show(name) {
  shown = name;
  for (const view of VIEWS) {
    const tab = byId(`tab-${view}`);
    tab.setAttribute("aria-selected", String(view === name));
    tab.tabIndex = view === name ? 0 : -1;
    byId(`view-${view}`).hidden = view !== name;
  }
  serving.show(name === "serving");
  history.replaceState(null, "", `#${name}`);
}

function setUpTabs() {
  for (const [i, view] of VIEWS.entries()) {
    const tab = byId(`tab-${view}`);
    tab.addEventListener("click", () => show(view));
    tab.addEventListener("keydown", (event) => {
      const at = { ArrowRight: i + 1, ArrowLeft: i - 1 + VIEWS.length, Home: 0, End: VIEWS.length - 1 }[event.key];
      if (at === undefined) return;
      event.preventDefault();
      const next = VIEWS[at % VIEWS.length];
      show(next);
      byId(`tab-${next}`).focus();
    });
  }
}

// Does nothing where it shows the same already: the focus may be on its button.
function showBanner(...content) {
  const banner = byId("banner");
  if (content.length && !banner.hidden && element("div", {}, ...content).textContent === banner.textContent) return;
  banner.replaceChildren(...content);
  banner.hidden = content.length === 0;
}

const dismiss = () => element("button", { class: "plain", onclick: () => showBanner() }, "Dismiss");

// What a person can do about an error that is not about a field of the request.
let waiting = false;
function explain(error) {
  if (error.status === 401 || error.status === 403) {
    showBanner(`${error.message}`, element("button", { onclick: askForKey }, "Enter an API key"), dismiss());
  } else if (error.status === 429) {
    const wait = error.retryAfter ? ` It suggests to try again in ${error.retryAfter} s.` : "";
    showBanner(`The server is at its limit: ${error.message}.${wait}`, dismiss());
  } else if (error.status === 0 || error.status === 503) {
    showBanner(error.status === 0 ? "The server does not answer. Trying again…" : `The server is not ready: ${error.message} Trying again…`);
    if (!waiting) waitForServer();
  }
}

async function waitForServer() {
  waiting = true;
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    try {
      const response = await fetch("readyz", { signal: AbortSignal.timeout(PROBE_TIMEOUT_MS) });
      if (response.ok) break;
    } catch { /* still away */ }
  }
  waiting = false;
  showBanner();
  load();
}

function askForKey() {
  byId("key").value = getKey();
  byId("key-dialog").returnValue = ""; // Escape leaves it as it is
  byId("key-dialog").showModal();
}

function showModels() {
  const second = getSecond();
  byId("model-name").textContent = second ? `${model.id} beside ${second.model.id}` : model.id;
  byId("about").replaceChildren(about(model), ...(second ? [element("br"), `At ${second.origin}: `, about(second.model)] : []));
}

function setUpSecondServer() {
  const dialog = byId("second-dialog"), error = byId("second-error");
  byId("second-button").disabled = false;
  byId("second-button").addEventListener("click", () => {
    error.textContent = "";
    dialog.showModal();
  });
  byId("second-remove").addEventListener("click", () => {
    setSecond(null);
    showModels();
    dialog.close();
  });
  byId("second-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    const server = { origin: new URL(byId("second-address").value).origin, key: byId("second-key").value.trim() };
    try {
      [server.model] = (await getJson("v1/models", { server })).data;
    } catch (failure) {
      error.textContent = failure.message;
      return;
    }
    setSecond(server);
    showModels();
    dialog.close();
  });
}

// Sets the views up, once: until all that they need is there, nothing is. Later it tells them of the
// model that the server has by then.
let loading = false, model = null;
async function load() {
  if (loading) return;
  loading = true;
  let served, openApi;
  try {
    [served] = (await getJson("v1/models")).data;
    openApi = await getJson("openapi.json");
  } catch (error) {
    // The banner says why. After a key, and once the server answers, it comes back here.
    const comesBack = [0, 401, 403, 503].includes(error.status);
    if (!comesBack) setTimeout(load, error.retryAfter ? 1000 * error.retryAfter : RETRY_MS);
    return;
  } finally {
    loading = false;
  }
  const isFirst = model === null;
  model = served;
  showBanner();
  showModels();
  document.title = `${model.id} - lssar`;
  write.serve(model, openApi);
  score.serve(model);
  attention.serve(model, openApi);
  serving.serve(model);
  if (!isFirst) return;
  setUpSecondServer();
  const open = (name, view) => (text) => { show(name); view.openText(text); };
  write.start({ score: open("score", score), attention: open("attention", attention) });
  score.start();
  attention.start();
}

setUpTabs();
onFailure(explain);
onCheckpoint((hash) => {
  if (model && hash !== model.checkpoint_hash) load();
});
byId("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address names the view
  byId("main").focus();
});
window.addEventListener("hashchange", () => {
  const name = location.hash.slice(1);
  show(VIEWS.includes(name) ? name : shown);
});
byId("key-button").addEventListener("click", askForKey);
byId("key-dialog").addEventListener("close", () => {
  if (byId("key-dialog").returnValue !== "save") return;
  setKey(byId("key").value.trim());
  showBanner();
  load();
  show(shown); // Serving may read with this key
});
// No form leaves the page, also before its view is set up.
document.addEventListener("submit", (event) => {
  if (event.target.method !== "dialog") event.preventDefault();
});
show(VIEWS.includes(location.hash.slice(1)) ? location.hash.slice(1) : "write");
load();
