"""find_cells, compare_entries and rank_board: which runs are compared, and which differences count."""

import json
from datetime import datetime, timedelta

import numpy as np
import pytest

from assayline.comparison.board import compare_entries, find_cells, rank_board
from assayline.comparison.queries import compare_scores

START = datetime(2026, 1, 1)


def given_run(
    store, run_id, model="a", values=(1, 0, 1, 1, 1, 0), day=0, *, prompts="p", scorer="exact_match",
    arguments="{}", sampling=None, answered=None, **columns,
):  # fmt: skip
    """A run with one score per prompt, and as many answers as scores unless `answered` says otherwise."""
    spec = {"sampling": sampling or {}, **columns.pop("spec", {})}
    keys = [{"run_id": run_id, "prompt_id": f"{prompts}{i}"} for i in range(len(values))]
    store.given(
        "runs",
        {
            "run_id": run_id, "model": model, "model_id": f"digest of {model}", "spec_json": json.dumps(spec),
            "started_at": START + timedelta(days=day), "expected_requests": len(values), **columns,
        },
    )  # fmt: skip
    store.given("prompts", *keys)
    store.given("completions", *({"run_id": run_id, "request_id": key["prompt_id"]} for key in keys[:answered]))
    if scorer is None:
        return
    store.given("scorers", {"run_id": run_id, "scorer": scorer, "arguments_json": arguments})
    store.given(
        "scores",
        *({**key, "scorer": scorer, "value": float(value)} for key, value in zip(keys, values, strict=True)),
    )


def board(store, *names):
    """(task, model, run, obstacle) of each cell."""
    store.measure()
    rows = find_cells(store.connection, names)
    return [(row["task"], row["model"], row["run_id"], row["obstacle"]) for row in rows]


def entries(task_of):
    return [{"task": task, "run_id": run, "scorer": "exact_match"} for run, task in task_of.items()]


def test_the_newest_completed_run_of_each_model_and_spec_counts(store):
    given_run(store, "old", "a", day=1)
    given_run(store, "new", "a", day=2)
    given_run(store, "broken", "a", day=3, state="failed")
    given_run(store, "b", "b")
    given_run(store, "running", "b", day=9, state="running")
    given_run(store, "part of a benchmark", "c", benchmark_id="sweep")
    assert board(store) == [("set", "a", "new", None), ("set", "b", "b", None)]
    assert board(store, "sweep") == [("set", "c", "part of a benchmark", None)]
    assert board(store, "old", "b") == [("set", "a", "old", None), ("set", "b", "b", None)]
    assert board(store, "set") == board(store, "spec") == board(store)
    assert board(store, "nobody") == []


def test_find_cells_takes_the_newest_comparable_run_with_the_most_prompts(store):
    """A suite's runs, with other sampling and a part of the prompts, are newer and do not take the place of nights."""
    for day, model in enumerate("ab"):
        given_run(store, f"night {model}", model, day=day, config_id=f"night {model}")
        hot = {"sampling": {"temperature": 1.5}, "config_id": f"hot {model}", "purpose": "suite"}
        given_run(store, f"hot {model}", model, values=[1, 0], day=day + 5, **hot)
    given_run(store, "b alone", "b", day=9, sampling={"max_tokens": 9}, config_id="other")
    assert board(store) == [("set", "a", "night a", None), ("set", "b", "night b", None)]
    given_run(store, "a too", "a", day=10, sampling={"max_tokens": 9}, config_id="other a")
    assert board(store) == [("set", "a", "a too", None), ("set", "b", "b alone", None)]


def test_find_cells_names_models_of_equal_content_once(store):
    given_run(store, "one", "models/a", model_id="same")
    given_run(store, "two", "/srv/models/a", model_id="same", day=1)
    given_run(store, "other", "b")
    assert board(store) == [("set", "/srv/models/a", "two", None), ("set", "b", "other", None)]


def test_score_interval_and_errors_are_those_of_the_run(store):
    given_run(store, "x", "a", values=[1, 0, 0.5, 1, 1, 1])
    store.given("completions", {"run_id": "x", "request_id": "p5", "error_kind": "too_long"})
    store.measure()
    (row,) = find_cells(store.connection, [])
    (known,) = store.rows("accuracy", "mean", "mean_low", "mean_high", "prompts", "samples", run_id="x")
    assert {key: row[key] for key in known} == known
    assert (row["error_requests"], row["scorer"], row["name"]) == (1, "exact_match", "spec")


