"""Many clients of every manner against `anemone serve`, and whether it stands.

load.py ANEMONE [--clients 200] [--seconds 60] [--seed 1] [--json FILE]. Needs Linux and nothing but Python. Exits 1 when an answer is
neither the expected one nor a documented 503, when memory, descriptors or threads grow after the warm-up, or when the server does
not answer and end cleanly afterwards.
"""
import argparse
import asyncio
import collections
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

# Resident memory may exceed its most of the warm-up by this much. The server keeps nothing of a request: what it may hold at once
# are the bodies of --max-concurrent requests (16 of at most 2 MiB) and buffers of its connections, all of which the warm-up has seen
# in every kind, but not in every coincidence; an allocator keeps a few arenas of that size.
GROWTH = 24 << 20
# A leak shows as a slope: the last third may not lie above the second by more than this on average. In 60 s, at some thousand
# requests a second, that is less than 200 bytes a request.
DRIFT = 4 << 20
# A well-behaved client waits this long for an answer.
PATIENCE = 30

QUESTIONS = {
    "lost": {"type": "noul", "instructions": "The user's intent is report lost card."},
    "team": {"type": "choice", "instructions": "Which team?", "criteria": {"cards": "lost or stolen", "other": ""}},
    "mood": {"type": "score", "instructions": "How angry?", "criteria": ["calm", "cross", "furious"]},
}
ASKED = [
    {"type": "predicate", "name": "lost", "instructions": "The user's intent is report lost card."},
    {"type": "choice", "instructions": "Which team?", "choices": [{"value": "cards"}, {"value": "other"}]},
]
STATES = ["i lost my card, please send a new one", {"body": "where is my parcel", "n": [1, 2.5]}, "x " * 400, "ü" * 2000]


def post(path, value):
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return ("POST", path, body)


def requests():
    """Name, request and the status it has where there is room; every route and every kind of refusal."""
    one = [post("/v1/systemone", {"state": state, "questions": QUESTIONS}) for state in STATES]
    many = [post("/v1/systemone/batch", {"states": STATES[:n], "questions": QUESTIONS}) for n in (1, 4)]
    ours = [post("/v1/decisions", {"model": "m", "input": "i lost my card", "questions": ASKED})]
    labels = [f"o{i}" for i in range(10_000)]
    wide = {"q": {"type": "choice", "instructions": "x", "criteria": labels}}
    choices = [{"type": "choice", "instructions": "x", "choices": [{"value": label} for label in labels]}]
    return [
        *[(f"systemone {i}", request, 200) for i, request in enumerate(one)],
        *[(f"batch {i}", request, 200) for i, request in enumerate(many)],
        *[("decisions", request, 200) for request in ours],
        ("health", ("GET", "/health", b""), 200),
        ("models", ("GET", "/v1/models", b""), 200),
        ("no path", ("GET", "/v1/none", b""), 404),
        ("no method", ("DELETE", "/v1/decisions", b""), 405),
        ("no JSON", post("/v1/systemone", b"{"), 400),
        ("not UTF-8", post("/v1/systemone/batch", b'{"states": ["\xff"]}'), 400),
        ("deep", post("/v1/decisions", b"[" * 200_000), 400),
        ("no state", post("/v1/systemone", {"questions": QUESTIONS}), 400),
        ("wrong type", post("/v1/systemone/batch", {"states": "x", "questions": QUESTIONS}), 400),
        ("options", post("/v1/systemone", {"state": "x", "questions": wide}), 413),
        ("choices", post("/v1/decisions", {"model": "m", "input": "x", "questions": choices}), 413),
        ("long", post("/v1/systemone", {"state": "x" * 60_000, "questions": QUESTIONS}), 413),
        ("bad model", post("/v1/systemone", {"state": "x", "questions": QUESTIONS, "model": "../x"}), 422),
        ("huge", post("/v1/systemone", b" " * (1 << 21) + b"{"), 413),
    ]


class Fault(Exception):
    """Something that should not have happened."""


class Tally:
    """What happened."""

    def __init__(self):
        self.statuses = collections.Counter()
        self.manners = collections.Counter()
        self.faults = collections.Counter()
        self.times = collections.defaultdict(list)
        self.answers = {}


