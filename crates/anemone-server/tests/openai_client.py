"""OpenAI's own client against `anemone serve`: every form of request its types know, typed answers, errors as its exceptions.

openai_client.py ANEMONE; ANEMONE is the binary. It needs the `openai` package. Exits 1 when anything differs from the package's
types, and when those know a field or a kind that is not sent here.
"""
import asyncio
import json
import signal
import subprocess
import sys
import threading
import typing

import openai
import pydantic
from openai.types import Decision
from openai.types.decision_create_params import DecisionCreateParams

TEXT = "i lost my card, please send a new one"
CUT = {"mode": "explicit"}
PREDICATE = {"type": "predicate", "name": "lost", "instructions": "The user's intent is report lost card."}
CHOICE = {
    "type": "choice",
    "instructions": [{"type": "input_text", "text": "Which team?"}, {"type": "input_json", "data": {"of": "bank"}}],
    "choices": [{"value": "cards", "description": "lost or stolen"}, {"value": True}, {"value": "True"}],
}
SCORE = {
    "type": "score",
    "name": "urgency",
    "instructions": "How urgent?",
    "levels": [{"label": "none", "description": "can wait"}, {"label": "soon"}, {"label": "now"}],
}
# Every kind of item, with every field.
CONVERSATION = [
    {"type": "message", "role": "system", "content": "A bank."},
    {"role": "developer", "content": [{"type": "input_text", "text": "Be short.", "prompt_cache_breakpoint": CUT}]},
    {
        "role": "user",
        "content": [{"type": "input_text", "text": TEXT}, {"type": "input_json", "data": [{"card": 7, "ok": None}]}],
    },
    {"role": "assistant", "phase": "commentary", "content": [{"type": "output_text", "text": "Which card?"}]},
    {"role": "assistant", "phase": "final_answer", "content": [{"type": "refusal", "refusal": "I cannot."}]},
    {"role": "assistant", "content": "Anything else?"},
    {
        "type": "function_call",
        "id": "f",
        "namespace": "n",
        "status": "in_progress",
        "call_id": "1",
        "name": "cards",
        "arguments": "{}",
    },
    {"type": "function_call_output", "id": "g", "status": "completed", "call_id": "1", "output": "one card"},
    {
        "type": "custom_tool_call",
        "id": "h",
        "namespace": "n",
        "status": "incomplete",
        "call_id": "2",
        "name": "look",
        "input": "up",
    },
    {
        "type": "custom_tool_call_output",
        "id": "i",
        "status": "completed",
        "call_id": "2",
        "output": [{"type": "input_text", "text": "nothing"}],
    },
]
IMAGE = [
    {
        "role": "user",
        "content": [
            {"type": "input_image", "image_url": "data:,", "detail": detail, "prompt_cache_breakpoint": CUT}
            for detail in ["low", "high", "auto", "original"]
        ],
    }
]


class Server:
    """`anemone serve` on a free port."""

    def __init__(self, binary, *args):
        self.child = subprocess.Popen([binary, "serve", "--port", "0", *args], stderr=subprocess.PIPE, text=True)
        line = ""
        while " at http://" not in line:
            line = self.child.stderr.readline()
            assert line, "the server ended"
        self.url = "http://" + line.strip().split("http://")[1] + "/v1"

    def client(self, kind=openai.OpenAI, key="none", retries=0):
        return kind(base_url=self.url, api_key=key, max_retries=retries, timeout=60)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.child.send_signal(signal.SIGTERM)
        code = self.child.wait(60)
        assert code == 0, f"the server ended with {code}"


sent = []
REQUEST = pydantic.TypeAdapter(DecisionCreateParams)


def create(client, **request):
    """A decision whose request is of the package's types, checked against them to the last field."""
    request = {"model": "gpt-6-luna", "questions": [PREDICATE]} | request
    REQUEST.validate_python(json.loads(json.dumps(request)))
    sent.append(request)
    return client.decisions.with_raw_response.create(**request)


def checked(response):
    """The decision in a response. `parse` takes anything; here types, fields and values must be those of the model."""
    raw = json.loads(response.text)
    decision = response.parse()
    assert type(decision) is Decision, type(decision)
    strict = Decision.model_validate(raw, strict=True)
    assert strict == decision, (strict, decision)
    exact(strict, raw)
    return decision


