"""What schemathesis is told about rules of our requests that no JSON Schema can state.

A request that has the described shape must be taken, unless it breaks one of these, which the fields' descriptions state. The check of
schemathesis that does not know them is left out, and this one made in its place.
"""

import re

import schemathesis
from schemathesis.core.failures import Failure

# Routes, what their refusal is about (field or words), and why no schema says so.
RULES = [
    # Texts are tokens, and how many a model holds is not known by their length.
    (r".*", r"context_length_exceeded|the prompt is \d+ tokens and the context holds"),
    # Sizes of whole states count the characters of what they are written as.
    (r"/v1/(systemone.*|decisions)", r"state too large"),
    (r"/v1/(systemone.*|decisions)", r"too many answer options across questions"),
    # Equal labels by Python's rules (1, 1.0 and true); texts that differ only around their ends.
    (r"/v1/(systemone.*|decisions)", r"are equal|two different texts|once"),
    # Questions that are there and say nothing.
    (r"/v1/decisions", r"has no `instructions`"),
    # Arguments of calls are JSON as text.
    (r"/v1/(chat/completions|responses)|/tokenize", r"arguments: is not an object in JSON"),
    # Integers written with a point, which are integers to JSON Schema and none to laya's server.
    (r"/v1/systemone.*", r"must be an integer"),
    # Limits of a model's own.
    (r"/v1/systemone.*", r"expected 1 to \d+ \(the encoder's"),
    # Rows must have room for the options.
    (r"/v1/systemone.*", r"fit \d+ tokens"),
    # A call before an output; how often a field may be there in all.
    (r"/v1/decisions", r"which no call before it has"),
    # A language model is one by its name.
    (r"/v1/(systemone.*|decisions)", r"is a language model"),
    # Forms that cannot be kept to, and schemas that are none.
    (r"/v1/.*|/tokenize", r'"param":"(response_format|text|text\.format|output_config|tools|tool_choice)"'),
    (r"/v1/messages", r"'tool_choice'|tools|'output_config'"),
    # Ids of tokens and roles are those of the model.
    (r"/.*", r"is no token; ids are|is out of range|token \d+"),
    (r"/v1/(chat/completions|messages|responses)|/tokenize", r"template"),
    # Fields that go together.
    (r"/v1/.*completions", r"'(stream_options|top_logprobs)' is only allowed"),
    (r"/v1/completions", r"'best_of' must be 'n'"),
    # Room for all sequences, which depends on the prompt's length and the server's options.
    (r"/v1/(chat/completions|messages|responses)", r"could be held where all sequences have"),
    (r"/v1/completions", r"asks for \d+ continuations|could be held where all sequences have|where each has \d+ continuations|1 to \d+ prompts"),
    (r"/tokenize", r"'prompt' or 'messages' must be given"),
]


class Refused(Failure):
    """A request of the described shape was refused."""

    def __init__(self, *, operation, message):
        super().__init__(operation=operation, title="Refused what it describes", message=message)


@schemathesis.check
def takes_what_it_describes(ctx, response, case):
    meta = case.meta
    if meta is None or not meta.generation.mode.is_positive or response.status_code not in (400, 408, 413, 422):
        return
    text = response.content.decode("utf-8", "replace")
    for route, words in RULES:
        if re.fullmatch(route, case.operation.path) and re.search(words, text):
            return
    raise Refused(operation=case.operation.label, message=text[:500])
