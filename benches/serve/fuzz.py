"""Bodies that are almost right, on every route that takes one, and whether the server stands.

fuzz.py ANEMONE [--seconds 300] [--seed 1] [--json FILE]. Needs Linux and nothing but Python. Requests have parts exchanged, removed
and added at any depth, or their bytes cut, flipped and repeated. Exits 1 when an answer is a failure of the server, comes late, has a
status that is not described, or is an error without its shape; when the server ends; when its memory goes on growing.
"""
import argparse
import collections
import http.client
import json
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

# What answers may be: those of `/openapi.json`.
STATUSES = {200, 400, 404, 413, 422, 503}
# An answer of a small model to a small request takes far less; a constraint that is costly to follow ends within its limits.
PATIENCE = 30
# Forms and regular expressions that are hard to follow take memory within their limits, and an allocator keeps it. When the last
# third of the time needs more than the second, something goes on growing: means are compared, in bytes.
DRIFT = 16 << 20
# Most the process may have at any time: limits of a form, of each of 16 sequences, and the models.
MOST = 1200 << 20

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 9}, "days": {"type": "integer", "minimum": 1}},
    "required": ["city"],
}
FUNCTION = {"name": "weather", "description": "tells the weather", "parameters": PARAMETERS}
TOOLS = [{"type": "function", "function": FUNCTION}]
CALL = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bonn"}'}}
QUESTIONS = {
    "lost": {"type": "noul", "instructions": "Is a card lost?", "criteria": {"true": "yes"}, "labels": {"true": "y", "false": "n"}},
    "team": {"type": "choice", "instructions": "Which team?", "criteria": {"cards": "lost ones", "other": ""}},
    "mood": {"type": "score", "instructions": ["How", "angry?"], "criteria": ["calm", "cross"], "option_order": [1, 0]},
}
ASKED = [
    {"type": "predicate", "name": "lost", "instructions": [{"type": "input_text", "text": "Is a card lost?"}]},
    {"type": "choice", "instructions": "Which team?", "choices": [{"value": "cards", "description": "x"}, {"value": True}]},
    {"type": "score", "instructions": "How angry?", "levels": [{"label": "calm"}, {"label": "cross"}]},
]
CONTROLS = {"model": None, "lang": "en", "max_len": 300, "min_confidence": {"choice:2": 0.5, "default": 0.1}}
SEEDS = {
    "/v1/chat/completions": {
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "a", "content": "sun"},
        ],
        "tools": TOOLS, "tool_choice": "auto", "n": 2, "max_tokens": 4, "temperature": 0.5, "top_p": 0.9, "seed": 3,
        "stop": ["x"], "stop_token_ids": [5], "logprobs": True, "top_logprobs": 2, "logit_bias": {"5": 1},
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": PARAMETERS}},
        "stream": False, "presence_penalty": 0.1, "metadata": {"a": "b"}, "reasoning_effort": "low",
    },
    "/v1/completions": {
        "prompt": ["once", "upon"], "max_tokens": 3, "n": 1, "best_of": 2, "echo": True, "logprobs": 2, "temperature": 0.3,
        "stream": False, "min_tokens": 1,
    },
    "/v1/messages": {
        "max_tokens": 4, "system": [{"type": "text", "text": "be brief"}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "weather", "input": {"city": "x"}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "sun"}]}]},
        ],
        "tools": [{"name": "weather", "input_schema": PARAMETERS}], "tool_choice": {"type": "auto"},
        "stop_sequences": ["q"], "thinking": {"type": "disabled"}, "stream": False,
    },
    "/v1/responses": {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "sun"},
        ],
        "max_output_tokens": 4, "tools": [{"type": "function", **FUNCTION}], "stream": False,
        "text": {"format": {"type": "json_schema", "name": "x", "schema": PARAMETERS}},
    },
    "/v1/decisions": {
        "model": "m",
        "input": [{"role": "user", "content": [{"type": "input_json", "data": {"text": "i lost my card"}}]}],
        "questions": ASKED,
    },
    "/v1/systemone": {"state": {"text": "i lost my card", "n": [1, 2.5]}, "questions": QUESTIONS, **CONTROLS},
    "/v1/systemone/batch": {"states": ["i lost my card", [1]], "questions": QUESTIONS, "batch_size": 1, **CONTROLS},
    "/tokenize": {"prompt": "once upon a time", "add_special_tokens": True},
    "/detokenize": {"tokens": [1, 2, 3]},
}
SEEDS["/v1/messages/count_tokens"] = {
    key: SEEDS["/v1/messages"][key] for key in ["system", "messages", "tools", "tool_choice", "thinking"]
}
HARD = {"type": "string", "pattern": "(a|aa)*(b|[^b]{1,40}){1,40}c"}
WIDE = {"type": "object", "properties": {f"p{i}": {"type": "string", "maxLength": i} for i in range(60)}}
ODD = [
    None, True, False, 0, 1, -1, 0.5, 1e308, -5, 2**63, 2**64, 10**30, "", "x", "\u0000", "\U0001f642", "<think>",
    "<|tool_call_start|>[weather(", "ü" * 3000, [], {}, [[]], [None], {"a": 1}, [1] * 50, {"type": "object"}, {"$ref": "#"},
    {"type": "string", "pattern": "(a*)*b"}, {"anyOf": []}, HARD, WIDE,
]
LITERALS = [b"NaN", b"Infinity", b"-", b"1e999", b'"\\ud800"', b"\xff\xfe", b"[" * 10_000, b'{"a":' * 5000, b"//", b"\x00"]


