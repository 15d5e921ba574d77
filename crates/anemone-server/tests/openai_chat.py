"""OpenAI's own client against the language routes of `anemone serve`, with the built-in model.

openai_chat.py ANEMONE; ANEMONE is the binary. It needs the `openai` package. Exits 1 when anything is not as the package's types
have it or says something else than it should.
"""
import asyncio
import json
import re
import signal
import subprocess
import sys
from typing import Annotated

import openai
import pydantic

ASK = [{"role": "user", "content": "tell me a story about a fox."}]
MODEL = "stories-lfm2"


class Server:
    def __init__(self, binary, *flags):
        command = [binary, "serve", "--port", "0", *flags]
        self.child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        line = self.child.stderr.readline()
        self.url = re.search(r"http://\S+", line).group(0) + "/v1"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.child.send_signal(signal.SIGTERM)
        self.child.wait(60)


def run(binary, *flags):
    command = [binary, "run", "--json", "-q", "--chat", "--prompt", ASK[0]["content"], *flags]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def chats(client, binary):
    greedy = {"model": MODEL, "messages": ASK, "temperature": 0, "extra_body": {"repetition_penalty": 1}}
    expected = run(binary, "--greedy", "-n", "40")
    answer = client.chat.completions.create(max_completion_tokens=40, **greedy)
    assert answer.choices[0].message.content == expected["text"], answer
    assert answer.choices[0].finish_reason == "length", answer
    assert answer.usage.completion_tokens == 40 and answer.usage.prompt_tokens == expected["usage"]["prompt_tokens"], answer
    options = {"include_usage": True}
    with client.chat.completions.create(max_completion_tokens=40, stream=True, stream_options=options, **greedy) as stream:
        chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == expected["text"], text
    assert chunks[-1].usage == answer.usage, chunks[-1]
    stopped = client.chat.completions.create(max_completion_tokens=40, stop=[" little"], **greedy)
    assert stopped.choices[0].message.content == expected["text"].split(" little")[0], stopped
    assert stopped.choices[0].finish_reason == "stop", stopped


def probabilities(client):
    answer = client.chat.completions.create(
        model=MODEL, messages=ASK, n=3, seed=4, temperature=1, max_tokens=8, logprobs=True, top_logprobs=3
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2], answer
    assert len({choice.message.content for choice in answer.choices}) > 1, answer
    for choice in answer.choices:
        content = choice.logprobs.content
        assert "".join(bytes(token.bytes).decode() for token in content) == choice.message.content, content
        for token in content:
            tops = [top.logprob for top in token.top_logprobs]
            assert len(tops) == 3 and tops == sorted(tops, reverse=True) and token.logprob <= max(tops) <= 0, token
    again = client.chat.completions.create(model=MODEL, messages=ASK, n=3, seed=4, temperature=1, max_tokens=8)
    assert [c.message.content for c in again.choices] == [c.message.content for c in answer.choices], again


def completions(client):
    echoed = client.completions.create(model=MODEL, prompt="once upon a time", max_tokens=0, echo=True, logprobs=1)
    choice = echoed.choices[0]
    assert choice.text == "once upon a time" and choice.logprobs.token_logprobs[0] is None, choice
    assert all(p <= 0 for p in choice.logprobs.token_logprobs[1:]), choice
    several = client.completions.create(model=MODEL, prompt=["once", "one day"], max_tokens=4, temperature=0, n=2)
    assert [c.index for c in several.choices] == [0, 1, 2, 3], several
    assert several.choices[0].text == several.choices[1].text != several.choices[2].text, several
    pieces = client.completions.create(model=MODEL, prompt="once", max_tokens=4, temperature=0, stream=True)
    assert "".join(piece.choices[0].text for piece in pieces) == several.choices[0].text


WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "Weather.", "parameters": WEATHER}}]
NAMED = {"type": "function", "function": {"name": "get_weather"}}


def fits(arguments):
    """Checks arguments by hand: no outside library is needed to see that a schema was kept."""
    value = json.loads(arguments)
    assert set(value) == {"city", "days"} and len(value["city"]) <= 12 and 1 <= value["days"] <= 9, value


