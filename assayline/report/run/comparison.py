"""Report section about the baseline: differences, and whether they exceed chance."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import takewhile

from assayline.comparison.autopsy import read_autopsies, say_autopsies, say_autopsy
from assayline.comparison.benchmarks import has_benchmark, read_noise_floors
from assayline.comparison.gate import Check, GateReport
from assayline.comparison.queries import choose_pairing, compare_scores, read_overlaps, say_pairing
from assayline.report.answers import Filters, list_messages, list_pairs, read_whole_answers
from assayline.report.compared import show_difference, show_interval, tabulate_comparisons, tabulate_limits
from assayline.report.document import Column, Sample, Section, Table, cut_quote, make_section, tabulate, warn
from assayline.report.measures import CHANGES, chart_shares
from assayline.report.run.rows import RunRows, say_answered
from assayline.spec.criteria import GateSpec
from assayline.spec.identity import list_setting_changes
from assayline.stats.pairs import describe_pairs
from assayline.stats.worse import Comparison, Verdict
from assayline.store.database import Connection, Row, read_rows
from assayline.store.manifest import ENDED_WELL
from assayline.store.metrics import ensure_repeats
from assayline.words import (
    count,
    show_change,
    show_name,
    show_note,
    show_points,
    show_ratio,
    show_share,
    show_value,
)

FLIPPED = 4
"""Maximum number of prompts shown that got worse, and of prompts that got better."""


@dataclass(frozen=True, slots=True)
class JudgedScore:
    """A scorer of two runs, compared and judged."""

    found: Comparison
    verdict: Verdict

    @property
    def scorer(self) -> str:
        return str(self.found.detail)

    @property
    def words(self) -> str:
        """The verdict in words."""
        if self.found.pairs["same_scorer"] is False:
            return "not comparable, because the scorers differ"
        if not self.found.ends:
            return "not judged, because five independent prompts are needed"
        return self.found.say(self.verdict)


@dataclass(frozen=True, slots=True)
class ComparisonRows:
    """Rows of two runs; the report's run is the candidate."""

    run: Row
    """Its row of `runs`."""
    baseline: Row
    """The baseline's."""
    pairing: str
    """How the prompts are paired; empty if by prompt."""
    environments: tuple[str, str]
    """Machine and versions of candidate and baseline."""
    gate: GateReport | None
    """The latest gate verdict on these two runs, if there is one."""
    scores: list[JudgedScore]
    metrics: list[Row]
    worse: list[Row]
    better: list[Row]
    autopsies: list[Row]
    """Answers that part and were read by both engines."""
    named: list[Row]
    """Prompts that the latest gate verdict names, with their scores on the nights before."""


def read_comparison(connection: Connection, candidate: str, baseline: str) -> ComparisonRows:
    """Read the comparison of two stored runs."""
    ensure_repeats(connection, candidate, baseline, only_benchmarks=True)
    sides = {row["run_id"]: row for row in read_rows(connection, _SIDES, candidate, baseline)}
    run, other = sides[candidate], sides[baseline]
    pairing, gate, scores = read_scores(connection, candidate, baseline, run["spec_json"])
    is_measured = has_benchmark(connection, candidate, baseline)
    flips = read_flips(connection, candidate, baseline, pairing, next(iter(run["scorers"]), None), is_measured)
    first = {scorer: scores[scorer] for scorer in run["scorers"] if scorer in scores}
    return ComparisonRows(
        run=run,
        baseline=other,
        pairing=say_pairing(pairing, *(json.loads(side["spec_json"]) for side in (run, other))),
        environments=(run["environment"], other["environment"]),
        gate=gate,
        scores=[*first.values(), *(scores[scorer] for scorer in sorted(scores.keys() - first.keys()))],
        metrics=_relate_noise(connection, candidate, baseline, is_measured),
        worse=[row for row in flips if row["difference"] < 0],
        better=[row for row in flips if row["difference"] > 0],
        autopsies=read_autopsies(connection, candidate, baseline),
        named=read_rows(connection, _NAMED, candidate, baseline),
    )