def head(method, path, length, keep):
    connection = "keep-alive" if keep else "close"
    return (
        f"{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: {connection}\r\n"
        f"content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    ).encode()


async def answer(reader):
    """Status, headers and body of one answer."""
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
    return int(lines[0].split(" ")[1]), headers, await reader.readexactly(int(headers.get("content-length", 0)))


def check(tally, name, expected, got):
    """Whether an answer is one of those there may be."""
    status, headers, body = got
    tally.statuses[(name, status)] += 1
    if status == 503:
        if headers.get("retry-after") != "1" or b"server busy, try again later" not in body:
            raise Fault(f"{name}: a 503 that is not the documented one: {headers} {body[:200]}")
        return
    if status != expected:
        raise Fault(f"{name}: {status} and not {expected}: {body[:200]}")
    value = json.loads(body)
    if name not in ("health", "models") and tally.answers.setdefault(name, value) != value:
        raise Fault(f"{name}: another answer than before: {body[:200]}")


async def send(writer, data, drip):
    """Writes at once, or in `drip` parts with pauses. A server that has refused may have stopped listening."""
    try:
        step = max(1, len(data) // drip) if drip else max(1, len(data))
        for start in range(0, len(data), step):
            writer.write(data[start : start + step])
            await writer.drain()
            if drip:
                await asyncio.sleep(0.05)
    except ConnectionError:
        pass


class Client:
    """One of the crowd: it asks, in its manner, until the time is over."""

    MANNERS = ["keep", "keep", "keep", "close", "close", "slow to send", "slow to read", "leaves", "half", "head"]

    def __init__(self, number, port, tally, seed):
        self.manner = self.MANNERS[number % len(self.MANNERS)]
        # Of those that are told to try again, half take their time.
        self.polite = number // len(self.MANNERS) % 2 == 0
        self.port, self.tally = port, tally
        self.random = random.Random(seed * 1_000_003 + number)
        self.connection = None

    async def run(self, until):
        kinds = requests()
        while time.monotonic() < until:
            name, (method, path, body), expected = self.random.choice(kinds)
            self.tally.manners[self.manner] += 1
            try:
                if await self.ask(name, method, path, body, expected) == 503 and self.polite:
                    await asyncio.sleep(self.random.random())
            except Fault as fault:
                self.tally.faults[str(fault)] += 1
            except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
                self.tally.faults[f"{self.manner}, {name}: {type(error).__name__} {error}"] += 1
            if self.manner not in ("keep", "close"):
                await asyncio.sleep(self.random.random() * 0.2)
        self.hang_up()

    def hang_up(self):
        if self.connection:
            self.connection[1].transport.abort()
            self.connection = None

    async def connect(self):
        if self.connection is None:
            self.connection = await asyncio.wait_for(asyncio.open_connection("127.0.0.1", self.port), PATIENCE)
        return self.connection

    async def ask(self, name, method, path, body, expected):
        reader, writer = await self.connect()
        first = head(method, path, len(body), self.manner == "keep")
        if self.manner == "head":
            # Goes away in the middle of the head.
            await send(writer, first[: self.random.randrange(len(first))], 0)
            return self.hang_up()
        if self.manner == "half":
            # Goes away in the middle of the body.
            await send(writer, first + body[: self.random.randrange(len(body) + 1)], 0)
            return self.hang_up()
        start = time.monotonic()
        await send(writer, first + body, 8 if self.manner == "slow to send" else 0)
        if self.manner == "leaves":
            # Goes away while its answer is made.
            await asyncio.sleep(self.random.random() * 0.02)
            return self.hang_up()
        if self.manner == "slow to read":
            await asyncio.sleep(0.5)
        got = await asyncio.wait_for(answer(reader), PATIENCE)
        self.tally.times[(name, got[0])].append(time.monotonic() - start)
        if self.manner != "keep" or got[1].get("connection") == "close":
            self.hang_up()
        check(self.tally, name, expected, got)
        return got[0]


class Server:
    """`anemone serve` on a free port, and what it uses."""

    def __init__(self, binary):
        self.child = subprocess.Popen([binary, "serve", "--port", "0"], stderr=subprocess.PIPE, text=True)
        line = self.child.stderr.readline()
        assert " at http://" in line, line
        self.port = int(line.strip().rsplit(":", 1)[1])
        self.at = Path("/proc") / str(self.child.pid)

    def status(self, key):
        lines = dict(line.split(":", 1) for line in (self.at / "status").read_text().splitlines())
        return int(lines[key].split()[0])

    def memory(self):
        return self.status("VmRSS") * 1024

    def descriptors(self):
        return len(os.listdir(self.at / "fd"))

    def end(self):
        self.child.send_signal(signal.SIGTERM)
        start = time.monotonic()
        said = self.child.stderr.read()
        return self.child.wait(60), said, time.monotonic() - start


async def alone(server, tally):
    """Every request once, with nobody else there: the answers all later ones must equal."""
    for name, (method, path, body), expected in requests():
        client = Client(3, server.port, tally, 0)
        await client.ask(name, method, path, body, expected)
        assert (name, expected) in tally.statuses, f"{name}: {tally.statuses}"


async def watch(server, until, samples):
    start = time.monotonic()
    while time.monotonic() < until:
        samples.append((time.monotonic() - start, server.memory()))
        await asyncio.sleep(0.1)


async def crowd(server, options, tally, samples):
    await alone(server, tally)
    await asyncio.sleep(0.2)
    resting = server.descriptors(), server.status("Threads")
    until = time.monotonic() + options.seconds
    clients = [Client(i, server.port, tally, options.seed) for i in range(options.clients)]
    await asyncio.gather(watch(server, until, samples), *(client.run(until) for client in clients))
    # Requests of clients that left are worked off or dropped.
    for _ in range(100):
        await asyncio.sleep(0.1)
        if (server.descriptors(), server.status("Threads")) == resting:
            break
    after = Tally()
    after.answers = tally.answers
    await alone(server, after)
    await asyncio.sleep(0.2)
    return resting, (server.descriptors(), server.status("Threads"))


def judge(samples, seconds):
    """Memory in three thirds: the warm-up, and two that may not grow."""
    thirds = [[rss for at, rss in samples if i * seconds / 3 <= at < (i + 1) * seconds / 3] for i in range(3)]
    assert all(thirds), "the time is too short to see memory in it"
    most = [max(third) for third in thirds]
    means = [sum(third) / len(third) for third in thirds]
    problems = []
    if max(most[1:]) > most[0] + GROWTH:
        problems.append(f"memory rose from {most[0] >> 20} MiB in the warm-up to {max(most[1:]) >> 20} MiB")
    if means[2] > means[1] + DRIFT:
        problems.append(f"memory drifts: {means[1] / 2**20:.1f}, then {means[2] / 2**20:.1f} MiB on average")
    return [round(m / 2**20, 1) for m in most], [round(m / 2**20, 1) for m in means], problems


def percentile(values, p):
    ordered = sorted(values)
    return round(1e3 * ordered[min(len(ordered) - 1, int(p * len(ordered)))], 1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json")
    options = parser.parse_args()
    server, tally, samples = Server(options.binary), Tally(), []
    try:
        resting, after = asyncio.run(crowd(server, options, tally, samples))
    except BaseException:
        server.child.kill()
        raise
    code, said, took = server.end()
    most, means, problems = judge(samples, options.seconds)
    problems += [f"{count} times: {fault}" for fault, count in tally.faults.most_common()]
    if after != resting:
        problems.append(f"(descriptors, threads) were {resting} and are {after}")
    if code != 0 or took > 30 or "panic" in said:
        problems.append(f"it ended with {code} after {took:.1f} s: {said}")
    by_status = collections.Counter()
    for (_, status), count in tally.statuses.items():
        by_status[status] += count
    # Once each they were answered before the crowd came.
    seen = collections.Counter()
    for name, (_, path, _), status in requests():
        seen[(path, status)] += tally.statuses[(name, status)] - 1
    never = [f"{path} {status}" for (path, status), count in seen.items() if count == 0]
    if never or by_status[503] == 0:
        problems.append(f"not seen under load: {never or 503}")
    answered = [t for (_, status), times in tally.times.items() if status == 200 for t in times]
    busy = [t for (_, status), times in tally.times.items() if status == 503 for t in times]
    report = {
        "clients": options.clients,
        "seconds": options.seconds,
        "requests": sum(tally.manners.values()),
        "manners": dict(tally.manners),
        "statuses": {str(status): count for status, count in sorted(by_status.items())},
        "ms_200": {"p50": percentile(answered, 0.5), "p99": percentile(answered, 0.99)},
        "ms_503": {"p50": percentile(busy, 0.5), "p99": percentile(busy, 0.99)} if busy else None,
        "rss_mib_most_by_thirds": most,
        "rss_mib_mean_by_thirds": means,
        "shutdown_seconds": round(took, 2),
        "problems": problems,
    }
    if options.json:
        Path(options.json).write_text(json.dumps(report, indent=2) + "\n")
    for key, value in report.items():
        if key != "problems":
            print(f"{key:24} {json.dumps(value)}")
    for problem in problems[:20]:
        print(f"problem: {problem}")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
