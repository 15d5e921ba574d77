"""Jev's own client against `/v1/systemone` of `anemone serve`, with the built-in model.

typesafe_client.py ANEMONE; ANEMONE is the binary. It needs the `typesafe-sdk` package with its `zstd` extra. Exits 1 when anything is
not as the package's types have it or says something else than it should.
"""
import asyncio
import json
import subprocess
import sys

import pydantic
import typesafe_sdk
from openai_client import Server
from typesafe_sdk import AsyncTypeSafeClient, Choice, Noul, RetryPolicy, Score, TypeSafeClient

TEXT = "i lost my card, please send a new one"
QUESTIONS = {
    "lost": Noul(instructions="The user's intent is report lost card.", criteria={"true": "a card is gone", "false": "anything else"}),
    "intent": Choice(
        instructions="Which intent does the user have?",
        criteria={"lost_card": "report lost card", "balance": "ask for the balance", "transfer": None},
    ),
    "urgency": Score(instructions={"task": "How urgent?"}, criteria=["no hurry", {"in": "a day"}, ["right", "now"]]),
}


def client(server, kind=TypeSafeClient, retries=0, **options):
    policy = RetryPolicy(max_retries=retries, timeout=60)
    return kind(**{"api_key": "none", "base_url": server.url.removesuffix("/v1"), "retry": policy, "timeout": 60} | options)


def decided(binary, state, questions):
    """What the same binary answers without a server."""
    plain = {name: question.model_dump() for name, question in questions.items()}
    command = [binary, "decide", "--json", "--state", state, "--questions", json.dumps(plain)]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def answers(jev, binary):
    expected = decided(binary, TEXT, QUESTIONS)
    response = jev.system_one(state=TEXT, questions=QUESTIONS)
    assert (list(response.nouls), list(response.choices), list(response.scores)) == (["lost"], ["intent"], ["urgency"]), response
    lost, intent, urgency = (response.answers[name] for name in QUESTIONS)
    of = expected["answers"]
    assert lost.noul == of["lost"]["noul"] > 0.5, lost
    assert (intent.choice, intent.probabilities) == ("lost_card", of["intent"]["probabilities"]), intent
    assert intent.confidence == of["intent"]["confidence"] and abs(sum(intent.probabilities.values()) - 1) < 2e-4, intent
    assert urgency.probabilities == {int(k): p for k, p in of["urgency"]["probabilities"].items()}, urgency
    assert urgency.score == of["urgency"]["score"] and list(urgency.legend) == [0, 1, 2], urgency
    assert urgency.legend[0] == "no hurry", urgency
    assert response.usage.input_tokens == expected["usage"]["input_tokens"] and response.usage.output_tokens == 0, response
    assert response.request_id == response.raw_http_response.headers["x-request-id"] != jev.system_one(TEXT, QUESTIONS).request_id
    # Questions as dictionaries, and every name of a model that means Jev's own.
    plain = {name: question.model_dump() for name, question in QUESTIONS.items()}
    for model in [None, "jev-latest", "jev-1", "laya-demo"]:
        assert jev.system_one(TEXT, plain, model=model).answers == response.answers, model
    # A state of several turns and of an object.
    for state in [{"message": TEXT, "card": {"lost": True}}, [TEXT, {"role": "user"}]]:
        other = jev.system_one(state, {"lost": QUESTIONS["lost"]})
        assert 0 < other.nouls["lost"].noul < 1 and other.usage.input_tokens > 20, other

    class Typed(pydantic.BaseModel):
        model: str
        answers: dict[str, dict]

    typed = jev.system_one(TEXT, QUESTIONS, response_model=Typed)
    assert typed.answers["lost"]["noul"] == lost.noul and typed.answers["lost"]["answer_confidence"] > 0.5, typed
    gated = jev.system_one(TEXT, QUESTIONS, response_model=Typed, extra_body={"min_confidence": 1.0})
    assert gated.answers["urgency"]["abstention"] == "abstained", gated
    return response


def compressed(server, jev):
    """From Python 3.14 on the client compresses bodies by itself; the extra does so before."""
    lines = "\n".join([TEXT] * 60)
    assert len(lines) > 1024
    with client(server, compression="zstd") as packed:
        assert packed.system_one(lines, QUESTIONS).answers == jev.system_one(lines, QUESTIONS).answers


