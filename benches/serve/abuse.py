"""What nobody should send, on every route that takes a body: each has its status, the server answers others meanwhile, and memory is flat.

abuse.py ANEMONE [--rounds 6]. Needs Linux and nothing but Python. Bodies of 100 MB, heads of a megabyte, JSON ten thousand deep, text
that is no UTF-8, numbers that are none, heads and bodies that never end, and schemas that are hard to follow.
"""
import argparse
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

HEAD = "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
USER = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
QUESTIONS = {"q": {"type": "noul", "instructions": "x"}}
# A good request of each route, and the place of a number that must be one.
ROUTES = {
    "/v1/chat/completions": (USER, "temperature"),
    "/v1/completions": ({"prompt": "x", "max_tokens": 4}, "temperature"),
    "/v1/messages": (USER, "temperature"),
    "/v1/responses": ({"input": "x", "max_output_tokens": 4}, "temperature"),
    "/v1/decisions": ({"model": "m", "input": "x", "questions": [{"type": "predicate", "instructions": "x"}]}, "model"),
    "/v1/systemone": ({"state": "x", "questions": QUESTIONS}, "max_len"),
    "/v1/systemone/batch": ({"states": ["x"], "questions": QUESTIONS}, "max_len"),
    "/tokenize": ({"prompt": "x"}, "prompt"),
    "/detokenize": ({"tokens": [1, 2]}, "tokens"),
}
# After the first round, which fills what the server and its allocator keep, memory may not grow by more than this.
GROWTH = 16 << 20
# The same for schemas: each sequence has the limits of a form, whose memory comes and goes by the hundred megabytes.
SCHEMA_GROWTH = 96 << 20
# Seconds a request may wait while others abuse the server.
PATIENCE = 5
SLOW = 200

# The description refuses some of these and takes others; followed or not, they end.
SCHEMAS = [
    {"type": "string", "pattern": "(a|aa)*(b|[^b]{1,40}){1,40}c"},
    {"type": "string", "pattern": "(x+x+)+y"},
    {"type": "string", "pattern": "([a-z]{0,200}){0,200}"},
    {"type": "object", "properties": {f"p{i}": {"type": "string", "maxLength": i} for i in range(2000)}},
    {"type": "object", "properties": {f"p{i}": {"enum": [f"{j}" * 20 for j in range(50)]} for i in range(300)}},
    {"$defs": {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(60)} | {"d60": {"type": "null"}}, "$ref": "#/$defs/d0"},
    {"anyOf": [{"type": "object", "properties": {f"{i}": {"const": i}}, "required": [f"{i}"]} for i in range(1500)]},
    {"type": "array", "items": {"type": "integer", "minimum": -(10**15), "maximum": 10**15}, "minItems": 5000},
    {"enum": [f"word {i}" for i in range(20_000)]},
    {"type": "string", "minLength": 100_000},
]


class Server:
    def __init__(self, binary):
        command = [binary, "serve", "--port", "0", "--body-timeout", "1", "--max-concurrent", "64", "--ctx", "256"]
        self.child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        line = ""
        while " at http://" not in line:
            line = self.child.stderr.readline()
            assert line, "the server ended"
        host, port = re.search(r"http://([^:]+):(\d+)", line).groups()
        self.address = (host, int(port))
        self.log = []
        threading.Thread(target=lambda: self.log.extend(self.child.stderr), daemon=True).start()

    def memory(self):
        return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{self.child.pid}/status").read_text())[1]) << 10

    def say(self, *parts):
        """The status of what is answered to bytes, however the server ends the connection."""
        with socket.create_connection(self.address, timeout=60) as stream:
            try:
                for part in parts:
                    stream.sendall(part)
            except OSError:
                pass
            data = b""
            try:
                while piece := stream.recv(1 << 16):
                    data += piece
            except OSError:
                pass
        status = re.match(rb"HTTP/1\.1 (\d+)", data)
        return int(status[1]) if status else 0

    def post(self, path, body):
        connection = http.client.HTTPConnection(*self.address, timeout=60)
        connection.request("POST", path, body)
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        return answer.status, data


