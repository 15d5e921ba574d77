// The small part of Markdown that models write, as elements. What is not understood stays text.

import { h } from "./dom.js";

const INLINE = /`([^`\n]+)`|\*\*([^*\n]+)\*\*|\*([^*\s][^*\n]*)\*/g;

function inline(text) {
  const parts = [];
  let at = 0;
  for (const match of text.matchAll(INLINE)) {
    parts.push(text.slice(at, match.index));
    const [whole, code, strong, emphasis] = match;
    if (code !== undefined) parts.push(h("code", null, code));
    else if (strong !== undefined) parts.push(h("strong", null, strong));
    else parts.push(h("em", null, emphasis));
    at = match.index + whole.length;
  }
  parts.push(text.slice(at));
  return parts.filter((part) => part !== "");
}

const FENCE = /^\s*(`{3,}|~{3,})\s*([\w+#.-]*)\s*$/;
const HEADING = /^(#{1,6})\s+(.*)$/;
const BULLET = /^\s*[-*+•]\s+(.*)$/;
const NUMBER = /^\s*(\d{1,9})[.)]\s+(.*)$/;

/** Blocks of a text: each its source, so that a block that did not change is not made again, and how to make it. */
function blocks(text) {
  const lines = text.split("\n");
  const found = [];
  let i = 0;
  const take = (belongs) => {
    const from = i;
    while (i < lines.length && belongs(lines[i])) i++;
    return lines.slice(from, i);
  };
  while (i < lines.length) {
    const line = lines[i];
    const fence = FENCE.exec(line);
    const heading = HEADING.exec(line);
    if (line.trim() === "") {
      i++;
    } else if (fence) {
      i++;
      const code = take((line) => line.trim() !== fence[1]);
      i++;
      found.push({ kind: "code", word: fence[2], lines: code });
    } else if (heading) {
      i++;
      found.push({ kind: "heading", word: heading[1].length, lines: [heading[2]] });
    } else if (BULLET.test(line)) {
      found.push({ kind: "bullets", lines: take((line) => BULLET.test(line)) });
    } else if (NUMBER.test(line)) {
      found.push({ kind: "numbers", lines: take((line) => NUMBER.test(line)) });
    } else {
      const plain = (line) => line.trim() !== "" && !FENCE.test(line) && !HEADING.test(line) && !BULLET.test(line);
      found.push({ kind: "text", lines: take(plain) });
    }
  }
  return found;
}

function element({ kind, word, lines }) {
  if (kind === "code") {
    return h("pre", { tabindex: 0, "data-language": word || null }, h("code", null, lines.join("\n")));
  }
  if (kind === "heading") return h(`h${Math.min(word + 2, 6)}`, null, inline(lines[0]));
  if (kind === "bullets") {
    return h("ul", null, lines.map((line) => h("li", null, inline(BULLET.exec(line)[1]))));
  }
  if (kind === "numbers") {
    const start = NUMBER.exec(lines[0])[1];
    return h("ol", { start }, lines.map((line) => h("li", null, inline(NUMBER.exec(line)[2]))));
  }
  return h("p", null, lines.flatMap((line, i) => (i ? [h("br"), ...inline(line)] : inline(line))));
}

/** Shows a text in an element; blocks that are there already stay as they are. */
export function show(target, text) {
  const known = target.blocks ?? [];
  const next = blocks(text).map((block) => ({ ...block, source: JSON.stringify(block) }));
  next.forEach((block, i) => {
    if (known[i]?.source === block.source) return;
    const made = element(block);
    if (target.children[i]) target.children[i].replaceWith(made);
    else target.append(made);
  });
  while (target.children.length > next.length) target.lastElementChild.remove();
  target.blocks = next;
}