def tools(client):
    asked = {"model": MODEL, "messages": ASK, "tools": TOOLS, "temperature": 0, "max_tokens": 200}
    answer = client.chat.completions.create(tool_choice=NAMED, **asked)
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content is None, choice
    [call] = choice.message.tool_calls
    assert call.function.name == "get_weather" and call.id.startswith("call_"), call
    fits(call.function.arguments)
    name, arguments, finish = "", "", None
    for chunk in client.chat.completions.create(tool_choice=NAMED, stream=True, **asked):
        delta = chunk.choices[0].delta
        assert not delta.content, chunk
        for part in delta.tool_calls or []:
            name += part.function.name or ""
            arguments += part.function.arguments or ""
        finish = chunk.choices[0].finish_reason or finish
    assert (name, arguments, finish) == ("get_weather", call.function.arguments, "tool_calls")
    several = client.chat.completions.create(tool_choice="required", parallel_tool_calls=False, **asked)
    [only] = several.choices[0].message.tool_calls
    fits(only.function.arguments)
    # The result goes back as a message, and so does a call without content.
    turns = ASK + [choice.message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "sun"}]
    assert client.chat.completions.create(model=MODEL, messages=turns, tools=TOOLS, max_tokens=3).choices[0].message
    none = client.chat.completions.create(tool_choice="none", **asked)
    assert none.choices[0].message.tool_calls is None, none


def structured(client):
    schema = {"name": "weather", "strict": True, "schema": {**WEATHER, "additionalProperties": False}}
    asked = {"model": MODEL, "messages": ASK, "max_tokens": 200}
    form = {"type": "json_schema", "json_schema": schema}
    for seed in range(4):
        answer = client.chat.completions.create(response_format=form, temperature=1, seed=seed, **asked)
        assert answer.choices[0].finish_reason == "stop", answer
        fits(answer.choices[0].message.content)
    streamed = client.chat.completions.create(response_format=form, temperature=1, seed=3, stream=True, **asked)
    assert "".join(c.choices[0].delta.content or "" for c in streamed) == answer.choices[0].message.content
    anything = client.chat.completions.create(
        response_format={"type": "json_object"}, temperature=0, logit_bias={}, **{**asked, "max_tokens": 400}
    )
    # A model of stories may not come to an end, but it has begun an object.
    assert anything.choices[0].message.content.startswith("{"), anything
    if anything.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(anything.choices[0].message.content), dict)


class Weather(pydantic.BaseModel):
    """The weather of a city."""

    city: Annotated[str, pydantic.Field(max_length=12)]
    days: Annotated[int, pydantic.Field(ge=1, le=9)]


def typed(client):
    """Answers as values of a class, which the package makes the schema of and reads."""
    asked = {"model": MODEL, "messages": ASK, "max_tokens": 200, "temperature": 1, "seed": 5}
    parsed = client.chat.completions.parse(response_format=Weather, **asked).choices[0].message.parsed
    assert isinstance(parsed, Weather), parsed
    with client.chat.completions.stream(response_format=Weather, **asked) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
        final = stream.get_final_completion()
    assert final.choices[0].message.parsed == parsed == Weather.model_validate_json(text), (final, parsed, text)
    tool = openai.pydantic_function_tool(Weather)
    named = {"type": "function", "function": {"name": "Weather"}}
    [call] = client.chat.completions.parse(tools=[tool], tool_choice=named, **asked).choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Weather), call
    answer = client.responses.parse(model=MODEL, input=ASK, text_format=Weather, max_output_tokens=200)
    assert isinstance(answer.output_parsed, Weather), answer


async def asynchronous(url):
    """Many at once, streamed and not, say what each says alone."""
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        asked = {"model": MODEL, "messages": ASK, "max_tokens": 20, "temperature": 0.8}

        async def streamed(seed):
            texts = ["", ""]
            async for chunk in await client.chat.completions.create(stream=True, seed=seed, n=2, logprobs=True, **asked):
                for choice in chunk.choices:
                    texts[choice.index] += choice.delta.content or ""
                    assert not choice.delta.content or choice.logprobs.content, chunk
            return texts

        async def whole(seed):
            answer = await client.chat.completions.create(seed=seed, n=2, **asked)
            return [choice.message.content for choice in answer.choices]

        together = await asyncio.gather(*[streamed(seed) for seed in range(6)])
        assert len({text for texts in together for text in texts}) > 6, together
        for seed, texts in enumerate(together):
            assert await whole(seed) == texts, (seed, texts)


