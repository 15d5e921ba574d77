// OpenAI's own JavaScript client against `anemone serve`, with the built-in models.
//
// openai_chat.mjs ANEMONE [--modules DIR]; ANEMONE is the binary. It needs the `openai` package in DIR (target/npm). Exits 1 when
// anything is not as the package's types have it or says something else than it should.

import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { createRequire } from "node:module";
import { resolve } from "node:path";

const [binary, , modules = "target/npm"] = process.argv.slice(2);
const OpenAI = createRequire(resolve(modules, "package.json"))("openai").default;

const MODEL = "stories-lfm2";
const ASK = [{ role: "user", content: "tell me a story about a fox." }];
const GREEDY = { model: MODEL, messages: ASK, temperature: 0, repetition_penalty: 1 };
const WEATHER = {
  type: "object",
  properties: { city: { type: "string", maxLength: 12 }, days: { type: "integer", minimum: 1, maximum: 9 } },
  required: ["city", "days"],
  additionalProperties: false,
};
const TOOL = { type: "function", function: { name: "get_weather", description: "Weather.", parameters: WEATHER } };
const NAMED = { type: "function", function: { name: "get_weather" } };

async function start(...flags) {
  const child = spawn(binary, ["serve", "--port", "0", ...flags], { stdio: ["ignore", "inherit", "pipe"] });
  process.on("exit", () => child.kill("SIGKILL"));
  const ended = new Promise((end) => child.on("exit", end));
  let said = "";
  const url = await new Promise((found, failed) => {
    ended.then(() => failed(new Error(`the server ended: ${said}`)));
    child.stderr.on("data", (bytes) => {
      said += bytes;
      const at = / at (http:\/\/\S+)/.exec(said);
      if (at) found(at[1]);
    });
  });
  const stop = async () => {
    child.kill("SIGTERM");
    assert.equal(await ended, 0, "the server's exit code");
  };
  return { url, stop };
}

const client = (server, options) =>
  new OpenAI({ baseURL: `${server.url}/v1`, apiKey: "none", maxRetries: 0, timeout: 60_000, ...options });

/** What the same binary generates without a server. */
function run(...flags) {
  const fixed = ["run", "--json", "-q", "--chat", "--greedy", "--prompt", ASK[0].content];
  return JSON.parse(execFileSync(binary, [...fixed, ...flags], { encoding: "utf8" }));
}

async function all(stream) {
  const found = [];
  for await (const item of stream) found.push(item);
  return found;
}

const joined = (chunks) => chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join("");

/** Checks arguments by hand: no outside library is needed to see that a schema was kept. */
function fits(text) {
  const value = typeof text === "string" ? JSON.parse(text) : text;
  assert.deepEqual(Object.keys(value).sort(), ["city", "days"]);
  assert.ok(value.city.length <= 12 && Number.isInteger(value.days) && value.days >= 1 && value.days <= 9, text);
}

async function refused(kind, fields, call) {
  try {
    await call();
  } catch (error) {
    assert.equal(error.constructor, kind, String(error));
    for (const [key, value] of Object.entries(fields)) {
      if (value instanceof RegExp) assert.match(error[key], value);
      else assert.equal(error[key], value, `${key} of ${error}`);
    }
    return;
  }
  assert.fail(`no ${kind.name}`);
}

async function chats(openai) {
  const expected = run("-n", "40");
  const answer = await openai.chat.completions.create({ ...GREEDY, max_completion_tokens: 40 });
  const [choice] = answer.choices;
  assert.equal(choice.message.content, expected.text);
  assert.equal(choice.finish_reason, "length");
  assert.equal(answer.usage.completion_tokens, 40);
  assert.equal(answer.usage.prompt_tokens, expected.usage.prompt_tokens);
  const streamed = { ...GREEDY, max_completion_tokens: 40, stream: true, stream_options: { include_usage: true } };
  const chunks = await all(await openai.chat.completions.create(streamed));
  assert.ok(chunks.length > 10, `${chunks.length} chunks`);
  assert.equal(joined(chunks), expected.text);
  // Which tokens were known from before is not the same for the second request.
  const counts = ({ prompt_tokens, completion_tokens, total_tokens }) => ({ prompt_tokens, completion_tokens, total_tokens });
  assert.deepEqual(counts(chunks.at(-1).usage), counts(answer.usage));
  const helper = openai.chat.completions.stream({ ...GREEDY, max_completion_tokens: 40 });
  const deltas = [];
  helper.on("content", (delta) => deltas.push(delta));
  const final = await helper.finalChatCompletion();
  assert.equal(deltas.join(""), expected.text);
  assert.equal(final.choices[0].message.content, expected.text);
  const stopped = await openai.chat.completions.create({ ...GREEDY, max_completion_tokens: 40, stop: " little" });
  assert.equal(stopped.choices[0].message.content, expected.text.split(" little")[0]);
  assert.equal(stopped.choices[0].finish_reason, "stop");
}

