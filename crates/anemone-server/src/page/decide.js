// The form of typed questions, sent to `/v1/systemone`.

import * as api from "./api.js";
import { results } from "./answers.js";
import { alarm, byId, grow, h, options } from "./dom.js";

const EXAMPLE = {
  text: "i lost my card, please send a new one",
  questions: {
    lost_card: { type: "noul", instructions: "The user's intent is report lost card." },
    intent: {
      type: "choice",
      instructions: "Which intent does the user have?",
      criteria: { lost_card: "report lost card", balance: "ask for the balance", transfer: "transfer money" },
    },
    urgency: { type: "score", instructions: "How urgent?", criteria: ["no hurry", "today", "right now"] },
  },
};

const KINDS = [
  ["noul", "Yes or no"],
  ["choice", "Choice"],
  ["score", "Score"],
];

const WORDS = {
  noul: { instructions: "A statement that holds or not", legend: "What yes and no mean", add: null },
  choice: { instructions: "What is to be chosen?", legend: "Options", add: "Add an option" },
  score: { instructions: "What is measured?", legend: "Levels, from low to high", add: "Add a level" },
};

let made = 0;

/** A row of the options: a label, and for choices and statements what it means. */
function optionRow(kind, label, meaning, fixed) {
  const number = ++made;
  const name = h("input", {
    class: "label",
    id: `label-${number}`,
    value: label,
    placeholder: kind === "score" ? "Level" : "Label",
    "aria-label": kind === "score" ? "Level" : "Label of the option",
    readonly: Boolean(fixed),
    autocomplete: "off",
  });
  const text = h("input", {
    class: "meaning",
    id: `meaning-${number}`,
    value: meaning,
    placeholder: fixed ? "Optional" : "Meaning, if the label does not say",
    "aria-label": `Meaning of ${fixed ?? "the option"}`,
    autocomplete: "off",
  });
  const remove = h("button", { type: "button", class: "remove", "aria-label": "Remove the option", title: "Remove" }, "×");
  const row = h("div", { class: "option" }, name, kind === "score" ? null : text, fixed ? null : remove);
  row.read = () => [fixed ?? name.value.trim(), text.value.trim()];
  remove.addEventListener("click", () => {
    const next = row.nextElementSibling ?? row.previousElementSibling;
    row.remove();
    next?.querySelector("input")?.focus();
  });
  // Enter goes to the next row, where there is none to a new one.
  name.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.ctrlKey || event.metaKey || fixed) return;
    event.preventDefault();
    if (row.nextElementSibling) row.nextElementSibling.querySelector("input").focus();
    else row.closest(".question").addOption("", "", true);
  });
  return row;
}

/** What a definition's criteria are as labels and meanings. */
function criteriaOf({ type, criteria }) {
  if (type === "noul") return [["yes", criteria?.true ?? ""], ["no", criteria?.false ?? ""]];
  if (Array.isArray(criteria)) return criteria.map((entry) => [String(entry), ""]);
  if (criteria && typeof criteria === "object") {
    return Object.entries(criteria).map(([label, meaning]) => [label, meaning === null ? "" : String(meaning)]);
  }
  return [["", ""], ["", ""]];
}

/** A question that can be edited; `read` gives its id and its definition. */
function questionCard(id, definition) {
  const number = ++made;
  const name = h("input", { class: "id", id: `id-${number}`, value: id, spellcheck: "false", autocomplete: "off", "aria-label": "Name of the question", placeholder: "name" });
  const kind = h("select", { id: `kind-${number}`, "aria-label": "Kind of answer" });
  options(kind, KINDS);
  kind.value = definition.type;
  const instructions = h("textarea", { id: `instructions-${number}`, rows: 1, "aria-label": "Question" });
  instructions.value = definition.instructions ?? "";
  instructions.addEventListener("input", () => grow(instructions));
  const rows = h("div", { class: "options" });
  const legend = h("span", { class: "legend" });
  const add = h("button", { type: "button", class: "quiet add" });
  const remove = h("button", { type: "button", class: "remove", "aria-label": "Remove the question", title: "Remove" }, "×");
  const card = h("fieldset", { class: "question" }, h("div", { class: "row head" }, name, kind, remove), instructions, legend, rows, add);

  card.addOption = (label, meaning, focus) => {
    const fixed = kind.value === "noul" ? label : null;
    const row = optionRow(kind.value, label, meaning, fixed);
    rows.append(row);
    if (focus) row.querySelector("input").focus();
  };
  const fill = (entries) => {
    const words = WORDS[kind.value];
    rows.replaceChildren();
    for (const [label, meaning] of entries) card.addOption(label, meaning);
    instructions.placeholder = words.instructions;
    legend.textContent = words.legend;
    add.hidden = !words.add;
    add.textContent = words.add ?? "";
  };
  let before = kind.value;
  const read = () => [...rows.children].map((row) => row.read());
  kind.addEventListener("change", () => {
    // Labels live on between choices and scores.
    const keeps = before !== "noul" && kind.value !== "noul";
    fill(keeps ? read() : criteriaOf({ type: kind.value }));
    before = kind.value;
  });
  add.addEventListener("click", () => card.addOption("", "", true));
  remove.addEventListener("click", () => card.remove());
  card.read = () => {
    const given = read().filter(([label]) => label);
    const question = { type: kind.value, instructions: instructions.value.trim() };
    if (kind.value === "noul") {
      const [[, yes], [, no]] = given;
      if (yes && no) question.criteria = { true: yes, false: no };
      else if (yes || no) throw new api.Failure(`Say what both yes and no mean in “${name.value.trim()}”, or neither.`);
    } else if (kind.value === "score") {
      question.criteria = given.map(([label]) => label);
    } else if (given.some(([, meaning]) => meaning)) {
      question.criteria = Object.fromEntries(given.map(([label, meaning]) => [label, meaning || null]));
      if (Object.keys(question.criteria).length < given.length) {
        throw new api.Failure(`“${name.value.trim()}” has two options of one label.`);
      }
    } else {
      question.criteria = given.map(([label]) => label);
    }
    return [name.value.trim(), question];
  };
  fill(criteriaOf(definition));
  return card;
}