def responses(client, binary):
    expected = run(binary, "--greedy", "--repetition-penalty", "1.05", "-n", "24")["text"]
    asked = {"model": MODEL, "input": ASK[0]["content"], "temperature": 0, "max_output_tokens": 24}
    answer = client.responses.create(**asked)
    assert answer.output_text == expected and answer.status == "incomplete", answer
    assert answer.incomplete_details.reason == "max_output_tokens" and answer.usage.output_tokens == 24, answer
    events = list(client.responses.create(stream=True, **asked))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert [event.sequence_number for event in events] == list(range(len(events))), events
    final = events[-1].response
    assert events[-1].type == "response.incomplete", events[-1]
    assert text == expected and final.output_text == expected and final.status == "incomplete", final
    turns = [{"role": "user", "content": [{"type": "input_text", "text": ASK[0]["content"]}]}]
    parts = client.responses.create(**{**asked, "input": turns})
    assert parts.output_text == expected, parts
    function = {"type": "function", "name": "get_weather", "description": "Weather.", "parameters": WEATHER, "strict": False}
    named = {"type": "function", "name": "get_weather"}
    calls = {"model": MODEL, "temperature": 0, "tools": [function], "tool_choice": named, "max_output_tokens": 200}
    called = client.responses.create(input=turns, **calls)
    [call] = called.output
    assert call.type == "function_call" and call.name == "get_weather" and called.status == "completed", called
    fits(call.arguments)
    with client.responses.stream(input=turns, **calls) as stream:
        done = [event for event in stream if event.type == "response.function_call_arguments.done"]
    assert [event.arguments for event in done] == [call.arguments], done
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sun"}
    after = client.responses.create(input=turns + [call.model_dump(exclude_none=True), result], **{**calls, "tool_choice": "none", "max_output_tokens": 16})
    assert after.output[0].type == "message", after
    form = {"format": {"type": "json_schema", "name": "weather", "schema": {**WEATHER, "additionalProperties": False}}}
    fits(client.responses.create(model=MODEL, input="weather?", text=form, max_output_tokens=200).output_text)
    try:
        client.responses.create(model=MODEL, input="x", previous_response_id="resp_1")
        raise AssertionError("a conversation that is not kept was taken up")
    except openai.BadRequestError as error:
        assert error.param == "previous_response_id", error


def errors(client):
    def bad(kind, param, **request):
        try:
            client.chat.completions.create(**{"model": MODEL, "messages": ASK, **request})
        except kind as error:
            assert error.param == param and param in error.message, error
        else:
            raise AssertionError(f"{request} was answered")

    bad(openai.BadRequestError, "temperature", temperature=9)
    bad(openai.BadRequestError, "messages", messages=[])
    bad(openai.BadRequestError, "nonsense", extra_body={"nonsense": 1})
    bad(openai.NotFoundError, "model", model="gpt-9")
    wrong = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "objekt"}}}
    try:
        client.chat.completions.create(model=MODEL, messages=ASK, response_format=wrong)
        raise AssertionError("a wrong schema was taken")
    except openai.BadRequestError as error:
        assert error.param == "response_format" and "objekt" in error.message, error
    bad(openai.BadRequestError, "tool_choice", tools=TOOLS, tool_choice={"type": "function", "function": {"name": "nobody"}})
    assert MODEL in [model.id for model in client.models.list()]
    assert client.models.retrieve(MODEL).id == MODEL
    try:
        client.models.retrieve("gpt-9")
        raise AssertionError("a model that is not here was found")
    except openai.NotFoundError as error:
        assert error.code == "model_not_found", error


def main(binary):
    with Server(binary) as server:
        client = openai.OpenAI(base_url=server.url, api_key="none", max_retries=0)
        chats(client, binary)
        probabilities(client)
        completions(client)
        tools(client)
        structured(client)
        typed(client)
        asyncio.run(asynchronous(server.url))
        responses(client, binary)
        errors(client)
    with Server(binary, "--api-key", "sesame") as server:
        for key, right in [("sesame", True), ("wrong", False)]:
            client = openai.OpenAI(base_url=server.url, api_key=key, max_retries=0)
            try:
                client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=1)
                assert right
            except openai.AuthenticationError:
                assert not right
    print("chats and completions: as OpenAI's client has them")


if __name__ == "__main__":
    main(sys.argv[1])
