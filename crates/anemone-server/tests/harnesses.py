"""lm-eval and EvalPlus against `anemone serve`, with the built-in model, to their ends and without a network.

harnesses.py ANEMONE WORK; ANEMONE is the binary, WORK a directory that is made anew. It needs the packages `lm-eval[api]` and `evalplus`
in this interpreter's environment. Their tasks are written here. Exits 1 when a harness does not end, or when what it has as answers and
log probabilities is not what the server says.
"""
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.request

MODEL = "stories-lfm2"
STORIES = [
    ("Once upon a time, there was a little", [" girl", " engine", " tax"], 0),
    ("They played in the park and had lots of", [" fun", " of", " oil"], 0),
    ("The dog wagged its", [" law", " tail", " spoon"], 1),
    ("Lily was sad and began to", [" cry", " purple", " Tuesday"], 0),
    ("The sun was very", [" and", " never", " bright"], 2),
    ("Her mom said, \"Be", [" careful", " seventeen", " copper"], 0),
]
# Two problems of our own in EvalPlus's form.
PROBLEMS = [
    {
        "task_id": "HumanEval/0",
        "entry_point": "double",
        "prompt": 'def double(n: int) -> int:\n    """Gives twice a number.\n    >>> double(4)\n    8\n    """\n',
        "canonical_solution": "    return n + n\n",
        "contract": "",
        "base_input": [[1], [4]],
        "plus_input": [[-3], [10**12]],
        "atol": 0,
    },
    {
        "task_id": "HumanEval/1",
        "entry_point": "shout",
        "prompt": 'def shout(text: str) -> str:\n    """Gives a text in capitals with an exclamation mark.\n    >>> shout("hi")\n    \'HI!\'\n    """\n',
        "canonical_solution": "    return text.upper() + '!'\n",
        "contract": "",
        "base_input": [["hi"]],
        "plus_input": [[""], ["straße"]],
        "atol": 0,
    },
]

COMMON = """\
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
metadata:
  version: 1
"""
TASKS = {
    "stories_choice": """\
output_type: multiple_choice
doc_to_text: "{{text}}"
doc_to_choice: choices
doc_to_target: gold
target_delimiter: ""
metric_list:
  - metric: acc
  - metric: acc_norm
""",
    "stories_rolling": """\
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}{{choices[gold]}}"
metric_list:
  - metric: bits_per_byte
""",
    "stories_go_on": """\
output_type: generate_until
doc_to_text: "{{text}}"
doc_to_target: "{{choices[gold]}}"
generation_kwargs:
  until: ["."]
  max_gen_toks: 24
  temperature: 0
metric_list:
  - metric: exact_match
""",
}