def read_scores(
    connection: Connection, candidate: str, baseline: str, spec_json: str
) -> tuple[str, GateReport | None, dict[str, JudgedScore]]:
    """Read how the prompts of two runs are paired, the gate's last verdict on them, and their scores, by scorer.

    Scores are judged by the limit of the candidate's spec, `spec_json`.
    """
    wanted = json.loads(spec_json).get("gate", {})
    overlaps = read_overlaps(connection, candidate, baseline, wanted.get("min_overlap", GateSpec().min_overlap))
    pairing = choose_pairing(overlaps)
    checks = [Check(**row) for row in read_rows(connection, _LIMITS, candidate, baseline)]
    judged = {check.check: check for check in checks}
    limit = wanted.get("max_accuracy_drop", GateSpec().max_accuracy_drop)
    found = compare_scores(connection, candidate, baseline, pairing)
    return (
        pairing,
        GateReport(candidate, baseline, checks) if checks else None,
        {scorer: _judge(one, judged.get(f"accuracy, {scorer}"), limit) for scorer, one in found.items()},
    )


def _judge(found: Comparison, judged: Check | None, limit: float) -> JudgedScore:
    """Return the verdict as a gate gives it: that of the gate if it `judged` the scorer."""
    found = describe_pairs(found.pairs, limit if judged is None or judged.limit is None else judged.limit)
    return JudgedScore(found, judged.verdict if judged else found.judge())


def _relate_noise(connection: Connection, candidate: str, baseline: str, is_measured: bool) -> list[Row]:
    """Read the metrics of two runs, with differences as multiples of the noise floor if that is known."""
    floors = read_noise_floors(connection, candidate, baseline) if is_measured else {}
    rows = read_rows(connection, _SPEEDS, candidate, baseline)
    for row in rows:
        floor, values = floors.get(row["metric"]), (row["candidate_value"], row["baseline_value"])
        row["noise_ratio"] = abs(values[0] - values[1]) / floor if floor and None not in values else None
    return rows


_SIDES = """
    select
        runs.*, environment,
        (select coalesce(list(scorer order by ordinal, scorer), []) from scorers where run_id = runs.run_id) as scorers
    from runs
    left join run_conditions using (run_id)
    where run_id in (?, ?)
"""
_LIMITS = """
    select
        limit_on as check,
        verdict,
        words,
        candidate_value as candidate,
        baseline_value as baseline,
        limit_value as limit,
        coalesce(unit, '') as unit
    from verdicts
    where run_id = ? and baseline_run_id = ?
    qualify rank() over (order by judged_at desc) = 1
    order by ordinal
"""
_NAMED = """
    select
        finding,
        chance,
        scores,
        coalesce(source_id, 'row ' || source_row, prompt_id) as prompt,
        left(messages_json ->> '$[#-1].content', 80) as question
    from (
        from verdict_prompt where run_id = $1 and baseline_run_id = $2
    )
    left join prompt using (run_id, prompt_id, occurrence)
    where judged_at = (select max(judged_at) from verdicts where run_id = $1 and baseline_run_id = $2)
    order by finding = 'flaky', chance, prompt_id
"""
_SPEEDS = """
    select
        metric,
        unit,
        new.value as candidate_value,
        old.value as baseline_value,
        new.value / nullif(old.value, 0) - 1 as change_share
    from run_metric as new
    join run_metric as old using (metric, unit)
    where new.run_id = ? and old.run_id = ? and metric <> 'accuracy'
    order by unit = 's', metric
"""
_NOISE = """
    select prompt_id, occurrence, score_flip_share
    from noise_prompt((
        select list(noise_run.run_id)
        from noise_run
        join run_conditions using (config_id, environment)
        where run_conditions.run_id = ?
    ))
"""