def exact(value, raw):
    """No field more than the type has, and none less."""
    if isinstance(value, pydantic.BaseModel):
        assert not value.model_extra, f"{type(value).__name__} has no {list(value.model_extra)}"
        assert set(raw) == set(type(value).model_fields), (type(value).__name__, sorted(raw))
        for name in raw:
            exact(getattr(value, name), raw[name])
    elif isinstance(value, list):
        assert len(value) == len(raw)
        for pair in zip(value, raw):
            exact(*pair)
    else:
        assert value == raw and type(value) is type(raw), (value, raw)


def answers(client):
    questions = [PREDICATE, CHOICE, SCORE, PREDICATE | {"name": "again"}]
    response = create(client, input=TEXT, questions=questions)
    assert float(response.headers["x-inference-time-ms"]) > 0
    decision = checked(response)
    lost, team, urgency, again = decision.answers
    assert (lost.type, lost.name, again.name) == ("predicate", "lost", "again")
    assert lost.probability == again.probability > 0.9, lost
    assert (team.type, team.name) == ("choice", None)
    assert [(type(p.value), p.value) for p in team.probabilities] == [(str, "cards"), (bool, True), (str, "True")]
    best = max(team.probabilities, key=lambda p: p.probability)
    assert (type(team.choice), team.choice, team.confidence) == (type(best.value), best.value, best.probability)
    assert [(p.value, p.label) for p in urgency.probabilities] == [(0, "none"), (1, "soon"), (2, "now")]
    mean = sum(p.value * p.probability for p in urgency.probabilities)
    assert urgency.name == "urgency" and abs(urgency.score - mean) < 3e-4, urgency
    for answer in (team, urgency):
        assert abs(sum(p.probability for p in answer.probabilities) - 1) < 2e-4, answer
    usage = decision.usage
    assert usage.input_tokens == usage.total_tokens > 0 == usage.output_tokens, usage
    # The plain call gives the same.
    assert client.decisions.create(model="gpt-6-luna", input=TEXT, questions=questions) == decision
    content = [{"role": "user", "content": [{"type": "input_text", "text": TEXT}]}]
    assert checked(create(client, input=content, questions=questions)) == decision
    return decision


def conversations(client):
    for end in range(1, len(CONVERSATION) + 1):
        decision = checked(create(client, input=CONVERSATION[:end]))
        assert 0 <= decision.answers[0].probability <= 1
    options = {"prompt_cache_key": "k", "safety_identifier": "s"}
    for cache in [{"mode": "implicit", "ttl": "30m"}, {"mode": "explicit"}]:
        checked(create(client, input=TEXT, prompt_cache_options=cache, **options))
    checked(create(client, input=TEXT, questions=[PREDICATE | {"name": f"q{i}"} for i in range(400)]))
    named = client.models.list().data
    assert [model.id for model in named] == ["laya-demo", "stories-lfm2"], named
    assert checked(create(client, input=TEXT, model="laya-demo")).model == "laya-demo"


def refused(kind, status, fragment, call):
    try:
        call()
    except openai.APIStatusError as error:
        assert type(error) is kind and error.status_code == status, (type(error), error.status_code, error)
        body = error.response.json()["error"]
        assert sorted(body) == ["code", "message", "param", "type"], body
        assert (error.code, error.param, error.type) == (body["code"], body["param"], body["type"])
        assert fragment in body["message"] and fragment in error.message, (fragment, error.message)
        return error
    raise AssertionError(f"no error of {fragment!r}")


