"""What HTTP adds to the engine: overhead.py ANEMONE MODEL [--rounds 5] [--requests 12] [--tokens 48].

MODEL is a checkpoint with a tokenizer. Each round times the same completions through `anemone serve` (streamed, and whole) and the
same number of tokens by `anemone run` on the engine alone, one after the other. Two figures: the time of a request at its client less
the engine's own time for it (from `/metrics.json`), and decode speed over HTTP as a share of that without. Needs nothing but Python.
"""
import argparse
import http.client
import json
import signal
import statistics
import subprocess
import time

PROMPT = "once upon a time there was a fox who lived by the river and "


def complete(connection, prompt, tokens, stream):
    """Seconds until the first token (of streams) and until the end."""
    body = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 0, "stream": stream}
    start = time.perf_counter()
    connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    first = None
    if stream:
        while line := answer.readline():
            first = first or (time.perf_counter() - start if line.startswith(b"data: ") else None)
            if line.strip() == b"data: [DONE]":
                break
    answer.read()
    return first, time.perf_counter() - start


def figures(connection):
    connection.request("GET", "/metrics.json")
    (model,) = json.loads(connection.getresponse().read())["models"].values()
    return model["last_request"]


def alone(binary, model, tokens):
    """Tokens per second the engine decodes without a server."""
    args = [binary, "run", "--model", model, "--json", "-q", "--greedy", "--ignore-eos", "-n", str(tokens), "-p", PROMPT]
    told = json.loads(subprocess.run(args, check=True, capture_output=True).stdout)
    return told["timings"]["decode_tokens_per_second"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("anemone")
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=48)
    args = parser.parse_args()
    # The prompts differ and none is kept, so that every one is computed.
    serve = [args.anemone, "serve", "--port", "0", "--model", f"m={args.model}", "--prefix-cache-memory", "0"]
    server = subprocess.Popen(serve, stderr=subprocess.PIPE, text=True)
    line = ""
    while " at http://" not in line:
        line = server.stderr.readline()
        assert line, "the server ended"
    address = line.strip().rsplit("http://", 1)[1]
    connection = http.client.HTTPConnection(address)
    complete(connection, PROMPT, 4, False)
    added, shares, idle = {False: [], True: []}, [], []
    for round_number in range(args.rounds):
        rates = []
        for number in range(args.requests):
            stream = number % 2 == 0
            _, seconds = complete(connection, f"{round_number} {number} {PROMPT}", args.tokens, stream)
            told = figures(connection)
            over = seconds - told["prefill_seconds"] - told["decode_seconds"]
            added[stream].append(over * 1e3)
            idle.append(over / seconds)
            # All the client waited for but the prompt counts as decoding here.
            rates.append((told["completion_tokens"] - 1) / (seconds - told["prefill_seconds"]))
        own = alone(args.anemone, args.model, args.tokens)
        shares.append(statistics.median(rates) / own)
        print(f"round {round_number}: {statistics.median(rates):.1f} tokens/s over HTTP, {own:.1f} alone: {shares[-1]:.3f}")
    for stream, name in [(True, "streamed"), (False, "whole")]:
        ms = sorted(added[stream])
        print(f"added to a request, {name}: p50 {statistics.median(ms):.2f} ms, most {ms[-1]:.2f} ms, of {len(ms)}")
    print(f"which is {statistics.median(idle):.2%} of a request")
    print(f"decode over HTTP: {statistics.median(shares):.3f} ({min(shares):.3f}-{max(shares):.3f}) of that alone")
    server.send_signal(signal.SIGTERM)
    assert server.wait(30) == 0


main()