class Maker:
    """Makes bodies."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def places(self, value, at=()):
        if at:
            yield at
        inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, part in inner:
            yield from self.places(part, (*at, key))

    def exchanged(self, request):
        """The request with some of its parts exchanged."""
        request = json.loads(json.dumps(request))
        for _ in range(self.random.choice([0, 1, 1, 1, 2, 3])):
            places = list(self.places(request))
            if not places:
                break
            *path, last = self.random.choice(places)
            parent = request
            for key in path:
                parent = parent[key]
            odd = json.loads(json.dumps(self.random.choice(ODD)))
            draw = self.random.random()
            if draw < 0.15:
                del parent[last]
            elif draw < 0.3 and isinstance(parent, dict):
                parent[self.random.choice(["extra", "stream", "n", "echo", "tools", "type", "model", "tool_choice"])] = odd
            else:
                parent[last] = odd
        for key in ("max_tokens", "max_output_tokens"):
            # Nothing is learned from long answers.
            if isinstance(request, dict) and type(request.get(key)) is int and request[key] > 40:
                request[key] = 40
        return request

    def body(self, request):
        text = json.dumps(self.exchanged(request), ensure_ascii=self.random.random() < 0.5).encode("utf-8", "surrogatepass")
        if self.random.random() < 0.75:
            return text
        bytes_ = bytearray(text)
        for _ in range(self.random.choice([1, 1, 2, 5])):
            at = self.random.randrange(len(bytes_) + 1)
            draw = self.random.random()
            if draw < 0.2:
                del bytes_[at:]
            elif draw < 0.5 and bytes_:
                bytes_[at % len(bytes_)] ^= 1 << self.random.randrange(8)
            elif draw < 0.8:
                bytes_[at:at] = self.random.choice(LITERALS)
            else:
                bytes_[at:at] = bytes_[: self.random.randrange(len(bytes_) + 1)][:4096]
        return bytes(bytes_)


def shaped(path, status, data):
    """Whether an error has the shape of its route."""
    error = json.loads(data)
    if path.startswith("/v1/systemone"):
        return set(error) == {"detail"} and isinstance(error["detail"], str) and error["detail"]
    if path.startswith("/v1/messages"):
        return error["type"] == "error" and set(error["error"]) == {"type", "message"} and error["error"]["message"]
    inner = error["error"]
    return set(inner) == {"message", "type", "param", "code"} and inner["message"]


def fault(path, status, data, seconds):
    """What is wrong with an answer, if anything."""
    if status not in STATUSES:
        return f"status {status}"
    if seconds > PATIENCE:
        return f"took {seconds:.0f} s"
    try:
        if status != 200:
            return None if shaped(path, status, data) else "an error of another shape"
        if data.startswith((b"data:", b"event:")):
            events = [line[6:] for line in data.split(b"\n") if line.startswith(b"data: ")]
            events = [json.loads(event) for event in events if event != b"[DONE]"]
            failed = [event for event in events if "server_error" in str(event.get("error")) or "api_error" in str(event.get("error"))]
            return f"a stream that failed: {failed}" if failed else None
        json.loads(data)
    except (ValueError, KeyError, TypeError) as error:
        return f"not as described: {error!r}"
    return None


class Server:
    def __init__(self, binary):
        command = [binary, "serve", "--port", "0", "--ctx", "512", "--max-concurrent", "32"]
        self.child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        line = ""
        while " at http://" not in line:
            line = self.child.stderr.readline()
            assert line, "the server ended"
        self.host, self.port = re.search(r"http://([^:]+):(\d+)", line).groups()
        # What it logs is read, so that it is never kept from writing.
        self.log = collections.deque(maxlen=1000)
        threading.Thread(target=lambda: self.log.extend(self.child.stderr), daemon=True).start()

    def memory(self):
        status = Path(f"/proc/{self.child.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) << 10


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("anemone", type=Path)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    server = Server(args.anemone)
    begin = time.monotonic()
    counts, faults, samples, slowest = collections.Counter(), [], [], [0.0]

    def client(number):
        maker = Maker(args.seed * 1000 + number)
        while time.monotonic() - begin < args.seconds and len(faults) < 20:
            path = maker.random.choice(list(SEEDS))
            body = maker.body(SEEDS[path])
            start = time.monotonic()
            connection = http.client.HTTPConnection(server.host, int(server.port), timeout=2 * PATIENCE)
            try:
                connection.request("POST", path, body)
                answer = connection.getresponse()
                status, data = answer.status, answer.read()
                wrong = fault(path, status, data, time.monotonic() - start)
            except OSError as error:
                status, data, wrong = 0, b"", repr(error)
            finally:
                connection.close()
            slowest[0] = max(slowest[0], time.monotonic() - start)
            counts[path, status] += 1
            if wrong:
                faults.append(f"{path}: {wrong}\n  {body[:1500]!r}\n  {data[:500]!r}")

    threads = [threading.Thread(target=client, args=(number,)) for number in range(args.clients)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if server.child.poll() is not None:
            faults.append(f"the server ended with {server.child.returncode}: {''.join(server.log)[-2000:]}")
            break
        samples.append((time.monotonic() - begin, server.memory()))
        time.sleep(0.1)
    for thread in threads:
        thread.join()
    if server.child.poll() is None:
        server.child.send_signal(signal.SIGTERM)
        if code := server.child.wait(60):
            faults.append(f"the server ended with {code}")
    panics = [line for line in server.log if "panic" in line]
    faults += panics
    thirds = [[memory for at, memory in samples if third <= at / args.seconds * 3 < third + 1] for third in range(3)]
    means = [sum(part) / max(len(part), 1) for part in thirds]
    most = max(memory for _, memory in samples)
    if most > MOST:
        faults.append(f"the process had {most >> 20} MiB")
    if args.seconds >= 60 and means[2] - means[1] > DRIFT:
        faults.append(f"memory grows: {[round(mean / 2**20) for mean in means]} MiB in thirds")
    total, taken = sum(counts.values()), sum(n for (_, status), n in counts.items() if status == 200)
    refused = total - taken
    if min(taken, refused) < 50:
        faults.append(f"{taken} taken and {refused} refused are too few to tell anything")
    told = {
        "requests": total, "taken": taken, "seconds": round(time.monotonic() - begin), "slowest_seconds": round(slowest[0], 2),
        "statuses": dict(sorted(collections.Counter(str(status) for (_, status), n in counts.items() for _ in range(n)).items())),
        "memory_mib_in_thirds": [round(mean / 2**20) for mean in means], "most_mib": most >> 20, "faults": len(faults),
    }
    print(json.dumps(told))
    if args.json:
        args.json.write_text(json.dumps(told))
    if faults:
        sys.exit("\n".join(faults[:20]))


if __name__ == "__main__":
    main()