async function probabilities(openai) {
  const asked = { model: MODEL, messages: ASK, n: 3, seed: 4, temperature: 1, max_tokens: 8 };
  const answer = await openai.chat.completions.create({ ...asked, logprobs: true, top_logprobs: 3 });
  assert.deepEqual(answer.choices.map((choice) => choice.index), [0, 1, 2]);
  assert.ok(new Set(answer.choices.map((choice) => choice.message.content)).size > 1);
  for (const { message, logprobs } of answer.choices) {
    const text = Buffer.from(logprobs.content.flatMap((token) => token.bytes)).toString();
    assert.equal(text, message.content);
    for (const token of logprobs.content) {
      const tops = token.top_logprobs.map((top) => top.logprob);
      assert.deepEqual(tops, tops.toSorted((a, b) => b - a));
      assert.ok(tops.length === 3 && token.logprob <= tops[0] && tops[0] <= 0, JSON.stringify(token));
    }
  }
  const texts = ["", "", ""];
  for await (const chunk of await openai.chat.completions.create({ ...asked, stream: true })) {
    for (const { index, delta } of chunk.choices) texts[index] += delta.content ?? "";
  }
  assert.deepEqual(texts, answer.choices.map((choice) => choice.message.content));
}

async function completions(openai) {
  const once = { model: MODEL, prompt: "once upon a time" };
  const echoed = await openai.completions.create({ ...once, max_tokens: 0, echo: true, logprobs: 1 });
  const [{ text, logprobs }] = echoed.choices;
  assert.equal(text, once.prompt);
  const [first, ...rest] = logprobs.token_logprobs;
  assert.ok(first === null && rest.length > 1 && rest.every((p) => p <= 0), JSON.stringify(logprobs));
  assert.equal(logprobs.tokens.slice(1).join(""), once.prompt, "after the token every text begins with");
  const several = await openai.completions.create({ model: MODEL, prompt: ["once", "one day"], max_tokens: 4, temperature: 0, n: 2 });
  const texts = several.choices.map((choice) => choice.text);
  assert.ok(texts[0] === texts[1] && texts[2] === texts[3] && texts[0] !== texts[2], String(texts));
  const pieces = await all(await openai.completions.create({ model: MODEL, prompt: "once", max_tokens: 4, temperature: 0, stream: true }));
  assert.equal(pieces.map((piece) => piece.choices[0].text).join(""), texts[0]);
}

async function tools(openai) {
  const asked = { model: MODEL, messages: ASK, tools: [TOOL], temperature: 0, max_tokens: 200 };
  const answer = await openai.chat.completions.create({ ...asked, tool_choice: NAMED });
  const [{ message, finish_reason: finish }] = answer.choices;
  assert.equal(finish, "tool_calls");
  assert.equal(message.content, null);
  assert.equal(message.tool_calls.length, 1);
  const [call] = message.tool_calls;
  assert.equal(call.function.name, "get_weather");
  assert.match(call.id, /^call_/);
  fits(call.function.arguments);
  let [name, args, end] = ["", "", null];
  for await (const { choices: [choice] } of await openai.chat.completions.create({ ...asked, tool_choice: NAMED, stream: true })) {
    for (const part of choice.delta.tool_calls ?? []) {
      name += part.function.name ?? "";
      args += part.function.arguments ?? "";
    }
    end = choice.finish_reason ?? end;
  }
  assert.deepEqual([name, args, end], ["get_weather", call.function.arguments, "tool_calls"]);
  const turns = [...ASK, message, { role: "tool", tool_call_id: call.id, content: "sun" }];
  const after = await openai.chat.completions.create({ ...asked, messages: turns, tool_choice: "none", max_tokens: 8 });
  assert.ok(after.choices[0].message.content.length > 0 && !after.choices[0].message.tool_calls);
  // The package's own runner calls the function with the arguments it parsed, and sends what it returned.
  const given = [];
  const weather = (value) => {
    given.push(value);
    return "sun";
  };
  const tool = { type: "function", function: { ...TOOL.function, function: weather, parse: JSON.parse } };
  const runner = openai.chat.completions.runTools({ ...asked, tools: [tool], tool_choice: NAMED });
  await runner.done();
  assert.equal(given.length, 1);
  assert.deepEqual(given[0], JSON.parse(call.function.arguments));
  assert.equal(await runner.finalFunctionToolCallResult(), "sun");
}

