// The server's routes, with its errors as sentences.

const KEY = "anemone.key";

/** A request that was not answered; `message` is for people. */
export class Failure extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

export const hasKey = () => Boolean(sessionStorage.getItem(KEY));

export function setKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

/** What a body of an error says, in either of the server's shapes. */
function said(text, status) {
  try {
    const body = JSON.parse(text);
    const message = body.error?.message ?? body.detail;
    if (typeof message === "string" && message) return message;
  } catch {
    // Not JSON: the status has to do.
  }
  return `The server answered with status ${status}.`;
}

async function send(path, init) {
  const headers = new Headers(init.headers);
  const key = sessionStorage.getItem(KEY);
  if (key) headers.set("authorization", `Bearer ${key}`);
  let response;
  try {
    response = await fetch(path, { ...init, headers, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure("The server cannot be reached. Is it still running?");
  }
  if (response.ok) return response;
  const failure = new Failure(said(await response.text().catch(() => ""), response.status), response.status);
  if (response.status === 401) window.dispatchEvent(new CustomEvent("key-wanted"));
  throw failure;
}

export const get = (path) => send(path, { method: "GET" });

export function post(path, body, signal) {
  const headers = { "content-type": "application/json" };
  return send(path, { method: "POST", headers, body: JSON.stringify(body), signal });
}

/** The data of a response's server-sent events. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const blocks = (rest + value).replace(/\r\n/g, "\n").split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const lines = block.split("\n").filter((line) => line.startsWith("data:"));
        if (lines.length) yield lines.map((line) => line.slice(5).replace(/^ /, "")).join("\n");
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
