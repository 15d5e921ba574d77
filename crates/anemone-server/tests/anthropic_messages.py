"""Anthropic's own client against `/v1/messages` of `anemone serve`, with the built-in model.

anthropic_messages.py ANEMONE; ANEMONE is the binary. It needs the `anthropic` package. Exits 1 when anything is not as the package's
types have it or says something else than it should.
"""
import asyncio
import json
import sys

import anthropic
from openai_chat import ASK, MODEL, WEATHER, Server, fits, run

TOOL = {"name": "get_weather", "description": "Weather.", "input_schema": WEATHER}


def texts(client, binary):
    # The model's own recommended sampling is replaced as far as this API can say it; only the first words are compared.
    expected = run(binary, "--greedy", "--repetition-penalty", "1.05", "-n", "12")["text"]
    asked = {"model": MODEL, "max_tokens": 12, "messages": ASK, "extra_body": {"temperature": 0}}
    answer = client.messages.create(**asked)
    assert [block.type for block in answer.content] == ["text"] and answer.stop_reason == "max_tokens", answer
    assert answer.content[0].text == expected, (answer.content[0].text, expected)
    assert answer.usage.output_tokens == 12 and answer.usage.input_tokens > 5, answer
    with client.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == expected and final.stop_reason == "max_tokens" and final.usage.output_tokens == 12, final
    stopped = client.messages.create(**{**asked, "stop_sequences": [" time"]})
    assert stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == " time", stopped
    assert stopped.content[0].text == expected.split(" time")[0], stopped
    with_system = client.messages.create(**asked, system=[{"type": "text", "text": "Be brief."}])
    assert with_system.usage.input_tokens > answer.usage.input_tokens, with_system
    counted = client.messages.count_tokens(model=MODEL, messages=ASK)
    assert counted.input_tokens == answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0), (counted, answer)
    return expected


def tools(client):
    asked = {"model": MODEL, "max_tokens": 200, "messages": ASK, "extra_body": {"temperature": 0}, "tools": [TOOL]}
    one = {"type": "tool", "name": "get_weather"}
    answer = client.messages.create(**asked, tool_choice=one)
    [block] = answer.content
    assert block.type == "tool_use" and block.name == "get_weather" and answer.stop_reason == "tool_use", answer
    fits(json.dumps(block.input))
    with client.messages.stream(**asked, tool_choice=one) as stream:
        final = stream.get_final_message()
    assert [b.input for b in final.content] == [block.input] and final.stop_reason == "tool_use", final
    turns = ASK + [
        {"role": "assistant", "content": [block.model_dump(exclude_none=True)]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": block.id, "content": "sun"}]},
    ]
    assert client.messages.create(**{**asked, "messages": turns, "max_tokens": 3}).usage.output_tokens <= 3


async def asynchronous(url, expected):
    """Streams at once say what one says alone."""
    async with anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as client:

        async def one():
            asked = {"model": MODEL, "max_tokens": 12, "messages": ASK, "extra_body": {"temperature": 0}}
            async with client.messages.stream(**asked) as stream:
                kinds = [event.type async for event in stream]
                return kinds, await stream.get_final_text()

        for kinds, text in await asyncio.gather(*[one() for _ in range(4)]):
            assert text == expected, text
            assert kinds[0] == "message_start" and kinds[-1] == "message_stop" and "content_block_stop" in kinds, kinds


def structured(client):
    schema = {**WEATHER, "additionalProperties": False}
    form = {"format": {"type": "json_schema", "schema": schema}}
    answer = client.messages.create(model=MODEL, max_tokens=200, messages=ASK, output_config=form)
    fits(answer.content[0].text)


def errors(client):
    def bad(kind, fragment, **request):
        try:
            client.messages.create(**{"model": MODEL, "max_tokens": 1, "messages": ASK, **request})
        except kind as error:
            assert fragment in str(error), error
        else:
            raise AssertionError(f"{request} was answered")

    bad(anthropic.BadRequestError, "max_tokens", max_tokens=0)
    bad(anthropic.BadRequestError, "messages[0].role", messages=[{"role": "cook", "content": "x"}])
    bad(anthropic.BadRequestError, "image", messages=[{"role": "user", "content": [{"type": "image"}]}])
    bad(anthropic.NotFoundError, "nobody", model="nobody")
    bad(anthropic.BadRequestError, "thinking.budget_tokens", thinking={"type": "enabled", "budget_tokens": 1024})
    bad(anthropic.NotFoundError, "is a decision model", model="laya-demo")


def main(binary):
    with Server(binary) as server:
        client = anthropic.Anthropic(base_url=server.url.removesuffix("/v1"), api_key="none", max_retries=0)
        expected = texts(client, binary)
        asyncio.run(asynchronous(server.url.removesuffix("/v1"), expected))
        tools(client)
        structured(client)
        errors(client)
    with Server(binary, "--api-key", "sesame") as server:
        for key, right in [("sesame", True), ("wrong", False)]:
            client = anthropic.Anthropic(base_url=server.url.removesuffix("/v1"), api_key=key, max_retries=0)
            try:
                client.messages.create(model=MODEL, max_tokens=1, messages=ASK)
                assert right
            except anthropic.AuthenticationError:
                assert not right
    print("messages: as Anthropic's client has them")


if __name__ == "__main__":
    main(sys.argv[1])
