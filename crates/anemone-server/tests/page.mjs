// The page of `anemone serve` in headless Chromium, with the built-in models: chats, stops, asks, and shows nothing it was not meant to.
//
// page.mjs ANEMONE SCREENSHOTS [--modules DIR]; ANEMONE is the binary, screenshots are written to the directory SCREENSHOTS. It needs
// Chromium (CHROMIUM, or /usr/bin/chromium) and `playwright-core` in DIR (target/npm). Exits 1 when anything is not as it should be.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdirSync } from "node:fs";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const [binary, pictures, , modules = "target/npm"] = process.argv.slice(2);
const { chromium } = createRequire(resolve(modules, "package.json"))("playwright-core");
const FLAGS = [
  "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync",
];
const HOSTILE = `<img src="x" onerror="window.hit = 1"><script>window.hit = 2</script>`;

class Server {
  /** `anemone serve` on a free port. */
  static async start(...flags) {
    const server = new Server();
    server.child = spawn(binary, ["serve", "--port", "0", ...flags], { stdio: ["ignore", "inherit", "pipe"] });
    server.ended = new Promise((end) => server.child.on("exit", end));
    process.on("exit", () => server.child.kill("SIGKILL"));
    let said = "";
    server.url = await new Promise((found, failed) => {
      server.ended.then(() => failed(new Error(`the server ended: ${said}`)));
      server.child.stderr.on("data", (bytes) => {
        said += bytes;
        const at = / at (http:\/\/\S+)/.exec(said);
        if (at) found(at[1]);
      });
    });
    return server;
  }

  async stop() {
    this.child.kill("SIGTERM");
    assert.equal(await this.ended, 0, "the server's exit code");
  }

  async post(path, body) {
    const response = await fetch(this.url + path, { method: "POST", body: JSON.stringify(body) });
    assert.equal(response.status, 200, await response.clone().text());
    return response.json();
  }

  /** A figure of `/metrics`, summed over models. */
  async metric(name) {
    const text = await (await fetch(`${this.url}/metrics`)).text();
    const lines = text.split("\n").filter((line) => line.startsWith(`${name}{`) || line.startsWith(`${name} `));
    assert.ok(lines.length, `no ${name} in /metrics`);
    return lines.reduce((sum, line) => sum + Number(line.split(" ").at(-1)), 0);
  }
}

async function eventually(what, holds, ms = 10_000) {
  const end = Date.now() + ms;
  while (!(await holds())) {
    assert.ok(Date.now() < end, `not within ${ms} ms: ${what}`);
    await new Promise((wake) => setTimeout(wake, 20));
  }
}

/** A page whose console, errors and requests are watched. */
async function opened(context, url) {
  const page = await context.newPage();
  page.problems = [];
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) page.problems.push(message.text());
  });
  page.on("pageerror", (error) => page.problems.push(String(error)));
  page.on("request", (request) => {
    if (new URL(request.url()).origin !== new URL(url).origin) page.problems.push(`a request to ${request.url()}`);
  });
  page.setDefaultTimeout(20_000);
  await page.goto(url);
  return page;
}

/** Takes a problem that was provoked off the list; it must be there. */
function provoked(page, fragment) {
  const at = page.problems.findIndex((problem) => problem.includes(fragment));
  assert.ok(at >= 0, `${fragment} is not among ${page.problems}`);
  page.problems.splice(at, 1);
}

const turns = (page) => page.locator("#turns .turn");
const last = (page) => page.locator("#turns .assistant").last();

async function said(page) {
  await page.locator("#turns .assistant:not([aria-busy])").last().waitFor();
  await page.locator("#send").waitFor();
  return last(page).locator(":scope > .text").innerText();
}

async function files(server) {
  const home = await fetch(server.url);
  assert.match(home.headers.get("content-type"), /^text\/html/);
  assert.match(home.headers.get("content-security-policy"), /default-src 'none'; script-src 'self'/);
  assert.equal(home.headers.get("x-content-type-options"), "nosniff");
  const head = await fetch(server.url, { method: "HEAD" });
  assert.equal(head.status, 200);
  assert.equal(await head.text(), "");
  assert.equal((await fetch(`${server.url}/page/other.js`)).status, 404);
  assert.equal((await fetch(`${server.url}/other`)).status, 404);
  assert.equal((await fetch(server.url, { method: "POST" })).status, 405);
}

