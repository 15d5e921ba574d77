"""Many chats at once against `anemone serve`, a third of them broken off, and whether each that ends says what it says alone.

chats.py ANEMONE [--clients 64] [--seconds 120] [--seed 1]. Needs Linux and nothing but Python. Exits 1 when a finished stream differs from
the same request alone, when anything but 200 or a documented 503 is answered, when more wait than may, when memory grows after the
warm-up, or when a stream that had begun is cut by SIGTERM.
"""
import argparse
import asyncio
import json
import random
import re
import signal
import subprocess
import sys
import time

WAITING = 64
# What a sequence holds goes with it; the allocator keeps some of it, which the warm-up has seen.
GROWTH = 24 << 20
DRIFT = 6 << 20


def requests():
    """Requests whose answer a seed or greed decides: short and long, plain, with several choices, under a schema."""
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["n"]}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    made = []
    for index in range(12):
        words = "tell me a story about a fox and a bear. " * (1 + 5 * (index % 4))
        made.append({
            "messages": [{"role": "user", "content": words}],
            "max_tokens": [4, 40, 150][index % 3],
            "temperature": [0, 0.8][index % 2],
            "seed": index,
            "n": 2 if index % 5 == 0 else 1,
            "stream": True,
            **({"response_format": form, "max_tokens": 60} if index % 6 == 1 else {}),
        })
    return made


async def chat(address, request, chunks=None):
    """Status and the text of each choice; `chunks` breaks off after so many. `None` for the text of a stream that was cut."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        body = json.dumps(request).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        line = await reader.readline()
        if not line:
            return None, None
        status = int(line.split()[1])
        while (await reader.readline()).strip():
            pass
        texts, done = {}, False
        while line := await reader.readline():
            if not line.startswith(b"data: "):
                continue
            if line.strip() == b"data: [DONE]":
                done = True
                break
            choice = json.loads(line[6:])["choices"][0]
            index = choice["index"]
            texts[index] = texts.get(index, "") + (choice["delta"].get("content") or "")
            if chunks is not None:
                chunks -= 1
                if chunks <= 0:
                    return status, "left"
        return status, texts if done else None
    finally:
        writer.close()


async def get(address, path):
    reader, writer = await asyncio.open_connection(*address)
    writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
    text = (await reader.read()).decode()
    writer.close()
    return text


def resident(child):
    with open(f"/proc/{child.pid}/status") as status:
        return int(re.search(r"VmRSS:\s+(\d+)", status.read()).group(1)) << 10


class Crowd:
    def __init__(self, address, child, expected, seed):
        self.address, self.child, self.expected = address, child, expected
        self.random = random.Random(seed)
        self.counts = {"finished": 0, "left": 0, "busy": 0, "cut": 0}
        self.wrong, self.stopping = [], False

    async def client(self):
        while not self.stopping:
            request, expected = self.random.choice(self.expected)
            leaves = self.random.random() < 1 / 3
            chunks = self.random.randint(1, 20) if leaves else None
            try:
                status, texts = await chat(self.address, request, chunks)
            except ConnectionError:
                if self.stopping:
                    return
                raise
            if status is None and self.stopping:
                return
            if status == 503:
                self.counts["busy"] += 1
                await asyncio.sleep(0.05)
            elif status != 200:
                self.wrong.append(f"status {status}")
            elif texts == "left":
                self.counts["left"] += 1
            elif texts is None:
                self.counts["cut"] += 1
            else:
                self.counts["finished"] += 1
                if texts != expected:
                    self.wrong.append(f"seed {request['seed']}: {texts} and alone {expected}")

    async def watch(self, seconds, samples):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await asyncio.sleep(0.5)
            samples.append(resident(self.child))
            metrics = await get(self.address, "/metrics")
            waiting = max(int(n) for n in re.findall(r"anemone_sequences_waiting\{[^}]*\} (\d+)", metrics))
            if waiting > WAITING:
                self.wrong.append(f"{waiting} wait and {WAITING} may")


async def crowd(args, child, address):
    expected = []
    for request in requests():
        status, texts = await chat(address, request)
        assert status == 200 and texts, (status, request)
        expected.append((request, texts))
    crowd = Crowd(address, child, expected, args.seed)
    clients = [asyncio.create_task(crowd.client()) for _ in range(args.clients)]
    warm, seen = [], []
    await crowd.watch(args.seconds / 4, warm)
    await crowd.watch(args.seconds * 3 / 4, seen)
    crowd.stopping = True
    child.send_signal(signal.SIGTERM)
    await asyncio.wait_for(asyncio.gather(*clients), 60)
    third = len(seen) // 3
    thirds = [sum(part) / len(part) for part in (seen[:third], seen[third : 2 * third], seen[2 * third :])]
    mib = [round(part / (1 << 20), 1) for part in thirds]
    print(f"{crowd.counts}; resident by thirds {mib} MiB, most of the warm-up {max(warm) / (1 << 20):.1f}")
    if max(seen) > max(warm) + GROWTH or thirds[2] > thirds[1] + DRIFT:
        crowd.wrong.append("memory grew")
    if crowd.counts["cut"]:
        crowd.wrong.append("streams were cut")
    if crowd.counts["finished"] < args.clients:
        crowd.wrong.append("too few were answered")
    return crowd.wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("anemone")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    flags = ["--port", "0", "--max-waiting", str(WAITING), "--max-concurrent", "128", "--spec", "auto", "--prefix-cache-memory", "8M"]
    child = subprocess.Popen([args.anemone, "serve", *flags], stderr=subprocess.PIPE, text=True)
    try:
        host, port = re.search(r"http://([^:]+):(\d+)", child.stderr.readline()).groups()
        wrong = asyncio.run(crowd(args, child, (host, int(port))))
        if child.wait(60) != 0:
            wrong.append(f"the server ended with {child.returncode}")
    finally:
        child.kill()
    for line in wrong[:10]:
        print(f"wrong: {line}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