def errors(client):
    def bad(fragment, **request):
        request = {"model": "m", "input": TEXT, "questions": [PREDICATE]} | request
        return refused(openai.BadRequestError, 400, fragment, lambda: client.decisions.create(**request))

    assert bad("'input'", input=[]).type == "invalid_request_error"
    bad("'questions'", questions=[])
    bad("'questions[0].type'", questions=[{"type": "noul", "instructions": "x"}])
    bad("'questions[0].instructions'", questions=[{"type": "predicate"}])
    bad("give 2 to 255", questions=[{"type": "choice", "instructions": "x", "choices": [{"value": "a"}]}])
    bad("unknown model '../x'", model="../x")
    bad("no call before it", input=[CONVERSATION[7]])
    refused(openai.BadRequestError, 400, "describe it in words", lambda: create(client, input=IMAGE))
    part = [{"type": "input_image", "image_url": "data:,"}]
    asked = [PREDICATE | {"instructions": part}]
    refused(openai.BadRequestError, 400, "an image", lambda: create(client, input=TEXT, questions=asked))
    output = [CONVERSATION[6], CONVERSATION[7] | {"output": part}]
    refused(openai.BadRequestError, 400, "an image", lambda: create(client, input=output))
    many = [PREDICATE] * 401
    refused(openai.APIStatusError, 413, "401 > 400", lambda: create(client, input=TEXT, questions=many))
    refused(openai.APIStatusError, 413, "state too large", lambda: create(client, input="x" * 50_001))


def keys(binary):
    with Server(binary, "--api-key", "sesame") as server:
        wrong = server.client(key="sesam")
        error = refused(openai.AuthenticationError, 401, "bearer token", lambda: create(wrong, input=TEXT))
        assert error.code == "invalid_api_key", error
        checked(create(server.client(key="sesame"), input=TEXT))


def crowd(binary):
    """More callers than there is room: without retries some are told 503, with the client's own retries all are answered."""
    with Server(binary, "--max-concurrent", "1") as server:
        lines = "\n".join(TEXT for _ in range(200))

        def call(retries, outcomes):
            try:
                checked(create(server.client(retries=retries), input=lines, questions=[PREDICATE] * 8))
                outcomes.append(200)
            except openai.InternalServerError as error:
                assert error.status_code == 503 and error.response.headers["retry-after"] == "1", error
                assert error.type == "server_error" and "try again" in error.message, error
                outcomes.append(503)

        for retries, expected in [(0, {200, 503}), (30, {200})]:
            outcomes = []
            threads = [threading.Thread(target=call, args=(retries, outcomes)) for _ in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(outcomes) == 6 and set(outcomes) == expected, outcomes


async def asynchronous(server, expected):
    async with server.client(openai.AsyncOpenAI) as client:
        questions = [PREDICATE, CHOICE, SCORE, PREDICATE | {"name": "again"}]
        calls = [client.decisions.create(model="m", input=TEXT, questions=questions) for _ in range(8)]
        assert all(decision == expected for decision in await asyncio.gather(*calls))


def known(kind, keys, words, seen):
    """Fields and literal strings of a type and of all types in it."""
    if kind in seen:
        return
    seen.append(kind)
    if typing.get_origin(kind) is typing.Literal:
        words.update(word for word in typing.get_args(kind) if isinstance(word, str))
    elif hasattr(kind, "__required_keys__"):
        for key, inner in typing.get_type_hints(kind).items():
            keys.add(key)
            known(inner, keys, words, seen)
    for inner in typing.get_args(kind):
        known(inner, keys, words, seen)


def used(value, keys, words):
    if isinstance(value, dict):
        keys.update(value)
        for inner in value.values():
            used(inner, keys, words)
    elif isinstance(value, list):
        for inner in value:
            used(inner, keys, words)
    elif isinstance(value, str):
        words.add(value)


def complete():
    """Everything the package's types of a request know has been sent."""
    keys, words, ours, said = set(), set(), set(), set()
    known(DecisionCreateParams, keys, words, [])
    used(sent, ours, said)
    assert len(keys) > 25 and len(words) > 25, "the types could not be read"
    missing = sorted((keys - ours) | (words - said))
    assert not missing, f"openai {openai.__version__} knows of {missing}, which were not sent"


def main(binary):
    with Server(binary) as server:
        client = server.client()
        decision = answers(client)
        conversations(client)
        errors(client)
        asyncio.run(asynchronous(server, decision))
    keys(binary)
    crowd(binary)
    complete()
    print(f"openai {openai.__version__}: {len(sent)} requests of every kind, answers and errors are of its types")


if __name__ == "__main__":
    main(*sys.argv[1:])