async function chats(page, server, shoot) {
  await eventually("a model is picked", async () => (await page.locator("#chat-model").inputValue()) === "stories-lfm2");
  await shoot("welcome");
  await page.fill("#temperature", "0");
  await page.fill("#max-tokens", "120");
  await page.fill("#system", "You tell stories.");
  const sent = [];
  page.on("request", (request) => {
    if (request.url().endsWith("/v1/chat/completions")) sent.push(request.postDataJSON());
  });
  await page.fill("#message", "Tell me a story about a fox.");
  await page.press("#message", "Shift+Enter");
  assert.equal(sent.length, 0, "Shift+Enter sends");
  await page.press("#message", "Enter");
  const first = await said(page);
  const { stream, stream_options: _, ...asked } = sent[0];
  assert.equal(stream, true);
  assert.deepEqual(asked.messages, [
    { role: "system", content: "You tell stories." },
    { role: "user", content: "Tell me a story about a fox." },
  ]);
  const words = (text) => text.replace(/\s+/g, " ").trim();
  const alone = await server.post("/v1/chat/completions", asked);
  assert.equal(words(first), words(alone.choices[0].message.content));
  const status = await last(page).locator(".status").innerText();
  const { completion_tokens: count } = alone.usage;
  assert.match(status, new RegExp(`^${count} tokens( in .*s)? · ([\\d,]+ tokens/s · )?first after [\\d.]+\\sm?s · prompt \\d+`));
  await page.fill("#message", "And then?");
  await page.click("#send");
  const second = await said(page);
  assert.deepEqual(sent[1].messages.map((message) => message.role), ["system", "user", "assistant", "user"]);
  assert.equal(sent[1].messages[2].content, alone.choices[0].message.content);
  const both = await server.post("/v1/chat/completions", { ...sent[1], stream: false, stream_options: undefined });
  assert.equal(words(second), words(both.choices[0].message.content));
  assert.equal(await turns(page).count(), 4);
  await shoot("chat");
  await last(page).getByRole("button", { name: "Try again" }).click();
  assert.equal(words(await said(page)), words(second), "a greedy answer tried again is the same");
  assert.deepEqual(sent[2], sent[1]);
}

async function stops(page, server, how) {
  await page.click("#new-chat");
  assert.equal(await turns(page).count(), 0);
  await page.fill("#max-tokens", "");
  // The model is small and fast; eight texts to their last place take it long enough.
  const route = (route) => route.continue({ postData: { ...route.request().postDataJSON(), ignore_eos: true, n: 8 } });
  await page.route("**/v1/chat/completions", route);
  const before = await server.metric("anemone_completion_tokens_total");
  // Every length the answer's text has had.
  await page.evaluate(() => {
    window.lengths = [];
    new MutationObserver(() => {
      const text = document.querySelector("#turns .assistant[aria-busy] > .text");
      if (text) window.lengths.push(text.textContent.length);
    }).observe(document.getElementById("turns"), { childList: true, subtree: true, characterData: true });
  });
  await page.fill("#message", "Tell me a long story.");
  await page.press("#message", "Enter");
  const lengths = async () => [...new Set(await page.evaluate(() => window.lengths))];
  await eventually("the text grows", async () => (await lengths()).length > 4);
  const grown = await lengths();
  assert.ok(grown.every((n, i) => i === 0 || n > grown[i - 1]), `lengths of the text: ${grown}`);
  assert.equal(await server.metric("anemone_sequences_running"), 8);
  await how();
  await eventually("the sequence is given up", async () => (await server.metric("anemone_sequences_running")) === 0, 2000);
  const drawn = (await server.metric("anemone_completion_tokens_total")) - before;
  assert.ok(drawn > 32 && drawn < 14_000, `${drawn} tokens of about 16000 were drawn`);
  const text = await said(page);
  assert.ok(text.length > 20);
  assert.match(await last(page).locator(".status").innerText(), /stopped after/);
  // A chat that is begun anew meanwhile gives its answer up, too.
  await page.fill("#message", "Another long one.");
  await page.press("#message", "Enter");
  await eventually("the second text begins", async () => (await last(page).locator(":scope > .text").textContent()).length > 5);
  await page.click("#new-chat");
  await eventually("it is given up", async () => (await server.metric("anemone_sequences_running")) === 0, 2000);
  assert.equal(await turns(page).count(), 0);
  await page.unroute("**/v1/chat/completions", route);
  await page.fill("#message", "Once more.");
  await page.press("#message", "Enter");
  await said(page);
  // The conversation goes on from what was said.
  await page.fill("#max-tokens", "8");
  await page.fill("#message", "Go on.");
  await page.press("#message", "Enter");
  await said(page);
  assert.match(await last(page).locator(".status").innerText(), /^8 tokens .* cut at the limit/);
}