OTHER_SCORER = "it was scored by another scorer, or by another version of it: `assayline score --stale` scores again"


def test_find_cells_shows_incomparable_runs_with_the_reason(store):
    for number, model in enumerate("abc"):
        given_run(store, f"run-{model}", model, day=number)
    given_run(store, "other prompts", "d", prompts="q")
    given_run(store, "other scorer", "e", arguments='{"ignore_case": true}')
    given_run(store, "before the scorer changed", "j")
    store.connection.execute("update scorers set definition = 'before' where run_id = 'before the scorer changed'")
    given_run(store, "other settings", "f", sampling={"temperature": 1})
    given_run(store, "half", "g", answered=3)
    given_run(store, "failed", "h", state="failed")
    given_run(store, "unscored", "i", scorer=None)
    found = board(store)
    assert {task for task, *_ in found} == {"set"}
    assert {model: obstacle for _, model, _, obstacle in found} == {
        "a": None,
        "b": None,
        "c": None,
        "d": "it was asked other prompts",
        "e": OTHER_SCORER,
        "j": OTHER_SCORER,
        "f": "it was asked with other settings",
        "g": "3 of its 6 requests have no answer",
        "h": "it is failed, not completed",
        "i": "it has no scores",
    }
    references = {row["reference_run_id"] for row in find_cells(store.connection, [])}
    assert references == {"run-c"}, "the newest that is compared"


def test_find_cells_task_ignores_harness_results_and_engine_feed(store):
    given_run(store, "x", "a", arguments='{"metric": "acc", "harness": {"task": 0.5}}')
    given_run(store, "y", "b", arguments='{"metric": "acc"}', spec={"engine": {"max_concurrency": 4, "args": {}}})
    assert [obstacle for *_, obstacle in board(store)] == [None, None]


def test_ways_of_asking_that_two_models_share_are_tasks_of_their_own(store):
    for number, model in enumerate("abc"):
        given_run(store, f"short-{model}", model, day=number, name="short")
    for model in "ab":
        given_run(store, f"long-{model}", model, day=9, name="long", prompts="q")
    given_run(store, "alone", "d", name="alone", prompts="r")
    given_run(store, "elsewhere", "a", prompt_set="another")
    assert sorted(board(store)) == [
        ("another", "a", "elsewhere", None),
        ("set", "a", "short-a", None),
        ("set", "b", "short-b", None),
        ("set", "c", "short-c", None),
        ("set", "d", "alone", "it was asked other prompts"),
        ("set (2)", "a", "long-a", None),
        ("set (2)", "b", "long-b", None),
    ]


def test_models_are_told_apart_by_types_of_numbers_and_by_content(store):
    given_run(store, "x", "a")
    given_run(store, "y", "a", name="fp8", spec={"engine": {"args": {"quantization": "fp8", "dtype": "bfloat16"}}})
    given_run(store, "z", "b", name="one", model_id="0123456789")
    given_run(store, "w", "b", name="other", model_id="abcdefghij")
    assert [model for _, model, *_ in board(store)] == [
        "a",
        "a, quantization fp8, dtype bfloat16",
        "b @01234567",
        "b @abcdefgh",
    ]


