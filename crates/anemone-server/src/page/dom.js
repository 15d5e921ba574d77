// Elements without markup: text only ever becomes text.

/** An element with attributes, listeners (`onclick`) and children; children that are null or false are left out. */
export function h(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  const shown = children.flat().filter((child) => child !== null && child !== undefined && child !== false);
  node.append(...shown);
  return node;
}

export const byId = (id) => document.getElementById(id);

/** Makes a textarea as high as its text, up to the limit of its style. */
export function grow(area) {
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight + 2}px`;
}

/** A number as people read it: 1,234 or 0.34. */
export function figure(value, digits = 0) {
  return value.toLocaleString("en", { maximumFractionDigits: digits, minimumFractionDigits: digits });
}

/** Milliseconds as people read them. */
export function duration(ms) {
  if (ms >= 9950) return `${figure(ms / 1000)}\u00a0s`;
  if (ms >= 1000) return `${figure(ms / 1000, 1)}\u00a0s`;
  return ms >= 10 ? `${figure(ms)}\u00a0ms` : `${figure(ms, 1)}\u00a0ms`;
}

/** Fills a select with `[value, label]` and keeps what was chosen where it is still there. */
export function options(select, entries) {
  const chosen = select.value;
  select.replaceChildren(...entries.map(([value, label]) => h("option", { value }, label)));
  if (entries.some(([value]) => value === chosen)) select.value = chosen;
}

/** A line that says what went wrong, with what can be done. */
export function alarm(message, action) {
  return h("div", { class: "alarm", role: "alert" }, h("span", null, message), action);
}