def read_flips(
    connection: Connection, candidate: str, baseline: str, pairing: str, scorer: str | None, is_measured: bool = True
) -> list[Row]:
    """Read the pairs whose score changed most, those that got worse first, with the answers of both runs.

    `flip_share` is the share of pairs of equal runs whose scores of the prompt differ, of the configuration that flips
    more; None if neither was measured.
    """
    query = list_pairs(candidate, baseline, pairing, scorer, None, Filters())
    place = f"row_number() over (partition by difference > 0 order by {query.order})"
    shown = replace(query, text=f"from ({query.text}) qualify {place} <= {FLIPPED}").read_plain(connection, 1)
    noise = {
        (run_id, one["prompt_id"], one["occurrence"]): one["score_flip_share"]
        for run_id in (candidate, baseline)
        for one in (read_rows(connection, _NOISE, run_id) if shown and is_measured else ())
    }
    answers = read_whole_answers(connection, candidate, [row["request_id"] for row in shown], ["turns_said"])
    paired = [one for row in shown if (one := row["baseline_request_id"])]
    others = read_whole_answers(connection, baseline, paired, ["turns_said"])
    found = []
    for row in shown:
        ours, theirs = answers.get(row["request_id"], {}), others.get(row["baseline_request_id"], {})
        keys = [(side["run_id"], side["prompt_id"], side["occurrence"]) for side in (ours, theirs) if side]
        found.append(
            {
                **row,
                "scorer": scorer,
                "prompt": next((said for _, said in reversed(list_messages(ours))), None),
                "messages": "\n".join(f"{role}: {said}" for role, said in list_messages(ours)),
                "target": ours["target"],
                "candidate_answer": ours["text"] or ours["error_kind"],
                "baseline_answer": theirs.get("text") or theirs.get("error_kind"),
                "flip_share": max((share for key in keys if (share := noise.get(key)) is not None), default=None),
            }
        )
    return found


SPECS_APART = {
    "prompt_set": "prompt set",
    "model_id": "model",
    "template_id": "chat template",
    "assayline_version": "version of assayline",
}
"""Differences to report besides the fields of the spec."""
CONDITIONS = {
    "assayline": "version of assayline",
    "vLLM": "version of vLLM",
    "torch": "version of torch",
    "driver": "driver",
    "runner": "model runner",
    "context": "context length",
    "files": "served model",
    "prompts": "content of the prompts",
    "longest": "order of requests",
}
"""Names of conditions by the first word of their text in `run_conditions.environment`; all others are the machine."""
NAMED = (
    Column("prompt", "prompt"),
    Column("finding", "finding"),
    Column("chance", "chance", show_share),
    Column("nights, the last is the run", lambda row: "".join(map(_show_dot, row["scores"])), show_name),
    Column("question", "question", is_text=True),
)
SCORE_AGAIN = "The scorer may have changed. `assayline score RUN_ID` scores a run again with the current scorer."


SPEEDS = (*CHANGES, Column("change", "change_share", show_change), Column("noise", "noise_ratio", show_ratio))


def describe_comparison(comparison: ComparisonRows) -> Section | None:
    """Build the section: limits, changed prompts, scores and speed."""
    sure = [
        {"name": one.scorer, **{key: getattr(one.found, key) for key in ("difference", "low", "high")}}
        for one in comparison.scores
        if one.found.ends
    ]
    noisy = sum(row["noise_ratio"] is not None for row in comparison.metrics)
    autopsies = {row["request_id"]: say_autopsy(row) for row in comparison.autopsies}
    return make_section(
        "comparison",
        "Comparison with the baseline",
        introduce(comparison),
        say_autopsies(comparison.autopsies),
        warn(say_conditions(*comparison.environments)),
        tabulate_limits("Limits", comparison.gate.checks, has_words=True) if comparison.gate else None,
        chart_shares(
            "Score changes",
            "Difference of each mean score from the baseline, with its 95% interval",
            "change in percentage points",
            sure,
            {"name": "name", "value": "difference", "low": "low", "high": "high"},
            show_points,
            origin=True,
        ),
        tabulate("Prompts against their own history", NAMED, comparison.named),
        "● right, ◐ in part, ○ wrong, · no score. Chance: of a wrong answer, by the nights before."
        if comparison.named
        else None,
        (_show_flip("Got worse", row, autopsies) for row in comparison.worse),
        (_show_flip("Got better", row, autopsies) for row in comparison.better),
        tabulate_scores(comparison),
        tabulate("Speed and cost", SPEEDS, comparison.metrics),
        "Speed and cost compare one run with one run, and runs vary. `assayline gate` tests such a difference over "
        "repeats of both.",
        "Noise is the difference that two equal runs of one session exceed in at most 5% of pairs, with 95% "
        f"confidence, as `assayline benchmark` measured. By chance, {noisy * 0.05:.1g} of "
        f"{count(noisy, 'metric')} exceed it; runs of different days may differ more."
        if noisy
        else None,
    )