/** A stream that says what no model here would. */
function stream(...deltas) {
  const chunks = deltas.map((delta) => ({ choices: [{ index: 0, delta, finish_reason: null }] }));
  chunks.push({ choices: [{ index: 0, delta: {}, finish_reason: "stop" }] });
  return `${chunks.map((chunk) => `: working\n\ndata: ${JSON.stringify(chunk)}\n\n`).join("")}data: [DONE]\n\n`;
}

async function shows(page, shoot) {
  await page.click("#new-chat");
  const body = stream(
    { role: "assistant", content: "" },
    { reasoning_content: `Is it ${HOSTILE}?` },
    { content: `It is ${HOSTILE} and **bold**, \`code\`.\n\n` },
    { content: "1. one\n2. two\n\n```html\n" },
    { content: `${HOSTILE}\n` },
    { content: "```\n\n- a\n- b" },
  );
  const route = (route) => route.fulfill({ contentType: "text/event-stream", body });
  await page.route("**/v1/chat/completions", route);
  await page.fill("#message", HOSTILE);
  await page.press("#message", "Enter");
  const text = await said(page);
  await page.unroute("**/v1/chat/completions", route);
  assert.ok(text.includes(`It is ${HOSTILE} and bold, code.`), text);
  assert.equal(await page.locator("#turns :is(img, script)").count(), 0);
  assert.equal(await page.locator("#turns .user").innerText(), HOSTILE);
  assert.equal(await last(page).locator("pre").innerText(), HOSTILE);
  assert.deepEqual(await last(page).locator("ol li, ul li").allInnerTexts(), ["one", "two", "a", "b"]);
  const reasoning = last(page).locator(".reasoning");
  assert.equal(await reasoning.getAttribute("open"), null, "reasoning is folded");
  await shoot("text");
  await reasoning.locator("summary").click();
  assert.equal(await reasoning.locator(".text").innerText(), `Is it ${HOSTILE}?`);
  assert.equal(await page.evaluate(() => window.hit), undefined);
}

async function fails(page) {
  await page.click("#new-chat");
  await page.fill("#temperature", "9");
  await page.fill("#message", "Hello");
  await page.press("#message", "Enter");
  const alarm = page.locator("#turns .alarm");
  assert.match(await alarm.innerText(), /temperature/);
  provoked(page, "400");
  await page.fill("#temperature", "0");
  await alarm.getByRole("button", { name: "Try again" }).click();
  assert.ok((await said(page)).length > 0);
  assert.equal(await alarm.count(), 0);
  // A stream that breaks off is no answer.
  const cut = (route) => route.fulfill({ contentType: "text/event-stream", body: stream({ content: "Once" }).split("data: [DONE]")[0] });
  await page.route("**/v1/chat/completions", cut);
  await page.fill("#message", "More");
  await page.press("#message", "Enter");
  assert.match(await alarm.innerText(), /ended before the answer/);
  await page.unroute("**/v1/chat/completions", cut);
}

