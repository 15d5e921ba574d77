"""What schemathesis is told about rules of our requests that no JSON Schema can state.

A request that has the described shape must be taken, unless it breaks one of these, which the fields' descriptions state. The check of
schemathesis that does not know them is left out, and this one made in its place. A rule holds for some routes and one status; its words
are the whole message, and where answers name the field they are about, that field is of the rule, too.
"""

import json
import re
from dataclasses import dataclass

import schemathesis
from schemathesis.core.failures import Failure

CHATS = r"/v1/(chat/completions|messages(/count_tokens)?|responses)|/tokenize"
LAYA = r"/v1/systemone(/batch)?"
DECISIONS = r"/v1/decisions"


@dataclass(frozen=True)
class Rule:
    routes: str
    status: int
    # The field of OpenAI's shape; none where the message has it.
    param: str | None
    words: str


RULES = [
    # Texts are tokens, and how many a model holds is not known by their length.
    *(
        Rule(routes, 400, param, r"the prompt is \d+ tokens and the context holds \d+; shorten it, .*")
        for routes, param in [
            (r"/v1/completions", r"prompt"),
            (r"/v1/chat/completions", r"messages"),
            (r"/v1/responses", r"input"),
            (r"/v1/messages", None),
        ]
    ),
    # Sizes of whole states count the characters of what they are written as.
    Rule(LAYA, 413, None, r"state too large \(\d+ > 50000 chars\)"),
    Rule(DECISIONS, 413, "input", r"state too large \(\d+ > 50000 chars\)"),
    Rule(LAYA, 413, None, r"too many answer options across questions \(\d+ > 512\)"),
    Rule(DECISIONS, 413, None, r"too many answer options across questions \(\d+ > 512\)"),
    # Equal labels by Python's rules (1, 1.0 and true); texts that differ only around their ends; places of a list.
    Rule(LAYA, 422, None, r"question '.*': labels \d+ and \d+ of `criteria` are equal; give each once"),
    Rule(LAYA, 422, None, r"question '.*': `labels` must be an object of exactly `false` and `true`, two different texts .*"),
    Rule(LAYA, 422, None, r"question '.*': `option_order` must hold each of 0 to \d+ once"),
    Rule(DECISIONS, 400, None, r".*labels \d+ and \d+ of `criteria` are equal; give each once"),
    # Questions that are there and say nothing.
    Rule(DECISIONS, 400, None, r"question '.*': has no `instructions`.*"),
    # Arguments of calls are JSON as text.
    Rule(
        CHATS, 400, r"(messages\[\d+\]\.tool_calls\[\d+\]\.function\.arguments|input)",
        r"messages\[\d+\]\.tool_calls\[\d+\]\.function\.arguments: is not an object in JSON .*",
    ),
    # Integers written with a point, which are integers to JSON Schema and none to laya's server.
    Rule(LAYA, 422, None, r"(max_len|head_max_len|batch_size) must be an integer"),
    # Limits of a model's own.
    Rule(LAYA, 422, None, r"(max_len|head_max_len) is \d+, expected 1 to \d+ \(the encoder's max_position_embeddings\)"),
    # Rows must have room for the options.
    Rule(LAYA, 422, None, r"question '.*': \d+ of \d+ options fit \d+ tokens; .*"),
    # A call before an output.
    Rule(DECISIONS, 400, r"input\[\d+\]\.call_id", r"'input\[\d+\]\.call_id' is '.*', which no call before it has"),
    # A language model is one by its name.
    Rule(LAYA, 422, None, r"model '.*' is a language model, which cannot decide; .*"),
    Rule(DECISIONS, 400, "model", r"model '.*' is a language model, which cannot decide; .*"),
    # Forms that cannot be kept to, and schemas that are none.
    Rule(r"/v1/chat/completions", 400, "response_format", r"schema: .*"),
    Rule(r"/v1/responses", 400, "response_format", r"schema: .*"),
    Rule(r"/v1/messages(/count_tokens)?", 400, None, r"schema: .*"),
    # Functions of one name, and choices of those that are not there.
    Rule(CHATS, 400, "tools", r"tools: .*"),
    Rule(CHATS, 400, "tool_choice", r"(tool_choice: |'tool_choice' asks for a call and there are no 'tools').*"),
    # Ids of tokens are those of the model.
    Rule(r"/v1/(chat/)?completions", 400, r"stop_token_ids\[\d+\]", r"'stop_token_ids\[\d+\]' is \d+, which is no token; ids are 0 to \d+"),
    Rule(r"/v1/(chat/)?completions", 400, r"logit_bias\.\d+", r"'logit_bias\.\d+' is no token; ids are 0 to \d+"),
    Rule(r"/detokenize", 400, r"tokens\[\d+\]", r"'tokens\[\d+\]' is \d+, which is no token; ids are 0 to \d+"),
    Rule(r"/v1/completions", 400, "prompt", r"prompt token \d+ is id \d+, the model has \d+ rows; .*"),
    # What a template makes of a conversation.
    Rule(CHATS, 400, r"(messages|input)", r"the chat template refuses this conversation: .*"),
    Rule(CHATS, 400, r"(messages|input)", r"chat template, line \d+: .*"),
    # Fields that go together.
    Rule(r"/v1/(chat/)?completions", 400, "stream_options", r"'stream_options' is only allowed when 'stream' is true"),
    Rule(r"/v1/chat/completions", 400, "top_logprobs", r"'top_logprobs' is only allowed when 'logprobs' is true"),
    Rule(r"/v1/completions", 400, "best_of", r"'best_of' must be 'n' (\(\d+\) or more|when 'stream' is true)"),
    Rule(r"/tokenize", 400, "prompt", r"'prompt' or 'messages' must be given, and not both"),
    # Room for all sequences, which depends on the prompt's length and the server's options.
    Rule(
        r"/v1/(chat/completions|completions|responses|messages)", 400, "max_tokens",
        r"max_tokens: \d+ tokens could be held where all sequences have \d+; ask for fewer",
    ),
    Rule(r"/v1/completions", 400, "prompt", r"'prompt' asks for \d+ continuations and this server holds \d+ at once; .*"),
    Rule(r"/v1/completions", 400, "prompt", r"'prompt' must be 1 to \d+ prompts( where each has \d+ continuations)?"),
]


class Refused(Failure):
    """A request of the described shape was refused."""

    def __init__(self, *, operation, message):
        super().__init__(operation=operation, title="Refused what it describes", message=message)


def excused(path, status, text):
    """Whether a refusal follows from a rule."""
    try:
        told = json.loads(text)
    except ValueError:
        return False
    error = told.get("error", {})
    message = told.get("detail", error.get("message", ""))
    for rule in RULES:
        if rule.status != status or not re.fullmatch(rule.routes, path) or not re.fullmatch(rule.words, message, re.DOTALL):
            continue
        # Anthropic's shape and laya's name no field.
        if rule.param is None or "param" not in error or re.fullmatch(rule.param, error["param"] or ""):
            return True
    return False


@schemathesis.check
def takes_what_it_describes(ctx, response, case):
    meta = case.meta
    if meta is None or not meta.generation.mode.is_positive or response.status_code not in (400, 408, 413, 422):
        return
    text = response.content.decode("utf-8", "replace")
    if not excused(case.operation.path, response.status_code, text):
        raise Refused(operation=case.operation.label, message=f"{response.status_code}: {text[:500]}")