def models(jev):
    listed = jev.models.list().models
    assert [model.name for model in listed] == ["jev-latest", "laya-demo"], listed
    for model in listed:
        assert model.description and jev.system_one(TEXT, {"lost": QUESTIONS["lost"]}, model=model.name).nouls


def errors(server, jev):
    def refused(kind, status, fragment, *args, **kwargs):
        try:
            jev.system_one(*args, **kwargs)
        except kind as error:
            assert type(error) is kind and error.status == status and fragment in str(error) and error.request_id, error
        else:
            raise AssertionError(f"{args} was answered")

    one = {"lost": QUESTIONS["lost"]}
    unprocessable = typesafe_sdk.TypeSafeUnprocessableEntityError
    refused(unprocessable, 422, "unknown model '../x'", TEXT, one, model="../x")
    refused(unprocessable, 422, "no `instructions`", TEXT, {"q": Score(criteria=["a", "b"])})
    refused(unprocessable, 422, "unknown type 'box'", TEXT, {"q": typesafe_sdk.Box(instructions="The dog")})
    refused(typesafe_sdk.TypeSafeAPIError, 413, "state too large", "x" * 50_001, one)
    image = typesafe_sdk.Image(b"\x89PNG\r\n\x1a\n" + bytes(64))
    refused(typesafe_sdk.TypeSafeAPIError, 415, "images are not read", image, one)
    refused(typesafe_sdk.TypeSafeAPIError, 413, "101 > 100", TEXT, {"q": Choice(instructions="?", criteria={f"o{i}": None for i in range(101)})})
    with client(server, api_key="wrong") as other:
        assert other.system_one(TEXT, one).nouls, "no key is asked for"


async def asynchronous(server, expected):
    async with client(server, AsyncTypeSafeClient) as jev:
        calls = [jev.system_one(TEXT, QUESTIONS) for _ in range(8)]
        assert all(response.answers == expected.answers for response in await asyncio.gather(*calls))
        assert len((await jev.models.list()).models) == 2


def keys(binary):
    with Server(binary, "--api-key", "sesame") as server:
        with client(server, api_key="sesame") as jev:
            assert jev.system_one(TEXT, QUESTIONS).nouls
        with client(server, api_key="sesam") as jev:
            for call in [lambda: jev.system_one(TEXT, QUESTIONS), jev.models.list]:
                try:
                    call()
                    raise AssertionError("a wrong key was taken")
                except typesafe_sdk.TypeSafeAuthenticationError as error:
                    assert error.status == 401, error


async def crowd(binary):
    """More callers than there is room: the client waits as `Retry-After` says, and all are answered."""
    with Server(binary, "--max-concurrent", "1") as server:
        lines = "\n".join([TEXT] * 60)
        async with client(server, AsyncTypeSafeClient) as hasty, client(server, AsyncTypeSafeClient, retries=30) as patient:
            outcomes = await asyncio.gather(*[hasty.system_one(lines, QUESTIONS) for _ in range(8)], return_exceptions=True)
            refused = [error for error in outcomes if isinstance(error, typesafe_sdk.TypeSafeInternalServerError)]
            answered = [outcome for outcome in outcomes if isinstance(outcome, typesafe_sdk.SystemOneResponse)]
            assert answered and refused and len(answered) + len(refused) == 8, outcomes
            assert all(error.status == 503 and "try again" in str(error) for error in refused), refused
            assert len(await asyncio.gather(*[patient.system_one(lines, QUESTIONS) for _ in range(8)])) == 8


def strict(binary):
    """With `--jev-strict` answers have the fields of Jev's own service and no more."""
    with Server(binary, "--jev-strict") as server, client(server) as jev:
        raw = jev.system_one(TEXT, QUESTIONS).raw_http_response.json()
        assert sorted(raw) == ["answers", "model", "usage"], raw
        fields = {name: sorted(answer) for name, answer in raw["answers"].items()}
        assert fields == {
            "lost": ["noul", "type"],
            "intent": ["choice", "confidence", "probabilities", "type"],
            "urgency": ["confidence", "legend", "probabilities", "score", "type"],
        }, fields


def main(binary):
    with Server(binary) as server, client(server) as jev:
        expected = answers(jev, binary)
        compressed(server, jev)
        models(jev)
        errors(server, jev)
        asyncio.run(asynchronous(server, expected))
    keys(binary)
    asyncio.run(crowd(binary))
    strict(binary)
    print(f"typesafe-sdk {typesafe_sdk.__version__}: answers, models and errors are of its types")


if __name__ == "__main__":
    main(*sys.argv[1:])