async function decides(page, server, shoot) {
  await page.getByRole("tab", { name: "Decide" }).click();
  const asked = page.waitForRequest("**/v1/systemone");
  await page.click("#decide-send");
  const request = (await asked).postDataJSON();
  const answers = page.locator("#answers .answer");
  await answers.first().waitFor();
  const expected = (await server.post("/v1/systemone", request)).answers;
  assert.deepEqual(Object.keys(expected), ["lost_card", "intent", "urgency"]);
  assert.equal(await answers.count(), 3);
  const bars = async (id) => {
    const meters = page.locator(`#answers [data-question="${id}"] [role=meter]`);
    const read = (all) => all.map((meter) => [meter.getAttribute("aria-label"), Number(meter.getAttribute("aria-valuenow"))]);
    const found = await meters.evaluateAll(read);
    const sum = found.reduce((sum, [, p]) => sum + p, 0);
    assert.ok(Math.abs(sum - 1) < 5e-4, `the bars of ${id} sum to ${sum}`);
    const widths = await meters.evaluateAll((all) => all.map((meter) => meter.firstChild.offsetWidth / meter.offsetWidth));
    widths.forEach((width, i) => assert.ok(Math.abs(width - found[i][1]) < 0.04, `the bar of ${found[i]} is ${width} wide`));
    return Object.fromEntries(found);
  };
  assert.deepEqual(await bars("intent"), expected.intent.probabilities);
  const levels = Object.entries(expected.urgency.legend).map(([at, label]) => [label, expected.urgency.probabilities[at]]);
  assert.deepEqual(await bars("urgency"), Object.fromEntries(levels));
  assert.equal((await bars("lost_card")).yes, expected.lost_card.noul);
  assert.equal(await page.locator('#answers [data-question="intent"] .verdict').innerText(), expected.intent.choice);
  assert.match(await page.locator("#answers > .status").innerText(), /\d+ tokens · [\d.]+\sm?s in the model/);
  await shoot("decide");
  // A question that is edited, and one that is added.
  await page.locator(".question").nth(1).getByRole("button", { name: "Add an option" }).click();
  await page.locator(".question").nth(1).locator(".label").last().fill(HOSTILE);
  await page.click("#add-question");
  await page.locator(".question").last().locator("textarea").fill("The user is angry.");
  await page.locator(".question").last().locator("textarea").press("Control+Enter");
  await page.locator('#answers [data-question="question_4"]').waitFor();
  assert.equal(Object.keys(await bars("intent")).at(-1), HOSTILE);
  await bars("question_4");
  // A ready-made set puts the text under its key.
  await page.selectOption("#preset", "email");
  await page.fill("#state", "Dear team, please pay the invoice by Friday.");
  const preset = page.waitForRequest("**/v1/systemone");
  await page.press("#state", "Control+Enter");
  assert.deepEqual((await preset).postDataJSON().state, { body: "Dear team, please pay the invoice by Friday." });
  await page.locator('#answers [data-question="fraud"]').waitFor();
  assert.equal(await answers.count(), 5);
  for (const id of ["department", "junk", "fraud", "pressure", "answer_expected"]) await bars(id);
  // What cannot be asked is said before it is sent, and what the server refuses is its own words.
  await page.selectOption("#state-form", "json");
  await page.click("#decide-send");
  assert.match(await page.locator("#answers .alarm").innerText(), /not JSON/);
  await page.fill("#state", '{"body": ["a", 1]}');
  await page.locator(".question").first().locator("textarea").fill("");
  await page.click("#decide-send");
  await eventually("the server's words", async () => /instructions/.test(await page.locator("#answers .alarm").innerText()));
  provoked(page, "422");
  assert.equal(await page.evaluate(() => window.hit), undefined);
}

async function fits(page, shoot) {
  const named = (all) =>
    all.filter((node) => node.offsetParent && !(node.ariaLabel || node.labels?.length || (node.tagName === "BUTTON" && node.textContent.trim())))
      .map((node) => node.outerHTML);
  for (const width of [360, 768, 1400]) {
    await page.setViewportSize({ width, height: width === 360 ? 740 : 900 });
    for (const tab of ["Chat", "Decide"]) {
      await page.getByRole("tab", { name: tab }).click();
      const over = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
      assert.ok(over <= 0, `${tab} is ${over} pixels wider than ${width}`);
      const below = await page.evaluate(() => document.documentElement.scrollHeight - window.innerHeight);
      assert.ok(below <= 0, `at ${width} the page itself scrolls by ${below} pixels`);
      assert.deepEqual(await page.locator("button, input, select, textarea").evaluateAll(named), []);
    }
  }
  await page.setViewportSize({ width: 360, height: 740 });
  await page.selectOption("#preset", "example");
  await page.locator("#state-title").scrollIntoViewIfNeeded();
  await shoot("narrow-decide");
  await page.click("#decide-send");
  await page.locator('#answers [data-question="urgency"]').waitFor();
  assert.ok(await page.locator("#answers-title").evaluate((title) => title.getBoundingClientRect().top < window.innerHeight / 2));
  await shoot("narrow-answers");
  await page.getByRole("tab", { name: "Decide" }).press("ArrowLeft");
  await page.click("#new-chat");
  await page.click("#settings-button");
  await page.fill("#max-tokens", "90");
  await page.click("#settings-button");
  await page.getByRole("button", { name: "Tell me a story about a fox." }).click();
  await said(page);
  await shoot("narrow-chat");
  await page.click("#settings-button");
  assert.ok(await page.locator("#system").isVisible());
  await shoot("narrow-settings");
  await page.keyboard.press("Escape");
  assert.ok(!(await page.locator("#system").isVisible()));
  assert.equal(await page.evaluate(() => document.activeElement.id), "settings-button");
}

