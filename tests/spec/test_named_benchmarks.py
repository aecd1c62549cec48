"""Named benchmarks: specs of the package, tried on rows with the columns of their data."""

import shutil
from typing import Any

import pytest
import run_kit
from flow_kit import run_here

from assayline.errors import SpecError
from assayline.prompts.sources import open_reader, read_rows
from assayline.scorers.process import ScorerInput, score_answers
from assayline.spec.criteria import CodeScorer
from assayline.spec.file import load_spec
from assayline.spec.named import find_benchmark, list_benchmarks

NAMES = [benchmark.name for benchmark in list_benchmarks()]
ROWS: dict[str, dict[str, Any]] = {
    "gsm8k": {"question": "Tom has 3 pens and buys 4. How many has he?", "answer": "3 + 4 = <<3+4=7>>7\n#### 7"},
    "mmlu_pro": {
        "question_id": 70,
        "question": "Which number is even?",
        "options": ["1", "2", "3", "5", "7", "9", "11", "13", "15", "17"],
        "answer": "B",
        "answer_index": 1,
        "cot_content": "",
        "category": "math",
        "src": "x",
    },
    "math_500": {
        "problem": "What is $1+1$?",
        "solution": "It is $\\boxed{2}$.",
        "answer": "2",
        "subject": "Algebra",
        "level": 1,
        "unique_id": "test/algebra/1.json",
    },
}
"""By name, a made-up row with the columns of the dataset."""


@pytest.mark.parametrize("name", NAMES)
def test_named_benchmark_is_a_valid_spec(name):
    spec = load_spec(f"@{name}", {"model": "some/model", "prompts.limit": "5"})
    assert (spec.name, spec.model, spec.prompts.limit) == (name, "some/model", 5)


@pytest.mark.parametrize("name", ROWS)
def test_named_benchmark_renders_a_row(name):
    spec = load_spec(f"@{name}", {"model": "m"})
    parts = open_reader(spec.prompts, None, None).read(ROWS[name])
    text = str(parts.messages[-1]["content"])
    question = ROWS[name].get("question") or ROWS[name]["problem"]
    assert text.startswith(question) and parts.target == str(ROWS[name]["answer"])
    if name == "mmlu_pro":
        assert "\nA. 1\nB. 2\n" in text and "\nJ. 17\n\nThink" in text


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_canonical_solutions_of_humaneval_pass_and_stubs_fail():
    spec = load_spec("@humaneval", {"model": "m"})
    problems = list(read_rows(spec.prompts.source))
    assert len(problems) == 164
    reader = open_reader(spec.prompts, None, None)
    assert "```python\n" in str(reader.read(problems[0]).messages[-1]["content"])
    (scorer,) = spec.scorers or []
    assert isinstance(scorer, CodeScorer)
    some = problems[::10]
    right = [f"```python\n{row['prompt']}{row['canonical_solution']}```" for row in some]
    wrong = [f"```python\n{row['prompt']}    pass\n```" for row in some]
    scores = score_answers(
        scorer, [ScorerInput(text, None, row) for text, row in zip(right + wrong, some * 2, strict=True)]
    )
    assert [score.value for score in scores if score] == [1.0] * len(some) + [0.0] * len(some)


@pytest.mark.slow
def test_a_run_of_a_named_benchmark_with_other_prompts_has_one_note(settings, tiny_model):
    engine = {"model": str(tiny_model), "engine.backend": "fake", "scorers": "[]"}
    known = find_benchmark("humaneval")
    runs = {
        None: run_kit.complete(load_spec("@humaneval", engine), settings),
        "3 rows, and it has 164": run_kit.complete(load_spec("@humaneval", {**engine, "prompts.limit": "3"}), settings),
        f"and not {known.digest}": run_kit.complete(
            load_spec("@humaneval", {**engine, "prompts.template": "{{ prompt }}"}), settings
        ),
    }
    for words, run in runs.items():
        found = [note for note in run.notes if note.startswith("The prompts are not those of @humaneval: ")]
        assert len(found) == (words is not None) and all(str(words) in note for note in found)


def test_unknown_benchmark_is_rejected_with_the_nearest_name():
    with pytest.raises(SpecError, match=r"Unknown benchmark @gsm8; did you mean 'gsm8k'\?.*assayline list benchmarks"):
        load_spec("@gsm8", {"model": "m"})


def test_benchmarks_are_listed():
    listed = run_here("list benchmarks")
    assert listed.code == 0 and all(name in listed.out for name in NAMES)
    assert str(find_benchmark("gsm8k").revision)[:12] in run_here("list benchmarks", "gsm8k").out
    unknown = run_here("list benchmarks", "nothing")
    assert unknown.code == 2 and "Unknown benchmark nothing" in unknown.err