def test_compare_entries_is_compare_scores_adjusted_for_all_of_the_board(store):
    """Proportions, shares, means of repeats and passages; Holm's step-down over all pairs is that of statsmodels."""
    from statsmodels.stats.multitest import multipletests

    dice, task_of = np.random.default_rng(4), {}
    for task, models in (("one", "abcd"), ("two", "efg"), ("repeats", "ab"), ("passages", "ab")):
        for number, model in enumerate(models):
            values = dice.random(40) < 0.9 - 0.2 * number
            if task == "two":
                values = np.clip(dice.random(40) + 0.1 * number, 0, 1)
            run = f"{task}-{model}"
            task_of[run] = task
            given_run(store, run, model, values, prompts=task, name=task)
            if task == "repeats":
                again = ({"prompt_id": f"{task}{i}", "repeat_index": 1, "value": dice.random()} for i in range(40))
                store.given("scores", *again, run_id=run)
    spec = """{"prompts": {"columns": {"cluster": "passage"}}}"""
    store.connection.execute("update raw.runs set spec_json = ? where name = 'passages'", [spec])
    passage = "json_object('passage', floor(cast(regexp_extract(prompt_id, '[0-9]+') as integer) ** 0.75))"
    store.connection.execute(f"update raw.prompts set metadata_json = {passage} where prompt_id like 'passages%'")
    rows = compare_entries(store.connection, entries(task_of))
    assert len(rows) == 6 + 3 + 1 + 1
    known = [compare_scores(store.connection, *row.sides)["exact_match"] for row in rows]
    names = ("difference", "standard_error", "low", "high", "p_value", "better_prompts", "worse_prompts", "prompts")
    for row, one in zip(rows, known, strict=True):
        assert [row.found.pairs[name] for name in names] == pytest.approx([one.pairs[name] for name in names]), row.task
    adjusted = multipletests([one.p_value for one in known], method="holm")[1]
    assert [row.found.p_value for row in rows] == pytest.approx(list(adjusted))
    sides = ["better" if row.found.difference > 0 else "worse" for row in rows]
    expected = ["unclear" if p > 0.05 else side for p, side in zip(adjusted, sides, strict=True)]
    assert [row.verdict for row in rows] == expected and {"better", "unclear"} <= set(expected)


def test_ranks_are_as_wide_as_what_cannot_be_told_apart(store):
    for task, right in (("one", {"a": 96, "b": 94, "c": 60, "d": 30}), ("two", {"e": 60, "f": 30})):
        for model, count in right.items():
            given_run(store, model, model, [i < count for i in range(100)], name=task, prompts=task)
    given_run(store, "alone", "g", prompt_set="another")
    cells, _ = rank_board(store.connection)
    found = {row["run_id"]: (row["best_rank"], row["worst_rank"], row["is_winner"]) for row in cells}
    assert found == {
        "a": (1, 2, False), "b": (1, 2, False), "c": (3, 3, False), "d": (4, 4, False),
        "e": (1, 1, True), "f": (2, 2, False), "alone": (None, None, None),
    }  # fmt: skip


def test_compare_entries_calls_nothing_for_equal_answers_few_prompts_and_no_shared_prompt(store):
    for run, model in (("x", "a"), ("y", "b")):
        given_run(store, run, model)
        given_run(store, f"few-{run}", model, values=[1.0 * (run == "x")] * 4, name="few")
        given_run(store, f"far-{run}", model, prompts=run, name="far")
    task_of = {"x": "same", "y": "same", "few-x": "few", "few-y": "few", "far-x": "far", "far-y": "far"}
    rows = compare_entries(store.connection, entries(task_of))
    assert {row.task: (row.found.p_value, row.verdict) for row in rows} == {
        "same": (1.0, "unclear"),
        "few": (None, "too_few"),
        "far": (None, "too_few"),
    }
    assert compare_entries(store.connection, entries({"x": "alone"})) == []


def test_compare_entries_counts_unequal_clusters_by_their_effective_number(store):
    """One passage of 100 questions and 20 of 5 are four clusters, too few for a test; 40 of two are 40."""
    for name, sizes in (("uneven", [100, *[5] * 20]), ("even", [2] * 40)):
        passages = np.repeat(np.arange(len(sizes)), sizes)
        for model, right in (("a", 0.9), ("b", 0.3)):
            given_run(store, f"{name}-{model}", model, np.arange(len(passages)) % 10 < 10 * right, prompts=name)
        spec = """{"prompts": {"columns": {"cluster": "passage"}}}"""
        store.connection.execute(f"update raw.runs set spec_json = ? where run_id like '{name}%'", [spec])
        for i, passage in enumerate(passages):
            store.connection.execute(
                "update raw.prompts set metadata_json = json_object('passage', ?) where prompt_id = ?",
                [int(passage), f"{name}{i}"],
            )
    rows = compare_entries(store.connection, entries({f"{n}-{m}": n for n in ("uneven", "even") for m in "ab"}))
    assert {row.task: row.verdict for row in rows} == {"uneven": "too_few", "even": "better"}