/** Servers of one kind of model, and of two decision models. */
async function kinds(browser) {
  const place = fileURLToPath(new URL("../../anemone/assets", import.meta.url));
  const decides = (name) => ["--model", `${name}=${place}/laya-demo`];
  for (const [flags, tab, models] of [
    [["--model", `tales=${place}/stories-lfm2`], "chat", []],
    [[...decides("one"), ...decides("two")], "decide", ["", "one", "two"]],
  ]) {
    const server = await Server.start(...flags);
    const context = await browser.newContext();
    const page = await opened(context, server.url);
    await eventually("the tab of the models", async () => (await page.locator("body").getAttribute("data-tab")) === tab);
    if (tab === "chat") {
      await eventually("a model", async () => (await page.locator("#chat-model").inputValue()) === "tales");
      await page.getByRole("tab", { name: "Decide" }).click();
      assert.ok(await page.locator("#decide-send").isDisabled());
      assert.match(await page.locator("#answers").innerText(), /no decision model/);
    } else {
      const shown = await page.locator("#decide-model option").evaluateAll((all) => all.map((option) => option.value));
      assert.deepEqual(shown, models);
      await page.click("#decide-send");
      await page.locator("#answers .answer").first().waitFor();
      await page.getByRole("tab", { name: "Chat" }).click();
      await page.fill("#message", "Hello");
      await page.press("#message", "Enter");
      assert.equal(await turns(page).count(), 0);
      assert.match(await page.locator("#welcome").innerText(), /no language model/);
    }
    assert.deepEqual(page.problems, []);
    await context.close();
    await server.stop();
  }
}

async function keys(browser) {
  const server = await Server.start("--api-key", "sesame");
  const context = await browser.newContext();
  const page = await opened(context, server.url);
  const dialog = page.locator("#key-dialog");
  await dialog.waitFor();
  provoked(page, "401");
  for (const [key, right] of [["wrong", false], ["sesame", true]]) {
    await page.fill("#key", key);
    await page.press("#key", "Enter");
    if (right) {
      await eventually("models are read", async () => (await page.locator("#chat-model").inputValue()) === "stories-lfm2");
    } else {
      await eventually("the key is refused", async () => /did not take/.test(await page.locator("#key-problem").innerText()));
      provoked(page, "401");
    }
  }
  assert.ok(!(await dialog.isVisible()));
  await page.fill("#message", "Hello");
  await page.press("#message", "Enter");
  assert.ok((await said(page)).length > 0);
  assert.equal(await page.evaluate(() => localStorage.length + document.cookie.length), 0, "the key is kept beyond the tab");
  assert.deepEqual(page.problems, []);
  await context.close();
  await server.stop();
}

async function main() {
  mkdirSync(pictures, { recursive: true });
  const executablePath = process.env.CHROMIUM ?? "/usr/bin/chromium";
  const browser = await chromium.launch({ executablePath, headless: true, args: FLAGS });
  const server = await Server.start();
  await files(server);
  for (const scheme of ["light", "dark"]) {
    const context = await browser.newContext({ viewport: { width: 1400, height: 900 }, colorScheme: scheme });
    const page = await opened(context, server.url);
    const shoot = (name) => page.screenshot({ path: join(pictures, `${name}${scheme === "dark" ? "-dark" : ""}.png`) });
    await chats(page, server, shoot);
    await stops(page, server, () => (scheme === "dark" ? page.press("#message", "Escape") : page.click("#stop")));
    await shows(page, shoot);
    await fails(page);
    await decides(page, server, shoot);
    await fits(page, shoot);
    assert.deepEqual(page.problems, []);
    await context.close();
  }
  await server.stop();
  await kinds(browser);
  await keys(browser);
  await browser.close();
  console.log(`the page: chats, stops, asks, at every width; screenshots in ${pictures}`);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
