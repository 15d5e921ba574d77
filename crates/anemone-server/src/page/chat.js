// The chat: messages streamed from `/v1/chat/completions`.

import * as api from "./api.js";
import { alarm, byId, duration, figure, grow, h, options } from "./dom.js";
import { show } from "./markdown.js";

const SUGGESTIONS = [
  "Tell me a story about a fox.",
  "Describe the sea to someone who has never seen it.",
  "What makes a good friend?",
];
/** Seconds of text that make a rate. */
const MOMENT = 0.2;
const SETTINGS = ["system", "temperature", "max-tokens"];

const number = (id) => {
  const text = byId(id).value.trim();
  return text === "" || Number.isNaN(Number(text)) ? undefined : Number(text);
};

/** One answer while it arrives: its text, its clock and where they are shown. */
class Answer {
  constructor(model) {
    this.model = model;
    this.content = "";
    this.reasoning = "";
    this.started = performance.now();
    this.usage = null;
    this.finish = null;
    this.body = h("div", { class: "text" });
    this.thoughts = h("div", { class: "text" });
    this.summary = h("summary", null, "Thinking…");
    this.reasons = h("details", { class: "reasoning", hidden: true }, this.summary, this.thoughts);
    this.status = h("p", { class: "status" }, "Reading the prompt…");
    this.tools = h("span", { class: "actions" });
    this.node = h(
      "article",
      { class: "turn assistant", "aria-busy": "true", "aria-label": `Answer of ${model}` },
      this.reasons,
      this.body,
      h("footer", null, this.status, this.tools),
    );
  }

  take(chunk) {
    if (chunk.error) throw new api.Failure(chunk.error.message);
    if (chunk.usage) this.usage = chunk.usage;
    const [choice] = chunk.choices ?? [];
    if (!choice || choice.index > 0) return;
    const { content, reasoning_content: reasoning } = choice.delta;
    if (content || reasoning) {
      this.last = performance.now();
      this.first ??= this.last;
    }
    this.content += content ?? "";
    this.reasoning += reasoning ?? "";
    this.finish = choice.finish_reason ?? this.finish;
    this.draw();
  }

  /** Shows what has come, at most once a frame. */
  draw() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = null;
      this.paint();
    });
  }

  paint() {
    const log = byId("log");
    const follows = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
    show(this.body, this.content.trim());
    if (this.reasoning) {
      this.reasons.hidden = false;
      this.summary.textContent = this.content || this.finish ? "Reasoning" : "Thinking…";
      show(this.thoughts, this.reasoning.trim());
    }
    if (this.first) this.status.textContent = this.line();
    if (follows) log.scrollTop = log.scrollHeight;
  }

  /** Tokens, speed and times, as far as they are known. */
  line() {
    const parts = [];
    const count = this.usage?.completion_tokens;
    if (count !== undefined) parts.push(`${figure(count)} ${count === 1 ? "token" : "tokens"}`);
    // A rate over less than a moment says more about the browser than about the model.
    const seconds = (this.last - this.first) / 1000;
    if (count > 1 && seconds > MOMENT) parts.push(`${figure((count - 1) / seconds)} tokens/s`);
    else if (count) parts[0] += ` in ${duration(this.last - this.started)}`;
    if (this.first) parts.push(`first after ${duration(this.first - this.started)}`);
    if (this.usage) {
      const cached = this.usage.prompt_tokens_details?.cached_tokens;
      parts.push(`prompt ${figure(this.usage.prompt_tokens)}${cached ? `, ${figure(cached)} of it known` : ""}`);
    }
    if (this.finish === "length") parts.push("cut at the limit of tokens");
    if (this.stopped) parts.push(`stopped after ${duration(this.stopped - this.started)}`);
    return parts.join(" · ");
  }

  end() {
    if (this.frame) cancelAnimationFrame(this.frame);
    this.frame = null;
    this.paint();
    this.status.textContent = this.line();
    this.node.removeAttribute("aria-busy");
  }
}

/** The conversation and the form that goes on with it. */
export class Chat {
  turns = [];
  known = [];
  running = null;

