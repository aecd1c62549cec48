"""show_samples, show_flips, show_errors: which few rows of a run a reader is shown."""

import pytest


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


def show(store, call, *columns):
    return store.connection.execute(f"select {', '.join(columns)} from {call}").fetchall()


@pytest.mark.parametrize(
    ("direction", "prompts", "expected"),
    [
        (1, 5, [("p1", 0.0, 0.0, "run 1.0"), ("p2", 0.5, 0.0, "run 2.1")]),
        (-1, 5, [("p0", 1.0, 1.0, "run 0.0"), ("p3", 1.0, 1.0, "run 3.0"), ("p2", 0.5, 1.0, "run 2.0")]),
        (1, 1, [("p1", 0.0, 0.0, "run 1.0")]),
    ],
    ids=["worst first", "best first", "no more than asked for"],
)
def test_samples_are_those_that_go_furthest(store, direction, prompts, expected):
    given_scores(store, [1.0], [0.0], [1.0, 0.0], [1.0])
    call = f"show_samples('run', {direction}, {prompts})"
    assert show(store, call, "prompt_id", "mean_value", "value", "answer") == expected


def test_samples_are_of_one_run_and_of_its_first_scorer(store):
    given_scores(store, [0.0], [1.0])
    given_scores(store, [0.0], [0.0], run_id="other")
    store.given("scorers", {"scorer": "second", "ordinal": 1})
    store.given("scores", {"scorer": "second", "prompt_id": "p1", "value": 0.0})
    assert show(store, "show_samples('run', 1, 9)", "scorer", "prompt_id", "rendered", "source_row") == [
        ("exact_match", "p0", "prompt 0", 0)
    ]


def test_flips_are_of_both_directions_with_an_answer_of_each_run(store):
    given_scores(store, [1.0], [0.0], [1.0], [0.5, 1.0], run_id="old")
    given_scores(store, [0.0], [1.0], [1.0], [0.5, 0.5], run_id="new")
    columns = ("prompt_id", "difference", "candidate_answer", "baseline_answer")
    worse = [("p0", -1.0, "new 0.0", "old 0.0"), ("p3", -0.25, "new 3.0", "old 3.0")]
    assert show(store, "show_flips('new', 'old', 1, 9)", *columns) == worse
    assert show(store, "show_flips('new', 'old', 1, 1)", *columns) == worse[:1]
    assert show(store, "show_flips('new', 'old', -1, 9)", *columns) == [("p1", 1.0, "new 1.0", "old 1.0")]
    assert show(store, "show_flips('new', 'new', 1, 9)", *columns) == []


def test_of_each_kind_of_error_the_first_is_shown(store):
    store.given_answers(
        {"error_kind": "timeout", "error_message": "late", "finished_at_s": 5.0},
        {"error_kind": "timeout", "error_message": "first", "finished_at_s": 3.0},
        {"error_kind": "refused", "error_message": "no", "finished_at_s": None},
        {"error_kind": None, "error_message": None, "finished_at_s": 1.0},
    )
    columns = ("error_kind", "error_message", "request_id")
    assert show(store, "show_errors('run', 9)", *columns) == [("refused", "no", "2"), ("timeout", "first", "1")]
    assert show(store, "show_errors('run', 1)", *columns) == [("refused", "no", "2")]
    assert show(store, "show_errors('other', 9)", *columns) == []


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
    assert show(store, "show_groups('run', 4)", "property", "value", "samples", "wrong_samples", "mean_value") == [
        ("finish reason", "length", 3, 2, pytest.approx(0.5 / 3)),
        ("finish reason", "stop", 2, 1, 0.5),
        ("a/b", "y", 3, 2, pytest.approx(0.5 / 3)),
        ("a/b", "x", 2, 1, 0.5),
        ("n", "1", 2, 1, 0.25),
        ("n", "0", 2, 1, 0.5),
        ("wrong answer", "7", 2, 2, 0.0),
    ]
    assert show(store, "show_groups('nothing', 4)", "*") == []