class Server:
    def __init__(self, binary):
        self.child = subprocess.Popen([binary, "serve", "--port", "0"], stderr=subprocess.PIPE, text=True)
        line = self.child.stderr.readline()
        self.url = re.search(r"http://\S+", line).group(0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.child.terminate()
        self.child.wait(60)

    def post(self, path, **body):
        request = urllib.request.Request(self.url + path, json.dumps({"model": MODEL, **body}).encode())
        with urllib.request.urlopen(request) as response:
            return json.load(response)

    def logprobs(self, prompt):
        """The log probability of each token of a prompt, and whether it was the likeliest."""
        [choice] = self.post("/v1/completions", prompt=prompt, max_tokens=0, echo=True, logprobs=1)["choices"]
        given = choice["logprobs"]
        best = [True] + [p == max(top.values()) for p, top in zip(given["token_logprobs"][1:], given["top_logprobs"][1:])]
        return given["token_logprobs"], best

    def tokens(self, text):
        return self.post("/tokenize", prompt=text, add_special_tokens=False)["tokens"]


def run(command, work, **environment):
    """Runs a harness without a network of its own; what it printed."""
    home = {"HF_HOME": work / "home", "XDG_CACHE_HOME": work / "cache", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    command = [pathlib.Path(sys.executable).parent / command[0], *command[1:]]
    environment = {**os.environ, **{key: str(value) for key, value in (home | environment).items()}}
    ended = subprocess.run(command, env=environment, cwd=work, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
    assert ended.returncode == 0, f"{command} ended with {ended.returncode}:\n{ended.stdout}"
    return ended.stdout


def lm_eval(server, work, model, path, tasks, *flags):
    """Runs tasks; their results and samples."""
    out = work / f"{model}-{len(tasks)}"
    arguments = f"model={MODEL},base_url={server.url}{path},num_concurrent=4,max_retries=1"
    run(
        ["lm_eval", "run", "--model", model, "--model_args", arguments, "--tasks", ",".join(tasks), "--include_path", work / "tasks",
         "--output_path", out, "--log_samples", *flags],
        work,
    )
    [results] = out.rglob("results_*.json")
    samples = {}
    for task in tasks:
        [file] = out.rglob(f"samples_{task}_*.jsonl")
        samples[task] = sorted(map(json.loads, file.read_text().splitlines()), key=lambda sample: sample["doc_id"])
        assert len(samples[task]) == len(STORIES), samples[task]
    return json.loads(results.read_text())["results"], samples


def close(a, b):
    """Sums of single precision numbers that were written in full."""
    return abs(a - b) <= 1e-5 * max(1, abs(b))


def completions(server, work):
    info = json.load(urllib.request.urlopen(f"{server.url}/tokenizer_info"))
    begin = server.tokens(info["bos_token"])
    results, samples = lm_eval(server, work, "local-completions", "/v1/completions", list(TASKS), "--batch_size", "4")
    right = 0
    for (text, choices, gold), sample in zip(STORIES, samples["stories_choice"]):
        context = server.tokens(text)
        mine = []
        for choice in choices:
            ids = server.tokens(text + choice)
            assert ids[: len(context)] == context, "a choice changes its context's tokens"
            values, best = server.logprobs(ids)
            mine.append((sum(values[len(context) :]), all(best[len(context) :])))
        theirs = [(float(p), str(greedy) == "True") for [[p, greedy]] in sample["resps"]]
        assert all(close(p, q) and a == b for (p, a), (q, b) in zip(theirs, mine)), (text, theirs, mine)
        correct = max(range(len(choices)), key=lambda i: mine[i][0]) == gold
        assert sample["acc"] == correct, sample
        right += correct
    assert close(results["stories_choice"]["acc,none"], right / len(STORIES)), results
    assert right >= 4, f"the model of stories chose {right} of {len(STORIES)} as stories go"
    bits, size = 0, 0
    for (text, choices, gold), sample in zip(STORIES, samples["stories_rolling"]):
        whole = text + choices[gold]
        values, _ = server.logprobs(begin + server.tokens(whole))
        [[theirs]] = sample["resps"]
        theirs = theirs[0] if isinstance(theirs, list) else theirs
        assert close(float(theirs), sum(values[1:])), (whole, theirs, values)
        bits -= sum(values[1:]) / math.log(2)
        size += len(whole.encode())
    assert close(results["stories_rolling"]["bits_per_byte,none"], bits / size), results
    for (text, _, _), sample in zip(STORIES, samples["stories_go_on"]):
        [expected] = server.post("/v1/completions", prompt=server.tokens(text), max_tokens=24, temperature=0, stop=["."])["choices"]
        assert sample["resps"] == [[expected["text"]]] and expected["text"], (sample, expected)
    return right


def chats(server, work):
    _, samples = lm_eval(server, work, "local-chat-completions", "/v1/chat/completions", ["stories_go_on"], "--apply_chat_template")
    for (text, _, _), sample in zip(STORIES, samples["stories_go_on"]):
        messages = [{"role": "user", "content": text}]
        [expected] = server.post("/v1/chat/completions", messages=messages, max_tokens=24, temperature=0, stop=["."])["choices"]
        assert sample["resps"] == [[expected["message"]["content"]]] and expected["message"]["content"], (sample, expected)


def evalplus(server, work):
    """The model's answers are stories; two right ones put beside them show that passing is told from failing."""
    problems = work / "problems.jsonl"
    problems.write_text("".join(json.dumps(problem) + "\n" for problem in PROBLEMS))
    override = {"HUMANEVAL_OVERRIDE_PATH": problems}
    fixed = ["--model", MODEL, "--dataset", "humaneval", "--backend", "openai", "--base_url", f"{server.url}/v1", "--root", work / "evalplus"]
    run(["evalplus.codegen", *fixed, "--greedy"], work, **override)
    samples = work / "evalplus" / "humaneval" / f"{MODEL}_openai_temp_0.0.jsonl"
    raw = list(map(json.loads, samples.with_suffix(".raw.jsonl").read_text().splitlines()))
    assert [sample["task_id"] for sample in raw] == [problem["task_id"] for problem in PROBLEMS], raw
    instruction = "Please provide a self-contained Python script that solves the following problem in a markdown code block:"
    for problem, sample in zip(PROBLEMS, raw):
        asked = f"{instruction}\n```python\n{problem['prompt'].strip()}\n```"
        messages = [{"role": "system", "content": "You are a helpful assistant good at coding."}, {"role": "user", "content": asked}]
        [expected] = server.post("/v1/chat/completions", messages=messages, max_tokens=768, temperature=0, top_p=0.95)["choices"]
        assert sample["solution"] == expected["message"]["content"] and sample["solution"], (sample, expected)
    run(["evalplus.codegen", *fixed, "--n_samples", "2", "--temperature", "0.8"], work, **override)
    several = (work / "evalplus" / "humaneval" / f"{MODEL}_openai_temp_0.8.raw.jsonl").read_text().splitlines()
    assert len(several) == 4 and len(set(several)) == 4, several
    with samples.open("a") as file:
        for problem in PROBLEMS:
            file.write(json.dumps({"task_id": problem["task_id"], "solution": problem["prompt"] + problem["canonical_solution"]}) + "\n")
    said = run(["evalplus.evaluate", "--dataset", "humaneval", "--samples", samples, "--parallel", "2"], work, **override)
    assert len(re.findall(r"pass@1:\s+0\.500", said)) == 2, said
    results = json.loads(samples.with_name(samples.stem + "_eval_results.json").read_text())["eval"]
    statuses = {task: [(s["base_status"], s["plus_status"]) for s in found] for task, found in results.items()}
    assert statuses == {problem["task_id"]: [("fail", "fail"), ("pass", "pass")] for problem in PROBLEMS}, statuses


def main(binary, work):
    work = pathlib.Path(work).resolve()
    shutil.rmtree(work, ignore_errors=True)
    (work / "tasks").mkdir(parents=True)
    data = work / "stories.jsonl"
    rows = [{"text": text, "choices": choices, "gold": gold} for text, choices, gold in STORIES]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, task in TASKS.items():
        (work / "tasks" / f"{name}.yaml").write_text(f"task: {name}\n{COMMON.format(data=data)}{task}")
    with Server(binary) as server:
        right = completions(server, work)
        chats(server, work)
        print(f"lm-eval: {right} of {len(STORIES)} stories go on as they should; log probabilities and texts are the server's own")
        evalplus(server, work)
        print("EvalPlus: two problems, answers are the server's own")


if __name__ == "__main__":
    main(*sys.argv[1:])
