"""Rubrics: specs of judges in the package, without a model and without runs."""

from typing import Any

import jsonschema
import pytest
from flow_kit import run_here

from assayline.errors import SpecError
from assayline.prompts.row import AnswerRow
from assayline.prompts.sources import open_reader
from assayline.spec.file import load_spec
from assayline.spec.judges import VerdictScorer
from assayline.spec.named import list_benchmarks, list_rubrics

ROW: dict[str, Any] = {"id": "q1", "prompt": "Who wrote it?", "target": "Ann", "answer": "Bob", "context": "Ann did."}
PAIR: dict[str, Any] = {**ROW, "first": "It was Ann.", "second": "It was Bob."}


@pytest.mark.parametrize("name", list_rubrics())
def test_rubric_renders_an_answer_and_reads_each_verdict_that_its_schema_allows(name):
    runs = {"runs": "[a, b]"} if name == "preference" else {"run": "a"}
    overrides = {f"prompts.source.{field}": text for field, text in runs.items()}
    spec = load_spec(f"@{name}", {"model": "some/judge", **overrides})
    assert (spec.name, spec.model, spec.sampling["temperature"]) == (name, "some/judge", 0)
    row = AnswerRow(PAIR if name == "preference" else ROW, {"source": {"run_id": "a"}})
    parts = open_reader(spec.prompts, None, None).read(row)
    text = str(parts.messages[-1]["content"])
    used = ["first", "second"] if name == "preference" else ["answer"]
    assert all(row[column] in text for column in ["prompt", *used]) and parts.metadata == row.origin
    assert ("Ann did." in text) == (name == "groundedness") and parts.target == "Ann"
    (scorer,) = spec.scorers or []
    assert isinstance(scorer, VerdictScorer)
    schema = spec.sampling["structured_outputs"]["json"]
    allowed = range(1, 6) if scorer.scale else list(scorer.values or {})
    for verdict in allowed:
        assert f"- {verdict}: " in text
        jsonschema.validate({"reason": "So.", "verdict": verdict}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"reason": "So.", "verdict": 6}, schema)
    assert list(schema["properties"]) == ["reason", "verdict"], "a reason comes before its verdict"


def test_rubrics_are_apart_from_benchmarks():
    assert set(list_rubrics()) == {"correctness", "helpfulness", "preference", "groundedness", "safety"}
    assert not {benchmark.name for benchmark in list_benchmarks()} & set(list_rubrics())
    refused = run_here("list benchmarks", "safety")
    assert refused.code == 2 and "rubrics of judges are @correctness" in refused.err


def test_rubric_without_a_run_is_rejected():
    with pytest.raises(SpecError, match=r"prompts\.source\.run: missing, but required"):
        load_spec("@correctness", {"model": "m"})