def tabulate_scores(comparison: ComparisonRows, *, is_judged: bool = True) -> Table:
    """Tabulate the scorers that both runs have; without rows if they share no scored prompt."""
    rows = [((one.scorer,), one.found, one.words) for one in comparison.scores if one.found.counts[0]]
    return tabulate_comparisons("Paired scores", ("scorer",), rows, is_judged=is_judged)


QUESTIONS = (Column("question", 0, show_name), Column("answer", 1), Column("next", 2, show_note))
IS_WORSE: dict[Verdict, str] = {"fail": "Yes", "suspect": "Perhaps", "inconclusive": "Not decided", "pass": "No"}
ADVICE: dict[Verdict, str] = {
    "fail": "Look at the answers that changed, and measure both runs again. If the change is wanted, pin this run.",
    "suspect": "Measure both runs again, or wait for the next night.",
    "inconclusive": "Measure both runs again, with more prompts or repeats.",
    "pass": "Nothing.",
}


def answer_questions(connection: Connection, run: RunRows, comparison: ComparisonRows) -> Section | None:
    """Build the section that says whether the run ran, whether it is worse, where, since when, and what to do."""
    run_id, baseline = run.run_id, comparison.baseline["run_id"]
    verdict = comparison.scores[0].verdict if comparison.scores else "inconclusive"
    if gate := comparison.gate:
        verdict = gate.verdict
        limits = "" if verdict == "pass" else gate.name_limits(verdict)
        more = "" if limits.startswith("accuracy") else limits and f": {limits}"
        is_worse = f"{IS_WORSE[verdict]}{more}. {say_verdict(comparison)}"
    else:
        is_worse = f"{IS_WORSE[verdict]}, by the scores: no gate has judged these runs."
    named = [f"{row['source_row']:,}" for row in comparison.worse if row["source_row"] is not None]
    worse = sum(one.found.pairs["worse_prompts"] for one in comparison.scores[:1])
    others = [f"{worse - len(named):,} more"] if worse > len(named) else []
    which = f"{'Row' if worse == 1 else 'Rows'} {' and '.join([', '.join(named), *others])} got worse."
    answers = {
        "Did it run?": (f"{run.row['state'].capitalize()}: {say_answered(run.summary)}.", f"assayline view {run_id}"),
        "Is it worse?": (is_worse, f"assayline gate {run_id} --baseline {baseline}"),
        "Which prompts?": (
            which if named else f"{worse:,} got worse." if worse else "None got worse.",
            f"assayline view {run_id} {baseline}",
        ),
        "Since when?": (_say_since(connection, run.row, verdict), f"assayline report --history {run_id}"),
        "What to do?": (ADVICE[verdict], f"assayline gate {run_id} --baseline {baseline} --remeasure"),
    }
    if verdict == "pass":
        answers["What to do?"] = ADVICE[verdict], ""
    elif run.row["purpose"] in ("import", "totals"):
        answers["What to do?"] = "Look at the answers that changed, or import more results of both.", "assayline import"
    lines = [(question, answer, command and f"`{command}`") for question, (answer, command) in answers.items()]
    return make_section("short", "Five questions", tabulate("Five questions", QUESTIONS, lines))


def _say_since(connection: Connection, run: Row, verdict: Verdict) -> str:
    nights = [row for row in read_rows(connection, "from find_history(?)", run["run_id"]) if row["verdict"]]
    until = [row for row in nights if row["started_at"] <= run["started_at"]]
    if not until:
        return "No gate has judged this history."
    alike = list(takewhile(lambda row: row["verdict"] == verdict, reversed(until)))
    if verdict in ("fail", "suspect") and alike:
        in_a_row = f", {len(alike)} judged runs in a row" if len(alike) > 1 else ""
        return f"Since {alike[-1]['started_at']:%Y-%m-%d %H:%M}{in_a_row}."
    failed = [row for row in until if row["verdict"] == "fail"]
    return f"The last run that failed began {failed[-1]['started_at']:%Y-%m-%d %H:%M}." if failed else "No run failed."


