"""Which few answers of a run and of a pair of runs a reader is shown, and how scores are grouped."""

import pytest

from assayline.report.document import Sample
from assayline.report.run.accuracy import _GROUPS, describe_prompts
from assayline.report.run.comparison import read_flips
from assayline.report.run.engines import describe_errors
from assayline.report.run.rows import open_run


def given_scores(store, *values, run_id="run"):
    """A prompt per list of values, asked as often as the list is long, scored by exact_match."""
    store.given("runs", {"run_id": run_id, "expected_requests": sum(map(len, values))})
    store.given("scorers", {"run_id": run_id})
    for prompt, scores in enumerate(values):
        key = {"run_id": run_id, "prompt_id": f"p{prompt}"}
        store.given("prompts", {**key, "source_row": prompt, "target": "right"})
        for repeat, value in enumerate(scores):
            asked = {"run_id": run_id, "request_id": f"{prompt}-{repeat}"}
            store.given("requests", {**key, **asked, "repeat_index": repeat, "rendered": f"prompt {prompt}"})
            store.given("completions", {**asked, "text": f"{run_id} {prompt}.{repeat}"})
            store.given("scores", {**key, "repeat_index": repeat, "value": value})


def list_samples(section):
    shown = [block for block in section.blocks if isinstance(block, Sample)]
    return [(one.title.partition(" of")[0], one.quotes[0].text, one.quotes[1].text) for one in shown]


def test_worst_and_best_prompts_are_shown_by_the_answer_that_goes_furthest_by_the_first_scorer(store):
    given_scores(store, [1.0], [0.0], [1.0, 0.0], [1.0])
    given_scores(store, [0.0], [0.0], run_id="other")
    store.given("scorers", {"scorer": "second", "ordinal": 1})
    store.given("scores", {"scorer": "second", "prompt_id": "p0", "value": 0.0})
    with open_run(store.connection, "run") as run:
        section = describe_prompts(run)
    assert list_samples(section) == [
        ("Worst: row 1", "prompt 1", "run 1.0"),
        ("Worst: row 2", "prompt 2", "run 2.1"),
        ("Best: row 0", "prompt 0", "run 0.0"),
        ("Best: row 2", "prompt 2", "run 2.0"),
        ("Best: row 3", "prompt 3", "run 3.0"),
    ]
    (mixed,) = (block for block in section.blocks if getattr(block, "title", "").startswith("Worst: row 2"))
    assert mixed.facts[0] == ("score", "0, mean of 2 repeats 0.5")


def test_flips_are_of_both_directions_with_an_answer_of_each_run(store):
    given_scores(store, [1.0], [0.0], [1.0], [0.5, 1.0], run_id="old")
    given_scores(store, [0.0], [1.0], [1.0], [0.5, 0.5], run_id="new")

    def show(candidate, change):
        rows = read_flips(store.connection, candidate, "old", "prompt", "exact_match")
        rows = [row for row in rows if (row["difference"] < 0) == (change == "worse")]
        return [
            [row[key] for key in ("prompt_id", "difference", "candidate_answer", "baseline_answer")] for row in rows
        ]

    assert show("new", "worse") == [["p0", -1.0, "new 0.0", "old 0.0"], ["p3", -0.25, "new 3.0", "old 3.0"]]
    assert show("new", "better") == [["p1", 1.0, "new 1.0", "old 1.0"]]
    assert show("old", "worse") == []


def test_an_example_of_each_kind_of_error_is_shown(store):
    store.given_answers(
        {"error_kind": "timeout", "error_message": "late", "finished_at_s": 5.0},
        {"error_kind": "refused", "error_message": "no", "finished_at_s": None},
        {"error_kind": None, "error_message": None, "finished_at_s": 1.0},
    )
    with open_run(store.connection, "run") as run:
        section = describe_errors(run)
    shown = [(one.title.partition(":")[0], one.quotes[0].text) for one in section.blocks if isinstance(one, Sample)]
    assert shown == [("Example of refused", "no"), ("Example of timeout", "late")]


def test_groups_are_by_finish_reason_by_metadata_with_few_values_and_by_wrong_answers(store):
    given_scores(store, [1.0], [0.0], [0.0], [0.5], [0.0])
    store.connection.execute("""
        update raw.prompts set metadata_json = json_object(
            'a/b', if(source_row < 2, 'x', 'y'), 'id', source_row, 'same', 'z',
            'n', if(source_row = 4, null, source_row % 2)
        )
    """)
    store.connection.execute("update raw.completions set finish_reason = if(request_id < '2', 'stop', 'length')")
    store.connection.execute("update raw.scores set extracted = '7' where prompt_id in ('p1', 'p2')")
    keys = ("property", "value", "samples", "wrong_samples", "mean_value")
    assert [tuple(row[key] for key in keys) for row in store.read(_GROUPS, "run", 4)] == [
        ("finish reason", "length", 3, 2, pytest.approx(0.5 / 3)),
        ("finish reason", "stop", 2, 1, 0.5),
        ("a/b", "y", 3, 2, pytest.approx(0.5 / 3)),
        ("a/b", "x", 2, 1, 0.5),
        ("n", "1", 2, 1, 0.25),
        ("n", "0", 2, 1, 0.5),
        ("wrong answer", "7", 2, 2, 0.0),
    ]
    assert store.read(_GROUPS, "nothing", 4) == []