async function structured(openai) {
  const form = { type: "json_schema", json_schema: { name: "weather", strict: true, schema: WEATHER } };
  const asked = { model: MODEL, messages: ASK, max_tokens: 200, temperature: 1, seed: 3, response_format: form };
  const answer = await openai.chat.completions.create(asked);
  assert.equal(answer.choices[0].finish_reason, "stop");
  fits(answer.choices[0].message.content);
  const parsed = await openai.chat.completions.parse(asked);
  assert.deepEqual(parsed.choices[0].message.parsed, JSON.parse(answer.choices[0].message.content));
  const chunks = await all(await openai.chat.completions.create({ ...asked, stream: true }));
  assert.equal(joined(chunks), answer.choices[0].message.content);
  const strict = { type: "function", function: { ...TOOL.function, strict: true } };
  const called = await openai.chat.completions.parse({ model: MODEL, messages: ASK, tools: [strict], tool_choice: NAMED, max_tokens: 200, temperature: 0 });
  fits(called.choices[0].message.tool_calls[0].function.parsed_arguments);
}

async function responses(openai) {
  const expected = run("--repetition-penalty", "1.05", "-n", "24").text;
  const asked = { model: MODEL, input: ASK[0].content, temperature: 0, max_output_tokens: 24 };
  const answer = await openai.responses.create(asked);
  assert.equal(answer.output_text, expected);
  assert.equal(answer.status, "incomplete");
  assert.equal(answer.incomplete_details.reason, "max_output_tokens");
  assert.equal(answer.usage.output_tokens, 24);
  const events = await all(await openai.responses.create({ ...asked, stream: true }));
  assert.deepEqual(events.map((event) => event.sequence_number), events.map((_, i) => i));
  const kinds = new Set(events.map((event) => event.type));
  for (const kind of [
    "response.created", "response.output_item.added", "response.content_part.added", "response.output_text.delta",
    "response.output_text.done", "response.content_part.done", "response.output_item.done", "response.incomplete",
  ]) {
    assert.ok(kinds.has(kind), `no ${kind}`);
  }
  const deltas = events.filter((event) => event.type === "response.output_text.delta");
  assert.equal(deltas.map((event) => event.delta).join(""), expected);
  const final = await openai.responses.stream(asked).finalResponse();
  assert.equal(final.output_text, expected);
  const tool = { type: "function", name: "get_weather", description: "Weather.", parameters: WEATHER, strict: true };
  const calls = { model: MODEL, input: ASK, temperature: 0, tools: [tool], tool_choice: { type: "function", name: "get_weather" }, max_output_tokens: 200 };
  const called = await openai.responses.create(calls);
  assert.equal(called.status, "completed");
  assert.equal(called.output.length, 1);
  const [call] = called.output;
  assert.deepEqual([call.type, call.name], ["function_call", "get_weather"]);
  fits(call.arguments);
  const streamed = await all(await openai.responses.create({ ...calls, stream: true }));
  const done = streamed.filter((event) => event.type === "response.function_call_arguments.done");
  assert.deepEqual(done.map((event) => event.arguments), [call.arguments]);
  const result = { type: "function_call_output", call_id: call.call_id, output: "sun" };
  const after = await openai.responses.create({ ...calls, input: [...ASK, call, result], tool_choice: "none", max_output_tokens: 16 });
  assert.ok(after.output_text.length > 0);
  const text = { format: { type: "json_schema", name: "weather", schema: WEATHER, strict: true } };
  const parsed = await openai.responses.parse({ model: MODEL, input: "weather?", text, max_output_tokens: 200 });
  fits(parsed.output_parsed);
}

