// The page: views as tabs, the banner of errors, the API key.
import { getJson, getKey, getSecond, onFailure, setKey, setSecond } from "./api.js";
import { byId, element } from "./dom.js";
import { about } from "./about.js";
import * as attention from "./attention.js";
import * as score from "./score.js";
import * as serving from "./serving.js";
import * as write from "./write.js";

const VIEWS = ["write", "score", "attention", "serving"];
const RETRY_MS = 2000;

function show(name) {
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

function showBanner(...content) {
  byId("banner").replaceChildren(...content);
  byId("banner").hidden = content.length === 0;
}

// What a person can do about an error that is not about a field of the request.
let waiting = false;
function explain(error) {
  if (error.status === 401 || error.status === 403) {
    showBanner(`${error.message}`, element("button", { onclick: askForKey }, "Enter an API key"));
  } else if (error.status === 429) {
    const wait = error.retryAfter ? ` It suggests to try again in ${error.retryAfter} s.` : "";
    showBanner(`The server is at its limit: ${error.message}.${wait}`, element("button", { class: "plain", onclick: () => showBanner() }, "Dismiss"));
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
      const response = await fetch("readyz");
      if (response.ok) break;
    } catch { /* still away */ }
  }
  waiting = false;
  showBanner();
  load();
}

function askForKey() {
  byId("key").value = getKey();
  byId("key-dialog").showModal();
}

function showModels(model) {
  const second = getSecond();
  byId("model-name").textContent = second ? `${model.id} beside ${second.model.id}` : model.id;
  byId("about").replaceChildren(about(model), ...(second ? [element("br"), `At ${second.origin}: `, about(second.model)] : []));
}

function setUpSecondServer(model) {
  const dialog = byId("second-dialog"), error = byId("second-error");
  byId("second-button").disabled = false;
  byId("second-button").addEventListener("click", () => {
    error.textContent = "";
    dialog.showModal();
  });
  byId("second-remove").addEventListener("click", () => {
    setSecond(null);
    showModels(model);
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
    showModels(model);
    dialog.close();
  });
}

// Sets the views up, once: until all that they need is there, nothing is.
let loading = false, loaded = false;
async function load() {
  if (loading || loaded) return;
  loading = true;
  let model, openApi;
  try {
    [model] = (await getJson("v1/models")).data;
    openApi = await getJson("openapi.json");
  } catch (error) {
    // The banner says why. After a key, and once the server answers, it comes back here.
    const comesBack = [0, 401, 403, 503].includes(error.status);
    if (!comesBack) setTimeout(load, error.retryAfter ? 1000 * error.retryAfter : RETRY_MS);
    return;
  } finally {
    loading = false;
  }
  loaded = true;
  showBanner();
  showModels(model);
  setUpSecondServer(model);
  document.title = `${model.id} - lssar`;
  const open = (name, view) => (text) => { show(name); view.openText(text); };
  write.start(model, openApi, { score: open("score", score), attention: open("attention", attention) });
  score.start(model);
  attention.start(model);
  serving.start(model);
}

setUpTabs();
onFailure(explain);
byId("key-button").addEventListener("click", askForKey);
byId("key-dialog").addEventListener("close", () => {
  if (byId("key-dialog").returnValue !== "save") return;
  setKey(byId("key").value.trim());
  showBanner();
  load();
});
// No form leaves the page, also before its view is set up.
document.addEventListener("submit", (event) => {
  if (event.target.method !== "dialog") event.preventDefault();
});
show(VIEWS.includes(location.hash.slice(1)) ? location.hash.slice(1) : "write");
load();