/** The form and what it was answered. */
export class Decide {
  presets = {};
  running = null;

  constructor() {
    byId("ask").addEventListener("submit", (event) => {
      event.preventDefault();
      this.ask();
    });
    byId("ask").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        this.ask();
      }
    });
    byId("state").addEventListener("input", () => grow(byId("state")));
    byId("state-form").addEventListener("change", () => this.form());
    byId("preset").addEventListener("change", () => this.start(byId("preset").value));
    byId("add-question").addEventListener("click", () => {
      const card = questionCard(`question_${byId("questions").children.length + 1}`, { type: "noul" });
      byId("questions").append(card);
      card.querySelector("textarea").focus();
    });
    options(byId("preset"), [["example", "Example"]]);
    this.start("example");
    this.rest();
    this.readPresets();
  }

  async readPresets() {
    try {
      this.presets = await (await api.get("/page/presets.json")).json();
    } catch {
      return; // The example is there without them.
    }
    const named = Object.keys(this.presets).map((name) => [name, name[0].toUpperCase() + name.slice(1)]);
    options(byId("preset"), [["example", "Example"], ...named, ["empty", "Nothing"]]);
  }

  /** Fills the form with a set of questions; a text that was written stays. */
  start(name) {
    const preset = this.presets[name];
    const questions = name === "example" ? EXAMPLE.questions : (preset?.questions ?? { question_1: { type: "noul" } });
    const state = byId("state");
    if (name === "example") state.value = EXAMPLE.text;
    else if (state.value === EXAMPLE.text) state.value = "";
    byId("state-form").value = preset ? "key" : "text";
    byId("state-key").value = preset?.state_key ?? "";
    this.form();
    byId("questions").replaceChildren(...Object.entries(questions).map(([id, question]) => questionCard(id, question)));
    this.fit();
  }

  form() {
    byId("state-key").hidden = byId("state-form").value !== "key";
  }

  /** Heights can be known only of what is shown. */
  fit() {
    for (const area of document.querySelectorAll("#ask textarea")) if (area.offsetParent) grow(area);
  }

  shown() {
    this.fit();
  }

  rest() {
    byId("answers").replaceChildren(h("p", { class: "hint" }, "Answers come with a probability for every option."));
  }

  models(list) {
    const select = byId("decide-model");
    const automatic = list.length > 1 ? [["", "By language"]] : [];
    options(select, [...automatic, ...list.map(({ id }) => [id, id])]);
    select.disabled = list.length === 0;
    byId("decide-send").disabled = list.length === 0;
    if (list.length === 0) {
      byId("answers").replaceChildren(h("p", { class: "hint" }, "This server has no decision model. Start it with one to ask."));
    }
  }

  state() {
    const text = byId("state").value;
    if (!text.trim()) throw new api.Failure("Write the text the questions are about.");
    const form = byId("state-form").value;
    if (form === "text") return text;
    if (form === "key") return { [byId("state-key").value.trim() || "message"]: text };
    try {
      return JSON.parse(text);
    } catch (error) {
      throw new api.Failure(`The text is not JSON: ${error.message}`);
    }
  }

  questions() {
    const cards = [...byId("questions").children];
    if (cards.length === 0) throw new api.Failure("Add a question first.");
    const questions = {};
    for (const card of cards) {
      const [id, question] = card.read();
      if (!id) throw new api.Failure("Give every question a name.");
      if (Object.hasOwn(questions, id)) throw new api.Failure(`Two questions have the name “${id}”.`);
      questions[id] = question;
    }
    return questions;
  }

  /** On a narrow screen answers lie under the form. */
  lead(target) {
    if (target.getBoundingClientRect().top > window.innerHeight * 0.7) byId("answers-title").scrollIntoView();
  }

  async ask() {
    if (byId("decide-send").disabled) return;
    this.running?.abort();
    const controller = new AbortController();
    this.running = controller;
    const target = byId("answers");
    target.setAttribute("aria-busy", "true");
    try {
      const questions = this.questions();
      const model = byId("decide-model").value;
      const started = performance.now();
      const request = { state: this.state(), questions, ...(model ? { model } : {}) };
      const response = await api.post("/v1/systemone", request, controller.signal);
      const result = await response.json();
      const inference = Number(response.headers.get("x-inference-time-ms"));
      target.replaceChildren(...results(questions, result, { inference, whole: performance.now() - started }));
      this.lead(target);
    } catch (error) {
      if (controller.signal.aborted) return;
      target.replaceChildren(alarm(error.message));
      this.lead(target);
    } finally {
      if (this.running === controller) target.removeAttribute("aria-busy");
    }
  }
}
