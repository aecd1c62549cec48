"""Rows of reports about judges: sources, judge_run, the judgements that are shown, and costs."""

import pytest
from judge_kit import PLACES, give_judge, give_judge_run, give_texts, vote

from assayline.report.run import judges as report
from assayline.report.run.judges import read_judges
from assayline.store.metrics import list_judging_costs

CORRECT, INCORRECT = "correct", "incorrect"


def give_totals(store, run_id, currency="EUR", **metrics):
    rows = [{"metric": metric, "value": value, "unit": currency} for metric, value in metrics.items()]
    for row in rows:
        store.connection.execute(
            "insert into raw.metric_values by name select ? as run_id, ? as metric, 'total' as statistic, "
            "? as value, ? as unit, 'test' as source",
            [run_id, row["metric"], row["value"], row["unit"]],
        )


def test_read_judges_names_the_runs_of_a_spec_and_whether_it_judges(store):
    give_judge_run(store, "judge", "judged")
    give_judge_run(store, "pairs", "judged", "other")
    store.given("runs", {"run_id": "judged"})
    give_judge(store, [vote("p0", CORRECT)])
    rows = [read_judges(store.connection, run_id) for run_id in ("judge", "pairs", "judged")]
    keys = ("source_run_id", "is_pairs", "is_judge", "model")
    assert [tuple(row[key] for key in keys) for judges in rows for row in judges.sources] == [
        ("judged", False, True, "model"),
        ("judged", True, False, "model"),
        ("other", True, False, None),
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
    keys = ("part", "run_id", "load_s", "duration_s", "cost", "currency")
    assert [tuple(row[key] for key in keys) for row in list_judging_costs(store.connection, "judged")] == [
        ("model", "judged", None, 10, 2, "EUR"),
        ("judge", "one", 3, 4, 1.5, "EUR"),
        ("judge", "pairs", 3, 4, 1.5, "EUR"),
        ("judge", "two", 3, 4, 1.5, "EUR"),
        ("judges", None, 9, 12, 4.5, "EUR"),
    ]
    store.connection.execute("update raw.metric_values set unit = 'USD' where run_id = 'two'")
    assert totals("judged")[-1] is None
    assert list_judging_costs(store.connection, "judged")[-1]["cost"] is None
    assert list_judging_costs(store.connection, "one") == []


def show(store, *judges):
    """The worst answers and the widest disagreements that a report of these judges shows."""
    rows = [{"judge_run_id": judge, "model": judge} for judge in judges]
    rubric = report._read_rubric(store.connection, "rubric", rows)
    return rubric.worst, rubric.disagreements


def test_read_judges_shows_the_lowest_verdict_on_the_worst_answers(store, monkeypatch):
    words = {"p0": (CORRECT, CORRECT), "p1": (INCORRECT, CORRECT), "p2": (INCORRECT, INCORRECT)}
    for judge, place in (("judge", 0), ("second", 1)):
        give_judge(store, [vote(item, pair[place], judge=judge) for item, pair in words.items()])
    give_texts(store, "judged", list(words))
    found, _ = show(store, "judge", "second")
    assert [(row["judged_prompt_id"], row["judge_run_id"], row["value"], row["mean_value"]) for row in found] == [
        ("p2", "judge", 0, 0),
        ("p1", "judge", 0, 0.5),
    ]
    assert found[0]["reason"] == "because" and found[0]["judgements"] == 2
    assert (found[0]["prompt"], found[0]["answer"]) == ("question p2", f"{'judged':12} answers p2")
    monkeypatch.setattr(report, "WORST", 1)
    assert len(show(store, "judge")[0]) == 1


def test_read_judges_shows_the_widest_disagreements_with_labels(store):
    marks = {"p0": ("5", "1"), "p1": ("4", "5"), "p2": ("3", "3"), "p3": ("1", None), "p4": ("1", "good")}
    give_judge(store, [vote(item, word, label) for item, (word, label) in marks.items()], scale=[1, 5])
    _, found = show(store, "judge")
    assert [(row["judged_prompt_id"], row["verdict"], row["label"]) for row in found] == [
        ("p0", "5", "1"),
        ("p1", "4", "5"),
    ]
    assert found[0]["answer"] is None, "the judged run has no answers in this database"


def test_read_judges_shows_both_answers_of_a_pair(store):
    votes = [vote("p0", "first", "b", judge="pairs", run="one", other="two", first=first) for first in "ab"]
    give_judge(store, votes, values=PLACES)
    for run in ("one", "two"):
        give_texts(store, run, ["p0"])
    worst, (row,) = show(store, "pairs")
    assert (row["first"], row["value"], row["answer"], row["other_answer"]) == (
        "a",
        1,
        f"{'one':12} answers p0",
        f"{'two':12} answers p0",
    )
    assert worst == [], "a pair has no worst answer"
