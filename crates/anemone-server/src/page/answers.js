// Answers of a decision as cards with a bar for every option.

import { duration, figure, h } from "./dom.js";

const percent = (p) => `${figure(p * 100, 1)}\u00a0%`;

/** One option with its probability. */
function bar(label, p, best, note) {
  const fill = h("span", { class: "fill" });
  fill.style.width = `${Math.max(0, Math.min(1, p)) * 100}%`;
  const meter = { class: "track", role: "meter", "aria-valuemin": 0, "aria-valuemax": 1, "aria-valuenow": p, "aria-valuetext": percent(p), "aria-label": label };
  return h(
    "div",
    { class: best ? "bar-row best" : "bar-row" },
    h("span", { class: "bar-label", title: note || null }, label),
    h("span", meter, fill),
    h("span", { class: "bar-value" }, percent(p)),
  );
}

/** Options of an answer in the order of its question, as label, probability and explanation. */
function entries(question, answer) {
  if (answer.type === "noul") {
    return [["yes", answer.noul, question.criteria?.true], ["no", 1 - answer.noul, question.criteria?.false]];
  }
  const named = answer.legend ?? {};
  const meanings = Array.isArray(question.criteria) ? {} : (question.criteria ?? {});
  return Object.entries(answer.probabilities ?? {}).map(([key, p]) => [named[key] ?? key, p, meanings[key]]);
}

function headline(answer, best) {
  if (answer.type === "noul") return answer.noul >= 0.5 ? "Yes" : "No";
  if (answer.type === "choice") return answer.choice;
  return best[0];
}

function card(id, question, answer) {
  const rows = entries(question, answer);
  const best = rows.reduce((top, row) => (row[1] > top[1] ? row : top), rows[0]);
  const facts = [];
  if (answer.type === "score") facts.push(`score ${figure(answer.score, 2)} of ${rows.length - 1}`);
  if (answer.answer_confidence !== undefined) facts.push(`confidence ${percent(answer.answer_confidence)}`);
  if (answer.abstention === "abstained") facts.push("below the bar");
  return h(
    "article",
    { class: "answer", "data-question": id },
    h("header", null, h("span", { class: "id" }, id), h("span", { class: "facts" }, facts.join(" · "))),
    h("p", { class: "asked" }, question.instructions),
    h("p", { class: "verdict" }, String(headline(answer, best))),
    h("div", { class: "bars" }, rows.map((row) => bar(row[0], row[1], row === best, row[2]))),
  );
}

/** A result of `/v1/systemone` for its questions, with its cost. */
export function results(questions, result, { inference, whole }) {
  const usage = result.usage ?? {};
  const parts = [];
  if (result.routing?.model) parts.push(result.routing.model);
  if (usage.input_tokens !== undefined) parts.push(`${figure(usage.input_tokens)} tokens`);
  if (inference) parts.push(`${duration(inference)} in the model`);
  parts.push(`${duration(whole)} in all`);
  const cards = Object.entries(result.answers ?? {}).map(([id, answer]) => card(id, questions[id], answer));
  const cut = usage.truncated
    ? h("p", { class: "alarm" }, `The text was too long for the model: ${figure(usage.state_tokens_dropped)} of its tokens were not read.`)
    : null;
  return [cut, ...cards, h("p", { class: "status" }, parts.join(" · "))].filter(Boolean);
}