async function decisions(openai) {
  const input = "i lost my card, please send a new one";
  const asked = {
    model: "laya-demo",
    input,
    questions: [
      { type: "predicate", name: "lost", instructions: "The user's intent is report lost card." },
      { type: "choice", name: "team", instructions: "Which team?", choices: [{ value: "cards" }, { value: "loans" }] },
    ],
  };
  const decision = await openai.decisions.create(asked);
  const [lost, team] = decision.answers;
  assert.ok(lost.probability > 0.9, JSON.stringify(lost));
  assert.ok(Math.abs(team.probabilities.reduce((sum, { probability }) => sum + probability, 0) - 1) < 2e-4);
  assert.equal(team.choice, team.probabilities.toSorted((a, b) => b.probability - a.probability)[0].value);
  assert.equal(decision.model, "laya-demo");
  assert.ok(decision.usage.input_tokens > 10);
}

async function errors(openai) {
  const { BadRequestError, NotFoundError } = OpenAI;
  const chat = (fields) => () => openai.chat.completions.create({ model: MODEL, messages: ASK, ...fields });
  const type = "invalid_request_error";
  await refused(BadRequestError, { status: 400, param: "temperature", type, message: /temperature/ }, chat({ temperature: 9 }));
  await refused(BadRequestError, { status: 400, param: "messages" }, chat({ messages: [] }));
  await refused(BadRequestError, { status: 400, param: "nonsense" }, chat({ nonsense: 1 }));
  await refused(NotFoundError, { status: 404, param: "model", code: "model_not_found" }, chat({ model: "gpt-9" }));
  const form = { type: "json_schema", json_schema: { name: "x", schema: { type: "objekt" } } };
  await refused(BadRequestError, { param: "response_format", message: /objekt/ }, chat({ response_format: form }));
  await refused(BadRequestError, { status: 400 }, () => openai.completions.create({ model: MODEL, prompt: "x", suffix: "y" }));
  const listed = await all(openai.models.list());
  assert.deepEqual(listed.map((model) => model.id).sort(), ["laya-demo", MODEL]);
  assert.equal((await openai.models.retrieve(MODEL)).id, MODEL);
  await refused(NotFoundError, { status: 404, code: "model_not_found" }, () => openai.models.retrieve("gpt-9"));
  assert.ok(listed.every((model) => model.object === "model" && model.owned_by === "anemone" && model.created > 1e9));
}

/** A stream that is given up ends here and on the server. */
async function aborts(server, openai) {
  const running = async () => {
    const text = await (await fetch(`${server.url}/metrics`)).text();
    return text.split("\n").filter((line) => line.startsWith("anemone_sequences_running")).reduce((n, line) => n + Number(line.split(" ").at(-1)), 0);
  };
  const long = { ...GREEDY, ignore_eos: true, stream: true };
  const left = async (leave) => {
    const stream = await openai.chat.completions.create(long);
    let text = "";
    try {
      for await (const chunk of stream) {
        text += chunk.choices[0].delta.content ?? "";
        if (text.length > 40) leave(stream);
      }
    } catch (error) {
      assert.ok(error instanceof OpenAI.APIUserAbortError, String(error));
    }
    const end = Date.now() + 5000;
    while ((await running()) > 0) assert.ok(Date.now() < end, "the sequence still runs");
    // The whole would be some 8,000 characters.
    assert.ok(text.length > 40 && text.length < 6000, `${text.length} characters`);
  };
  await left((stream) => stream.controller.abort());
  const controller = new AbortController();
  const waiting = openai.chat.completions.create({ ...long, stream: false }, { signal: controller.signal });
  setTimeout(() => controller.abort(), 100);
  await assert.rejects(waiting, OpenAI.APIUserAbortError);
  const end = Date.now() + 5000;
  while ((await running()) > 0) assert.ok(Date.now() < end, "the sequence still runs");
}

async function keys() {
  const server = await start("--api-key", "sesame");
  const ask = (apiKey) => client(server, { apiKey }).chat.completions.create({ model: MODEL, messages: ASK, max_tokens: 1 });
  assert.equal((await ask("sesame")).usage.completion_tokens, 1);
  await refused(OpenAI.AuthenticationError, { status: 401, code: "invalid_api_key" }, () => ask("wrong"));
  await server.stop();
}

async function main() {
  const server = await start();
  const openai = client(server);
  await chats(openai);
  await probabilities(openai);
  await completions(openai);
  await tools(openai);
  await structured(openai);
  await responses(openai);
  await decisions(openai);
  await errors(openai);
  await aborts(server, openai);
  await server.stop();
  await keys();
  console.log("chats, completions, responses and decisions: as OpenAI's JavaScript client has them");
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
