"""source_run, judge_run, show_judgements and show_judging_cost: rows of reports about judges."""

import pytest
from judge_kit import PLACES, give_judge, give_judge_run, give_texts, vote

CORRECT, INCORRECT = "correct", "incorrect"


def give_totals(store, run_id, currency="EUR", **metrics):
    rows = [{"metric": metric, "value": value, "unit": currency} for metric, value in metrics.items()]
    for row in rows:
        store.connection.execute(
            "insert into raw.metric_values by name select ? as run_id, ? as metric, 'total' as statistic, "
            "? as value, ? as unit, 'test' as source",
            [run_id, row["metric"], row["value"], row["unit"]],
        )


def test_source_run_names_the_runs_of_a_spec_and_whether_it_judges(store):
    give_judge_run(store, "judge", "judged")
    give_judge_run(store, "pairs", "judged", "other")
    store.given("runs", {"run_id": "judged"})
    give_judge(store, [vote("p0", CORRECT)])
    found = store.read("select * exclude (ordinal) from source_run order by run_id, ordinal")
    assert [tuple(row.values()) for row in found] == [
        ("judge", "judged", False, True),
        ("pairs", "judged", True, False),
        ("pairs", "other", True, False),
    ]


@pytest.mark.parametrize(
    ("name", "given", "rubric"),
    [("trial judged by helpful 1", "helpful", "helpful"), ("judged by hand 2", None, "judged by hand 2")],
)
def test_judge_run_names_the_rubric_that_its_spec_names(store, name, given, rubric):
    give_judge(store, [vote("p0", CORRECT)])
    give_judge_run(store, "judge", "judged", name=name, rubric=given)
    give_judge_run(store, "running", "judged", state="running")
    assert store.read("select run_id, judge_run_id, rubric from judge_run") == [
        {"run_id": "judged", "judge_run_id": "judge", "rubric": rubric}
    ]


def test_run_has_time_and_cost_of_its_judges_apart(store):
    store.given("runs", {"run_id": "judged"}, {"run_id": "other"})
    give_totals(store, "judged", cost=2.0, duration_s=10.0)
    for judge, *judged in (("one", "judged"), ("two", "judged"), ("pairs", "judged", "other")):
        give_judge(store, [vote("p0", CORRECT, judge=judge)])
        give_judge_run(store, judge, *judged)
        give_totals(store, judge, cost=1.5, duration_s=4.0, load_s=3.0, output_tokens=7.0)
    columns = ("duration_s", "cost", "judge_runs", "judging_s", "judging_output_tokens", "judging_cost")

    def totals(run_id):
        return tuple(
            store.connection.execute(f"select {', '.join(columns)} from run where run_id = ?", [run_id]).fetchone()
        )

    assert totals("judged") == (10, 2, 3, 12, 21, 4.5)
    assert totals("other") == (None, None, 1, 4, 7, 1.5)
    assert totals("one") == (4, 1.5, 0, None, None, None)
    parts = store.read("select part, run_id, load_s, duration_s, cost, currency from show_judging_cost('judged')")
    assert [tuple(row.values()) for row in parts] == [
        ("model", "judged", None, 10, 2, "EUR"),
        ("judge", "one", 3, 4, 1.5, "EUR"),
        ("judge", "pairs", 3, 4, 1.5, "EUR"),
        ("judge", "two", 3, 4, 1.5, "EUR"),
        ("judges", None, 9, 12, 4.5, "EUR"),
    ]
    store.connection.execute("update raw.metric_values set unit = 'USD' where run_id = 'two'")
    assert totals("judged")[-1] is None
    assert store.read("from show_judging_cost('judged')")[-1]["cost"] is None


def test_show_judgements_shows_the_lowest_verdict_on_the_worst_answers(store):
    words = {"p0": (CORRECT, CORRECT), "p1": (INCORRECT, CORRECT), "p2": (INCORRECT, INCORRECT)}
    for judge, place in (("judge", 0), ("second", 1)):
        give_judge(store, [vote(item, pair[place], judge=judge) for item, pair in words.items()])
    give_texts(store, "judged", list(words))
    found = store.read("from show_judgements(['judge', 'second'], false, 5)")
    assert [(row["prompt_id"], row["judge_run_id"], row["value"], row["mean_value"]) for row in found] == [
        ("p2", "judge", 0, 0),
        ("p1", "judge", 0, 0.5),
    ]
    assert found[0]["reason"] == "because" and found[0]["judgements"] == 2
    assert (found[0]["prompt"], found[0]["answer"]) == ("question p2", f"{'judged':12} answers p2")
    assert len(store.read("from show_judgements(['judge'], false, 1)")) == 1


def test_show_judgements_shows_the_widest_disagreements_with_labels(store):
    marks = {"p0": ("5", "1"), "p1": ("4", "5"), "p2": ("3", "3"), "p3": ("1", None), "p4": ("1", "good")}
    give_judge(store, [vote(item, word, label) for item, (word, label) in marks.items()], scale=[1, 5])
    found = store.read("from show_judgements(['judge'], true, 5)")
    assert [(row["prompt_id"], row["verdict"], row["label"]) for row in found] == [("p0", "5", "1"), ("p1", "4", "5")]
    assert found[0]["answer"] is None, "the judged run has no answers in this database"


def test_show_judgements_shows_both_answers_of_a_pair(store):
    votes = [vote("p0", "first", "b", judge="pairs", run="one", other="two", first=first) for first in "ab"]
    give_judge(store, votes, values=PLACES)
    for run in ("one", "two"):
        give_texts(store, run, ["p0"])
    (row,) = store.read("from show_judgements(['pairs'], true, 5)")
    assert (row["first"], row["value"], row["answer"], row["other_answer"]) == (
        "a",
        1,
        f"{'one':12} answers p0",
        f"{'two':12} answers p0",
    )
    assert store.read("from show_judgements(['pairs'], false, 5)") == [], "a pair has no worst answer"