  constructor() {
    const message = byId("message");
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.say(message.value);
    });
    message.addEventListener("input", () => {
      grow(message);
      this.ready();
    });
    message.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.say(message.value);
    });
    document.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || byId("key-dialog").open) return;
      if (byId("settings").classList.contains("open")) this.settings(false);
      else this.stop();
    });
    byId("stop").addEventListener("click", () => this.stop());
    byId("new-chat").addEventListener("click", () => this.reset());
    byId("chat-model").addEventListener("change", () => this.facts());
    byId("settings-button").addEventListener("click", () => this.settings(!byId("settings").classList.contains("open")));
    byId("log").addEventListener("pointerdown", () => {
      if (byId("settings").classList.contains("open")) this.settings(false);
    });
    for (const id of SETTINGS) {
      const field = byId(id);
      field.value = sessionStorage.getItem(`anemone.${id}`) ?? "";
      field.addEventListener("input", () => sessionStorage.setItem(`anemone.${id}`, field.value));
    }
    byId("suggestions").append(
      ...SUGGESTIONS.map((text) => h("button", { type: "button", onclick: () => this.say(text) }, text)),
    );
    this.ready();
  }

  shown() {
    byId("message").focus({ preventScroll: true });
  }

  /** Opens or closes the settings where they have no room of their own. */
  settings(open) {
    byId("settings").classList.toggle("open", open);
    byId("settings-button").setAttribute("aria-expanded", String(open));
    byId(open ? "system" : "settings-button").focus();
  }

  models(list) {
    this.known = list;
    const select = byId("chat-model");
    const first = list.find((model) => model.default) ?? list[0];
    const before = select.value;
    options(select, list.map(({ id }) => [id, id]));
    if (!before && first) select.value = first.id;
    select.disabled = list.length === 0;
    this.facts();
    this.ready();
  }

  facts() {
    const id = byId("chat-model").value;
    const model = this.known.find((model) => model.id === id);
    byId("welcome-model").textContent = model
      ? `${id} runs on this server. What you write goes nowhere else.`
      : "This server has no language model. Start it with one to chat.";
    const rows = [];
    if (model?.max_model_len) rows.push(["Context", `${figure(model.max_model_len)} tokens`]);
    if (model) rows.push(["In memory", model.loaded ? "yes" : "when asked"]);
    byId("model-facts").replaceChildren(...rows.flatMap(([name, value]) => [h("dt", null, name), h("dd", null, value)]));
  }

  /** Buttons as they can be used now. */
  ready() {
    const busy = Boolean(this.running);
    byId("send").hidden = busy;
    byId("stop").hidden = !busy;
    byId("send").disabled = !byId("message").value.trim() || !byId("chat-model").value;
    for (const button of document.querySelectorAll("#suggestions button")) button.disabled = !byId("chat-model").value;
    byId("welcome").hidden = this.turns.length > 0;
  }

  say(text) {
    if (!text.trim() || this.running || !byId("chat-model").value) return;
    this.turns.push({ role: "user", content: text.trim() });
    byId("turns").append(h("article", { class: "turn user", "aria-label": "You" }, h("div", { class: "text" }, text.trim())));
    byId("message").value = "";
    grow(byId("message"));
    this.answer();
  }

  stop() {
    this.running?.abort();
  }

  reset() {
    this.stop();
    this.running = null;
    this.turns = [];
    byId("turns").replaceChildren();
    this.ready();
    this.shown();
  }

  async answer() {
    const model = byId("chat-model").value;
    const controller = new AbortController();
    const answer = new Answer(model);
    for (const old of document.querySelectorAll(".again, #turns .alarm")) old.remove();
    byId("turns").append(answer.node);
    byId("log").scrollTop = byId("log").scrollHeight;
    this.running = controller;
    this.ready();
    const system = byId("system").value.trim();
    const request = {
      model,
      messages: [...(system ? [{ role: "system", content: system }] : []), ...this.turns],
      temperature: number("temperature"),
      max_tokens: number("max-tokens"),
      stream: true,
      stream_options: { include_usage: true },
    };
    let problem = null;
    try {
      const response = await api.post("/v1/chat/completions", request, controller.signal);
      let whole = false;
      for await (const data of api.events(response)) {
        whole = data === "[DONE]";
        if (whole) break;
        answer.take(JSON.parse(data));
      }
      if (!whole) throw new api.Failure("The connection ended before the answer did.");
    } catch (error) {
      if (controller.signal.aborted) answer.stopped = performance.now();
      else problem = error instanceof api.Failure ? error.message : `The answer could not be read: ${error.message}`;
    }
    answer.end();
    // A chat that was begun anew meanwhile has nothing to do with this answer.
    if (this.running !== controller) return;
    this.running = null;
    this.close(answer, problem);
  }

  /** What stays when an answer has ended: its text in the conversation and what can be done with it. */
  close(answer, problem) {
    const last = { role: "assistant", content: answer.content };
    if (answer.content) this.turns.push(last);
    const again = h("button", { class: "quiet again", type: "button" }, "Try again");
    again.addEventListener("click", () => {
      if (this.turns.at(-1) === last) this.turns.pop();
      answer.node.remove();
      this.answer();
    });
    if (problem) {
      if (!answer.content && !answer.reasoning) answer.node.replaceChildren();
      answer.node.append(alarm(problem, again));
    } else {
      answer.tools.append(...(answer.content && navigator.clipboard ? [this.copy(answer)] : []), again);
    }
    const log = byId("log");
    if (log.scrollHeight - log.scrollTop - log.clientHeight < 160) log.scrollTop = log.scrollHeight;
    this.ready();
  }

  copy(answer) {
    const button = h("button", { class: "quiet", type: "button" }, "Copy");
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(answer.content);
        button.textContent = "Copied";
      } catch {
        button.textContent = "Not allowed";
      }
      setTimeout(() => (button.textContent = "Copy"), 1500);
    });
    return button;
  }
}
