"""What HTTP adds to the engine: overhead.py ANEMONE MODEL [--rounds 9] [--tokens 48] [--streams 1 8].

MODEL is a checkpoint with a tokenizer, or `demo`. One process has both arms, so that engine, threads and weights are the same and
warm: A hands a batch of prompts to the engine by a line on stdin (`serve --direct`), B asks for the same prompts over HTTP, each
client on a connection of its own. They take turns, A B A B, each pair with prompts of its own, which both arms must answer with the
same texts. A's time begins when its prompts are tokens; B's ends when every client has its answer.

Figures, for one stream and for several: B's tokens per second as a share of A's of the same pair, median and quartiles; and with one
stream what a request takes at its client beyond the engine's own time for it (from `/metrics.json`). Ends with 1 when the median share
is below --share or the median time above --added. Needs nothing but Python.
"""
import argparse
import http.client
import json
import signal
import statistics
import subprocess
import sys
import threading
import time

PROMPT = "once upon a time there was a fox who lived by the river and "


def complete(connection, prompt, tokens, stream):
    """The text of an answer."""
    body = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 0, "stream": stream}
    connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    answer = connection.getresponse()
    if answer.status != 200:
        raise SystemExit(f"{answer.status}: {answer.read()[:300]}")
    if not stream:
        return json.loads(answer.read())["choices"][0]["text"]
    # What a piece says is read when all of them are here: the client is not what is measured.
    lines = []
    while line := answer.readline():
        if line.startswith(b"data: "):
            lines.append(line[6:])
    assert lines[-1].strip() == b"[DONE]", lines[-1]
    return "".join(json.loads(line)["choices"][0]["text"] for line in lines[:-1])


class Server:
    def __init__(self, binary, model):
        # None of the prompts is kept, so that every one is computed.
        args = [binary, "serve", "--port", "0", "--direct", "--prefix-cache-memory", "0"]
        model = ["--alias", "m=stories-lfm2"] if model == "demo" else ["--model", f"m={model}"]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(args + model, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        line = ""
        while " at http://" not in line:
            line = self.process.stderr.readline()
            if not line:
                raise SystemExit("the server ended")
        self.address = line.strip().rsplit("http://", 1)[1]
        threading.Thread(target=self.process.stderr.read, daemon=True).start()
        self.connections = []

    def direct(self, prompts, tokens):
        """Seconds and texts of the engine alone."""
        self.process.stdin.write(json.dumps({"prompts": prompts, "max_tokens": tokens}) + "\n")
        self.process.stdin.flush()
        told = json.loads(self.process.stdout.readline())
        if "error" in told:
            raise SystemExit(told["error"])
        assert told["completion_tokens"] == tokens * len(prompts), told["completion_tokens"]
        return told["seconds"], told["texts"]

    def http(self, prompts, tokens, stream):
        """The same over HTTP."""
        while len(self.connections) < len(prompts):
            self.connections.append(http.client.HTTPConnection(self.address))
            self.connections[-1].connect()
        texts = [None] * len(prompts)

        def client(i):
            texts[i] = complete(self.connections[i], prompts[i], tokens, stream)

        clients = [threading.Thread(target=client, args=(i,)) for i in range(1, len(prompts))]
        start = time.perf_counter()
        for thread in clients:
            thread.start()
        client(0)
        for thread in clients:
            thread.join()
        return time.perf_counter() - start, texts

    def engine_seconds(self):
        """What the engine itself took for the last request."""
        connection = self.connections[0]
        connection.request("GET", "/metrics.json")
        (model,) = json.loads(connection.getresponse().read())["models"].values()
        return model["last_request"]["prefill_seconds"] + model["last_request"]["decode_seconds"]


def quartiles(values):
    if len(values) < 2:
        return values[0], values[0], values[0]
    return statistics.quantiles(values, n=4, method="inclusive")


def compare(server, streams, args):
    """Shares of each pair; milliseconds beyond the engine's own, with one stream."""
    shares, added = [], []
    for number in range(-1, args.rounds):
        prompts = [f"{streams} {number} {i} {PROMPT}" for i in range(streams)]
        alone, texts = server.direct(prompts, args.tokens)
        # Streamed and whole take turns, too.
        over, answers = server.http(prompts, args.tokens, number % 2 == 0)
        assert texts == answers, (texts, answers)
        if number < 0:
            # The first pair warms both arms.
            continue
        shares.append(alone / over)
        if streams == 1:
            added.append((over - server.engine_seconds()) * 1e3)
        count = args.tokens * streams
        print(f"  pair {number}: {count / alone:.1f} tokens/s alone, {count / over:.1f} over HTTP: {shares[-1]:.4f}")
    return shares, added


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("anemone")
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--share", type=float, default=0.97, help="least share of the engine's throughput")
    parser.add_argument("--added", type=float, default=1.0, help="most milliseconds added to a request")
    args = parser.parse_args()
    server = Server(args.anemone, args.model)
    missed = []
    for streams in args.streams:
        print(f"{streams} at once, {args.tokens} tokens each:")
        shares, added = compare(server, streams, args)
        low, middle, high = quartiles(shares)
        print(f"{streams} at once: {middle:.4f} ({low:.4f}-{high:.4f}) of the engine's throughput, of {len(shares)} pairs")
        if middle < args.share:
            missed.append(f"{streams} at once: {middle:.4f} of the throughput, wanted {args.share}")
        if added:
            low, middle, high = quartiles(added)
            print(f"added to a request: p50 {middle:.2f} ms ({low:.2f}-{high:.2f})")
            if middle > args.added:
                missed.append(f"{middle:.2f} ms added to a request, wanted {args.added}")
    server.process.send_signal(signal.SIGTERM)
    if server.process.wait(30) != 0:
        missed.append("the server did not end well")
    for line in missed:
        print(f"missed: {line}")
    sys.exit(bool(missed))


main()