def say_conditions(ours: str, theirs: str) -> str:
    """Name the conditions that differ between two values of `run_conditions.environment`; empty if none does."""
    parts = [list(dict.fromkeys(re.split("[;,] ", one))) for one in (ours, theirs)]
    apart = [[part for part in one if part not in other] for one, other in (parts, reversed(parts))]
    names = dict.fromkeys(CONDITIONS.get(part.split(" ")[0], "machine") for one in apart for part in one)
    if not names:
        return ""
    this, other = (", ".join(one) or "as given" for one in apart)
    differ = "differs" if len(names) == 1 else "differ"
    return (
        f"The {' and the '.join(names)} {differ}, which may explain differences in speed. Run: {this}. "
        f"Baseline: {other}."
    )


def say_verdict(comparison: ComparisonRows, *, is_judged: bool = True) -> str:
    """Summarize the verdict on the first scorer, or else its change alone."""
    if not comparison.scores:
        return "Neither run has scores, so answers are not compared."
    return say_score(comparison.scores[0], comparison.pairing, is_judged=is_judged)


def say_score(one: JudgedScore, pairing: str = "", *, is_judged: bool = True) -> str:
    """Summarize the verdict on a scorer, or else its change alone."""
    row = one.found.pairs
    if not row["prompts"]:
        return (
            "The runs share no scored prompt, so answers are not compared: the prompt sets differ, or one run has "
            "no scores."
        )
    partly = "" if row["overlap_share"] == 1 else f", over the {show_share(row['overlap_share'])} of prompts in both"
    unlike = "" if row["same_scorer"] else f" {SCORE_AGAIN}"
    paired = f", {pairing}" * bool(pairing)
    span = f" ({show_interval(one.found)})" if one.found.ends else ""
    verdict = f"{one.scorer} is {one.words}:" if is_judged else f"Compared with the baseline, {one.scorer} changed by"
    changed = f"{count(row['worse_prompts'], 'prompt')} got worse and {row['better_prompts']:,} better"
    if not row["worse_prompts"] and not row["better_prompts"]:
        changed = "no prompt got worse or better"
    return f"{verdict} {show_difference(one.found)}{span}{partly}; {changed}{paired}.{unlike}"


def is_worse(comparison: ComparisonRows, scorer: str | None) -> bool:
    """Return True if the mean of `scorer` is below the baseline's, shown beyond the limit."""
    return any(one.scorer == scorer and one.verdict == "fail" for one in comparison.scores)


def introduce(comparison: ComparisonRows) -> str:
    """Name the baseline, and what differs from it in the run's settings."""
    run, baseline = comparison.run, comparison.baseline
    apart = [name for column, name in SPECS_APART.items() if run[column] != baseline[column]]
    apart += list_setting_changes(baseline["spec_json"], run["spec_json"])
    differs = f"Differences: {'; '.join(apart)}." if apart else "Model, prompts, settings and versions are the same."
    state = "" if baseline["state"] in ENDED_WELL else f", which is {baseline['state']}"
    partial = "" if run["state"] in ENDED_WELL else f"The run is {run['state']}. "
    return (
        f"{partial}The baseline is run {baseline['run_id']} of {baseline['started_at']:%Y-%m-%d %H:%M} UTC{state}. "
        f"{differs}"
    )


def _show_dot(score: float | None) -> str:
    return "·" if score is None else "●" if score >= 1 else "○" if score <= 0 else "◐"


def _show_flip(title: str, row: Row, autopsies: Mapping[str, str]) -> Sample:
    values = f"{show_value(row['baseline_value'])} → {show_value(row['candidate_value'])}"
    quotes = [
        cut_quote("Prompt", row["messages"]),
        cut_quote("Output of the run", row["candidate_answer"]),
        cut_quote("Output of the baseline", row["baseline_answer"]),
        cut_quote("Target", row["target"]),
    ]
    facts = [(f"score by {row['scorer']}", values)]
    if autopsy := autopsies.get(row["request_id"]):
        facts.append(("first other token", autopsy))
    if row["flip_share"]:
        facts.append(("noise", f"also differs between equal runs: {show_share(row['flip_share'])}"))
    place = f"prompt {row['prompt_id'][:12]}" if row["source_row"] is None else f"row {row['source_row']:,}"
    return Sample(f"{title}: {place}", facts, quotes)
