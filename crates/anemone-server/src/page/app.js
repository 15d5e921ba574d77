// The page: its two tabs, the list of models and the key.

import * as api from "./api.js";
import { Chat } from "./chat.js";
import { Decide } from "./decide.js";
import { alarm, byId, h } from "./dom.js";

const chat = new Chat();
const decide = new Decide();

const TABS = ["chat", "decide"];

function open(name, focus = false) {
  for (const tab of TABS) {
    const button = byId(`tab-${tab}`);
    const chosen = tab === name;
    button.setAttribute("aria-selected", String(chosen));
    button.tabIndex = chosen ? 0 : -1;
    byId(tab).hidden = !chosen;
    if (chosen && focus) button.focus();
  }
  document.body.dataset.tab = name;
  document.title = name === "chat" ? "Chat · anemone" : "Decide · anemone";
  if (location.hash !== `#${name}`) history.replaceState(null, "", `#${name}`);
  (name === "chat" ? chat : decide).shown();
}

for (const tab of TABS) byId(`tab-${tab}`).addEventListener("click", () => open(tab));
document.querySelector(".tabs").addEventListener("keydown", (event) => {
  if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
  open(document.body.dataset.tab === "chat" ? "decide" : "chat", true);
  event.preventDefault();
});
window.addEventListener("hashchange", () => {
  const name = location.hash.slice(1);
  if (TABS.includes(name)) open(name);
});

/** Reads what models there are; a list that cannot be read says why and offers another try. */
async function load() {
  const notice = byId("notice");
  try {
    const { data } = await (await api.get("/v1/models")).json();
    notice.replaceChildren();
    chat.models(data.filter((model) => model.kind !== "decision"));
    decide.models(data.filter((model) => model.kind === "decision"));
    return data;
  } catch (error) {
    const again = h("button", { class: "quiet", onclick: load }, "Try again");
    notice.replaceChildren(alarm(`The list of models could not be read. ${error.message}`, again));
    return null;
  }
}

const dialog = byId("key-dialog");

function askForKey(problem) {
  byId("key-button").hidden = false;
  byId("key-problem").textContent = problem;
  if (!dialog.open) dialog.showModal();
  byId("key").focus();
}

window.addEventListener("key-wanted", () => askForKey(api.hasKey() ? "The server did not take this key." : ""));
byId("key-button").addEventListener("click", () => askForKey(""));
byId("key-cancel").addEventListener("click", () => dialog.close());
byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  api.setKey(byId("key").value.trim());
  byId("key").value = "";
  dialog.close();
  load();
});
byId("key-button").hidden = !api.hasKey();

const wanted = location.hash.slice(1);
load().then((models) => {
  const only = models?.length && models.every((model) => model.kind === "decision");
  if (!TABS.includes(wanted) && only) open("decide");
});
open(TABS.includes(wanted) ? wanted : "chat");