def cases(path):
    """What is sent, in pieces, and its status."""
    good, number = ROUTES[path]
    body = json.dumps(good).encode()
    head = HEAD.format(path=path).encode()

    def whole(body):
        return head + f"content-length: {len(body)}\r\n\r\n".encode() + body

    laya = path.startswith("/v1/systemone")
    chunk = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"
    yield "good", [whole(body)], 200
    yield "100 MB", [head + b"content-length: 100000000\r\n\r\n", *[b" " * (1 << 20)] * 95], 413
    yield "100 MB in chunks", [head + b"transfer-encoding: chunked\r\n\r\n", *[chunk] * 95], 413
    yield "a head of 1 MB", [head + b"x: " + b"y" * (1 << 20) + b"\r\n\r\n"], 431
    yield "10000 heads", [head + b"x: y\r\n" * 10_000 + b"\r\n"], 431
    yield "10000 lists deep", [whole(b"[" * 10_000 + b"]" * 10_000)], 400
    yield "10000 objects deep", [whole(b'{"a":' * 10_000 + b"1" + b"}" * 10_000)], 400
    yield "10000 deep inside", [whole(body[:-1] + b', "x": ' + b"[" * 10_000 + b"]" * 10_000 + b"}")], 400
    yield "no UTF-8", [whole(body.replace(b'"x"', b'"\xff\xfe"').replace(b'"hi"', b'"\xc3\x28"').replace(b"[1,", b'["\xff",'))], 400
    for literal in (b"NaN", b"Infinity", b"-Infinity", b"1e400"):
        wrong = {key: value for key, value in good.items() if key != number}
        yield literal.decode(), [whole(json.dumps(wrong).encode()[:-1] + f', "{number}": '.encode() + literal + b"}")], 422 if laya else 400
    yield "a body that stops", [head + f"content-length: {len(body) + 9}\r\n\r\n".encode() + body], 408


def rounds(server, count):
    """Each case on each route, again and again."""
    faults, memory = [], []
    for _ in range(count):
        for path in ROUTES:
            # What waits for the body's time waits together.
            waiting = []
            for what, parts, status in cases(path):
                def one(what=what, parts=parts, status=status, path=path):
                    said = server.say(*parts)
                    if said != status:
                        faults.append(f"{path}: {what} is answered {said} and not {status}")

                if status == 408:
                    waiting.append(threading.Thread(target=one))
                    waiting[-1].start()
                else:
                    one()
            for thread in waiting:
                thread.join()
        memory.append(server.memory())
    return faults, memory


def slow(server):
    """Clients that send a head a byte at a time take nobody's place."""
    streams = [socket.create_connection(server.address) for _ in range(SLOW)]
    faults, worst = [], 0.0
    for byte in b"POST /v1/systemone HTTP/1.1\r\nx":
        for stream in streams:
            stream.sendall(bytes([byte]))
        begin = time.monotonic()
        status, data = server.post("/tokenize", json.dumps({"prompt": "x"}))
        worst = max(worst, time.monotonic() - begin)
        if status != 200:
            faults.append(f"beside {SLOW} slow clients: {status} {data[:200]}")
    for stream in streams:
        stream.close()
    if worst > PATIENCE:
        faults.append(f"beside {SLOW} slow clients a request waits {worst:.1f} s")
    return faults, worst


def schemas(server, count):
    """Forms that are hard to follow, again and again; memory after each round."""
    faults, memory = [], []
    for _ in range(count):
        for schema in SCHEMAS:
            form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
            status, data = server.post("/v1/chat/completions", json.dumps(USER | {"max_tokens": 40, "response_format": form}))
            if status not in (200, 400):
                faults.append(f"a schema is answered {status} {data[:200]}: {json.dumps(schema)[:200]}")
        memory.append(server.memory())
    return faults, memory


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("anemone", type=Path)
    parser.add_argument("--rounds", type=int, default=6)
    args = parser.parse_args()
    server = Server(args.anemone)
    begin = time.monotonic()
    faults, memory = rounds(server, args.rounds)
    told = {"rounds_mib": [size >> 20 for size in memory]}
    if memory[-1] - memory[0] > GROWTH:
        faults.append(f"memory grows from round to round: {told['rounds_mib']} MiB")
    more, worst = slow(server)
    faults += more
    told["beside_slow_clients_seconds"] = round(worst, 3)
    more, memory = schemas(server, args.rounds)
    faults += more
    told["schemas_mib"] = [size >> 20 for size in memory]
    if memory[-1] - memory[len(memory) // 2 - 1] > SCHEMA_GROWTH:
        faults.append(f"memory grows with schemas: {told['schemas_mib']} MiB")
    status, _ = server.post("/v1/systemone", json.dumps(ROUTES["/v1/systemone"][0]))
    if status != 200 or server.child.poll() is not None:
        faults.append(f"the server does not go on: {status}")
    server.child.send_signal(signal.SIGTERM)
    if code := server.child.wait(60):
        faults.append(f"the server ended with {code}")
    faults += [line for line in server.log if "panic" in line]
    told |= {"seconds": round(time.monotonic() - begin), "faults": len(faults)}
    print(json.dumps(told))
    if faults:
        sys.exit("\n".join(faults[:30]))


if __name__ == "__main__":
    main()
