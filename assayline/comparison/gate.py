"""The gate: whether a run is worse than its baseline beyond the limits.

Accuracy is compared by prompt, speed over repeats of both configurations, both with the macros of
`sql/models/30_comparison/`. A limit passes if the data show the run within it, fails if they show the run beyond it,
and is inconclusive otherwise (`assayline.stats.worse`). Runs that cannot be compared at all are an error.

A nightly run is one of many looks at the same baseline. Its comparisons fail only on the evidence that keeps false
failures of each limit to 5% of periods of `NIGHTS` nights: p is at most 0.05 / NIGHTS towards worse. A night that
one comparison would fail is suspect: somebody should look. Limits on speed that lack repeats wait for the next nights.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from assayline.comparison.baselines import check_run, resolve_baseline
from assayline.comparison.own_history import judge_own_history, list_nights, say_named, say_not_on
from assayline.comparison.queries import (
    Side,
    choose_pairing,
    choose_repeats,
    compare_scores,
    compare_speed,
    explain_other_scorer,
    find_obstacle,
    list_comparable,
    list_pinned,
    list_worse,
    read_overlaps,
    read_side,
    say_pairing,
    say_reach,
)
from assayline.comparison.reread import judge_stored_reading
from assayline.comparison.totals import is_imported, is_stated, limit_stated
from assayline.errors import AssaylineError, ComparisonError, SpecError
from assayline.spec.criteria import GateSpec
from assayline.spec.file import override_spec, parse_stored
from assayline.stats.nights import FEWEST_NIGHTS as FEWEST_PAST
from assayline.stats.repeats import FEWEST, FEWEST_NIGHTS
from assayline.stats.worse import (
    LEVEL,
    OPEN,
    ROUNDING,
    Comparison,
    Verdict,
    find_gravest,
    find_level,
)
from assayline.store.database import Connection
from assayline.store.manifest import ENDED_WELL
from assayline.words import SPACE, count, name_metric, show_metric, show_points, show_range, show_share, show_size


@dataclass(frozen=True, slots=True)
class Check:
    """One limit with its verdict."""

    check: str
    verdict: Verdict
    words: str
    """The finding with its numbers."""
    candidate: float | None = None
    baseline: float | None = None
    limit: float | None = None
    unit: str = ""
    p_value: float | None = None
    """Two-sided p of a run that is exactly at the limit, 1 if it is estimated within it; Holm-adjusted over the limits
    on speed. None without a test."""
    is_worse: bool = False
    """Whether the run is worse by more than chance, whatever the limit."""
    compared: Comparison | None = None
    prompts: Sequence[Mapping[str, Any]] = ()
    """Prompts that it names, as rows of `verdict_prompt`."""

    def __post_init__(self) -> None:
        """Write words with plain spaces, for programs that search them."""
        object.__setattr__(self, "words", self.words.replace(SPACE, " "))


@dataclass(frozen=True, slots=True)
class GateReport:
    """The verdict on a run against a baseline."""

    candidate: str
    baseline: str
    checks: list[Check] = field(default_factory=list)
    limits: dict[str, Any] = field(default_factory=dict)
    """The fields of the gate."""

    @property
    def failed(self) -> list[Check]:
        """The limits that fail."""
        return [check for check in self.checks if check.verdict == "fail"]

    @property
    def verdict(self) -> Verdict:
        """The verdict of all limits: the gravest of fail, suspect and inconclusive, else pass."""
        return find_gravest(check.verdict for check in self.checks)

    @property
    def headline(self) -> str:
        """Summary of the verdict."""
        return self.tell(f"Run {self.candidate}", self.baseline)

    def tell(self, run: str, baseline: str) -> str:
        """Summarize the verdict, with these names of both runs."""
        said = {
            "fail": f"fails its limits against {baseline}: {self.name_limits('fail')}.",
            "suspect": f"fails no limit of a night against {baseline}, but one comparison alone would fail.",
            "inconclusive": f"fails no limit against {baseline}.",
            "pass": f"is within its limits against {baseline}.",
        }[self.verdict]
        worse = [
            name_metric(one.check) for one in self.checks if one.is_worse and one.verdict not in ("fail", "suspect")
        ]
        rest = [f"Worse by more than chance: {'; '.join(worse)}."] if worse else []
        rest += [f"{named}: {limits}." for verdict, named in OPEN.items() if (limits := self.name_limits(verdict))]
        return " ".join([f"{run} {said}", *rest])

    def name_limits(self, verdict: str) -> str:
        """Name the limits with this verdict; empty without one."""
        return "; ".join(name_metric(check.check) for check in self.checks if check.verdict == verdict)

    @property
    def sentence(self) -> str:
        """The headline, and the finding for each limit that fails or is suspect."""
        found = [check.words for check in self.checks if check.verdict in ("fail", "suspect")]
        again = (
            f"hint: `assayline view {self.candidate} {self.baseline}` shows what changed; the next night confirms it."
        )
        return " ".join([self.headline, *found, *([again] if self.verdict == "suspect" else [])])


ANOTHER_SESSION = "The baseline is of another session; `assayline gate --remeasure` measures both in one."
IMPORTED_SESSION = "The baseline is of another session."


def judge_run(
    connection: Connection,
    run_id: str,
    baseline: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    nights: int = 1,
) -> GateReport:
    """Judge a run against a named baseline, or the one in its spec. `overrides` replace fields of its spec's gate.

    `nights`: how many comparisons with the baseline share the risk of a false failure.

    Raises SpecError for an unknown run, baseline or field, and the errors of `judge_run_against`.
    """
    return judge_run_against(connection, run_id, *find_limits(connection, run_id, baseline, overrides), nights)


def find_limits(
    connection: Connection, run_id: str, baseline: str | None, overrides: Mapping[str, Any] | None
) -> tuple[str, GateSpec]:
    """Return the id of the baseline of a run, and its limits; see `judge_run`."""
    check_run(connection, run_id)
    side = read_side(connection, run_id)
    stored = side.spec_json
    own = json.loads(stored)
    if own.get("imported"):  # of a spec it has the gate alone
        prompts = {"source": {"kind": "inline", "rows": [{}]}}
        stored = json.dumps({"model": own["model"], "prompts": prompts, "gate": own.get("gate", {})})
    spec = parse_stored(stored, f"the spec of run {run_id}")
    fields = {f"gate.{name.removeprefix('gate.')}": value for name, value in (overrides or {}).items()}
    limits = override_spec(spec, fields, origin="the gate").gate
    name = baseline or limits.baseline
    if name is None:
        raise SpecError(
            f"Run {run_id} has no baseline. hint: pass --baseline NAME, or set gate.baseline in its spec; "
            "`assayline list baselines` lists the names."
        )
    return resolve_baseline(connection, name), limits


def judge_run_against(
    connection: Connection, candidate: str, baseline: str, limits: GateSpec, nights: int = 1
) -> GateReport:
    """Judge a run against another. Raises SpecError for an unknown run, ComparisonError for incomparable runs."""
    if candidate == baseline:
        raise ComparisonError(f"Run {candidate} is its own baseline. hint: pass another baseline, or a newer run.")
    new, old = read_side(connection, candidate), read_side(connection, baseline)
    _check_ended(new, old)
    checks = [*_check_shares(new, old, limits)]
    if not is_stated(new.spec_json, old.spec_json):
        overlaps = read_overlaps(connection, candidate, baseline, limits.min_overlap)
        pairing = choose_pairing(overlaps)
        ways = ", ".join(f"by {name} {row['overlap_share'] or 0:.4g}" for name, row in overlaps.items())
        _check_overlap(overlaps[pairing], new, old, limits.min_overlap, ways=ways)
        pinned = list_pinned(choose_repeats(connection, candidate, baseline, for_accuracy=True), baseline)
        checks += _check_accuracy(connection, new, old, limits, overlaps[pairing], pinned, nights)
    repeats = choose_repeats(connection, candidate, baseline)
    checks += _check_speed(connection, new, old, limits, repeats, nights)
    found = judge_stored_reading(connection, candidate, baseline, limits.reread, find_level(nights))
    checks += [mark_suspect(Check(**one), LEVEL) for one in found]
    return GateReport(candidate, baseline, checks, limits.model_dump(mode="json"))


def _check_ended(new: Side, old: Side) -> None:
    for side in (new, old):
        if side.state not in ENDED_WELL and is_imported(side.spec_json):
            raise ComparisonError(
                f"Run {side.run_id} is {side.state}: its imported file is partial. hint: import a complete result."
            )
    if new.state not in ENDED_WELL:
        hint = "wait until it finishes" if new.state == "running" else "resume it, or judge another run"
        raise ComparisonError(f"Run {new.run_id} is {new.state}, not completed. hint: {hint}.")
    if old.state == "running":
        raise ComparisonError(
            f"The baseline {old.run_id} is still running. hint: wait until it finishes, or pin a completed run."
        )


def _check_overlap(
    overlap: Mapping[str, Any], new: Side, old: Side, least: float, what: str = "prompts", ways: str = ""
) -> None:
    share = overlap["overlap_share"]
    if share is None or share < least - ROUNDING:
        raise ComparisonError(
            f"Runs {new.run_id} and {old.run_id} have different {what}: {overlap['prompts']} in both, "
            f"{overlap['only_candidate']} only in the first and {overlap['only_baseline']} only in the second, an "
            f"overlap of {share or 0:.1%}; gate.min_overlap is {least * 100:.3g}%. hint: compare runs of one prompt "
            "set, or lower the limit to compare the shared prompts"
            + (f" (share of rows that pair: {ways})." if ways else ".")
        )


def _check_shares(new: Side, old: Side, limits: GateSpec) -> Iterator[Check]:
    """Judge the share of errors, and those of answers cut off by max_tokens and of accepted drafts if limited."""
    errors = (new.error_share or 0.0, old.error_share or 0.0, limits.max_error_share)
    truncated = (new.truncated_share or 0.0, old.truncated_share or 0.0, limits.max_truncated_share)
    named = (("errors", "Errors", errors), ("truncated", "Answers cut off by max_tokens", truncated))
    for name, what, (share, before, limit) in named:
        if limit is not None:
            words = (
                f"{what} are {show_share(share)} of the answers, vs {show_share(before)} in the baseline; the limit is "
                f"{show_share(limit)}."
            )
            yield Check(name, "fail" if share > limit + ROUNDING else "pass", words, share, before, limit, "share")
    if limits.min_draft_acceptance is not None:
        yield _check_drafts(new, old, limits.min_draft_acceptance)


def _check_drafts(new: Side, old: Side, least: float) -> Check:
    """Judge the share of accepted draft tokens. A run that reports none fails."""
    share, before = new.draft_acceptance, old.draft_acceptance
    was = "" if before is None else f", vs {show_share(before)} in the baseline"
    words = f"{show_share(share)} of the draft tokens were accepted{was}; the limit is {show_share(least)}."
    if share is None:
        words = f"The run has no counts of draft tokens, and at least {show_share(least)} of them must be accepted."
    is_kept = share is not None and share >= least - ROUNDING
    return Check("draft acceptance", "pass" if is_kept else "fail", words, share, before, least, "share")


def _check_accuracy(
    connection: Connection,
    new: Side,
    old: Side,
    limits: GateSpec,
    overlap: dict[str, Any],
    pinned: Sequence[str],
    nights: int,
) -> Iterator[Check]:
    """Compare with the mean over the pinned runs by prompt: the baseline and its repeats."""
    pairing = overlap["pairing"]
    rows = compare_scores(connection, new.run_id, old.run_id, pairing, limit=limits.max_accuracy_drop)
    if not rows and limits.scorer is None:
        yield Check("accuracy", "inconclusive", "Neither run has scores.")
        return
    scorer = limits.scorer or next((name for name in new.scorers if name in rows), "") or next(iter(rows), "")
    for side in (new, old):
        if scorer not in side.scorers:
            raise ComparisonError(
                f"Run {side.run_id} has no scores of {scorer!r}; it has {', '.join(side.scorers) or 'none'}. hint: "
                f"set gate.scorer to one that both have, or add it: `assayline score {side.run_id} --scorer …`."
            )
    if scorer not in rows:
        yield Check(f"accuracy, {scorer}", "inconclusive", f"Neither run has a score of {scorer}: no targets.")
        return
    row = rows[scorer].pairs
    if row["same_scorer"] is False:
        raise ComparisonError(explain_other_scorer(connection, scorer, new.run_id, old.run_id))
    _check_overlap(row, new, old, limits.min_overlap, f"prompts with a score of {scorer}")
    averaged = list_comparable(connection, old.run_id, pinned, scorer)
    if len(averaged) > 1:
        rows = compare_scores(connection, new.run_id, old.run_id, pairing, averaged, limit=limits.max_accuracy_drop)
        row = rows[scorer].pairs
    said = say_pairing(pairing, json.loads(new.spec_json), json.loads(old.spec_json))
    past = list_nights(connection, new.run_id, old.run_id, scorer)
    tests, runs = 2 if len(past) >= FEWEST_PAST else 1, max(1, len(averaged))
    tasks: dict[str, str | None] = json.loads(new.tasks_json or "{}") if scorer == new.scorers[0] else {}
    halves = 2 if tasks else 1  # all tasks together, and each of them

    def judge(name: str, parts: int) -> Check:
        check = judge_scores(rows[name], said, runs, nights=nights, tests=tests, parts=parts)
        check = mark_suspect(check, find_level(1, tests))
        if nights == 1 or check.verdict not in ("fail", "suspect"):
            return check
        worse = list_worse(connection, new.run_id, old.run_id, pairing, averaged, name)
        return replace(check, words=check.words + say_named("Worse", worse))

    check = judge(scorer, halves)
    others = [name for name in new.scorers if name in rows and name != scorer]
    if others and not tasks:
        check = replace(check, words=f"{check.words} Not judged: {', '.join(others)}.")
    if tests == 1 and nights > 1:
        check = replace(check, words=check.words + say_not_on(past))
    shares = [show_share(side.truncated_share or 0.0) for side in (old, new)]
    if row["difference"] and shares[0] != shares[1]:
        check = replace(check, words=f"{check.words} Truncated by max_tokens: {shares[0]} → {shares[1]}.")
    yield check
    if unpaired := row["only_candidate"] + row["only_baseline"]:
        words = (
            f"{count(unpaired, 'prompt')} of {row['prompts'] + unpaired} have a score of {scorer} in one run only: "
            "accuracy leaves them out, and passes only if it would with all of them lost."
        )
        yield Check("unscored", "pass" if check.verdict == "pass" else "inconclusive", words)
    for task, name in tasks.items():
        if name not in rows or not rows[name].counts[0]:
            words = f"{task} has no scores by prompt that both runs have."
            yield Check(f"accuracy, {name or task}", "inconclusive", words)
            continue
        yield judge(name, halves * len(tasks))
    if tests == 2:
        lost = judge_own_history(connection, new.run_id, past, scorer, limits, find_level(nights, tests))
        yield mark_suspect(Check(**lost), find_level(1, tests))


def mark_suspect(check: Check, level: float) -> Check:
    """Return the limit as suspect if it is inconclusive, and one comparison alone, at this level, would fail it."""
    is_suspect = check.verdict == "inconclusive" and check.p_value is not None and check.p_value <= level
    return replace(check, verdict="suspect") if is_suspect else check


def judge_scores(
    compared: Comparison,
    pairing: str = "",
    baseline_runs: int = 1,
    *,
    nights: int = 1,
    tests: int = 1,
    parts: int = 1,
) -> Check:
    """Judge the accuracy limit by a comparison of scores.

    `pairing` describes how prompts were paired. `tests` share the level, and `parts` one of these shares: they multiply
    the p of the check.
    """
    level, row = find_level(nights, tests * parts), compared.pairs
    errors = f"; {count(row['error_pairs'], 'pair has', 'pairs have')} an error" if row["error_pairs"] else ""
    clusters = "" if row["clusters"] == row["prompts"] else f" in {count(row['clusters'], 'cluster')}"
    paired = f" ({pairing})" if pairing else ""
    averaged = f" (mean of {baseline_runs} runs)" if baseline_runs > 1 else ""
    changed = f"{row['worse_prompts']} worse, {row['better_prompts']} better{errors}"
    over = f"{row['prompts']} prompts{clusters}{paired}"
    said = say_comparison(compared, compared.detail or "", over, averaged, changed)
    who = "a nightly run" if nights > 1 else f"one of {tests * parts} tests"
    check = judge_comparison(compared, f"accuracy, {compared.detail}", said, level, who, parts)
    words = " ".join(filter(None, [check.words, say_reach(row, compared.limit, check.verdict, level)]))
    return replace(check, words=words)


def judge_comparison(
    found: Comparison, name: str, said: str, level: float, who: str = "a nightly run", parts: int = 1
) -> Check:
    """Judge a comparison against its limit, and say so after what is `said` of it. `parts` multiply the p of the check.

    `who` needs more evidence than a p of LEVEL.
    """
    verdict, p_beyond = found.judge(level), found.p_worse
    if verdict == "inconclusive" and p_beyond is not None and p_beyond <= LEVEL:
        said += f" That is not enough for {who}, which needs p ≤ {level:.2g}."
    elif p_beyond is not None:
        said += f" It is {found.say(verdict, level)}."
    p_value = None if p_beyond is None else min(1.0, p_beyond * parts)
    values = (found.value, found.baseline_value, found.limit, found.unit, p_value, found.is_worse(level), found)
    return Check(name, verdict, said, *values)


def say_comparison(found: Comparison, name: str, over: str, averaged: str = "", more: str = "") -> str:
    """Return how a metric differs from the baseline's, and the limit."""
    p_value = "" if found.p_worse is None else f"p {found.p_worse:.2g} at the limit"
    if found.method == "prompts":
        interval = "no interval: at least five independent prompts are needed"
        if found.ends:
            interval = f"95% CI {show_range(show_points(found.low), show_points(found.high))}, {p_value}"
        return (
            f"{name} went from {show_share(found.baseline_value)}{averaged} to {show_share(found.value)} over {over}, "
            f"by {show_points(found.difference)} ({'; '.join(filter(None, [interval, more]))}); the limit is a drop of "
            f"{show_size(found.limit)}."
        )
    interval = "no interval: too few sessions are known"
    if found.ends:
        interval = f"95% CI {' to '.join(map(_say_change, found.ends))}"
    new, old = (show_metric(value, found.unit) for value in (found.value, found.baseline_value))
    return (
        f"{name} is {_say_change(found.worsening)} ({interval}, medians {new} and {old} over {over}, Holm-adjusted "
        f"{p_value}{more}); the limit is {found.limit:.1%}."
    )


def _check_speed(
    connection: Connection,
    new: Side,
    old: Side,
    limits: GateSpec,
    repeats: tuple[list[str], list[str]],
    nights: int,
) -> Iterator[Check]:
    wanted = limit_stated(connection, new, old, limits)
    for worsenings in (limits.max_slowdown, limits.max_cost_increase):
        wanted.update({str(metric): limit for metric, limit in worsenings.items()})
    if not wanted:
        return
    if reason := find_obstacle(connection, new, old):
        yield Check("speed", "inconclusive", f"{', '.join(map(name_metric, wanted))} cannot be judged: {reason}.")
        return
    is_apart = nights == 1 and (new.benchmark_id is None or new.benchmark_id != old.benchmark_id)
    remark = IMPORTED_SESSION if is_imported(new.spec_json, old.spec_json) else ANOTHER_SESSION
    rows = compare_speed(connection, *repeats, wanted, nights, is_apart=is_apart)
    few = ", ".join(name_metric(metric) for metric in wanted if metric in rows and rows[metric].p_value is None)
    for metric, limit in wanted.items():
        check = mark_suspect(judge_speed(metric, limit, rows.get(metric), few, nights=nights), LEVEL)
        is_told = is_apart and check.p_value is not None
        yield replace(check, words=f"{check.words} {remark}") if is_told else check


def judge_speed(metric: str, limit: float, found: Comparison | None, few: str = "", *, nights: int = 1) -> Check:
    """Judge a speed limit by its comparison, if there is one. `few` names all metrics with few repeats."""
    name = name_metric(metric)
    if found is None:
        return Check(metric, "inconclusive", f"{name} was not measured on both sides.", limit=limit)
    new, old = found.counts
    values: dict[str, Any] = {"candidate": found.value, "baseline": found.baseline_value, "unit": found.unit}
    if found.difference is None or not found.baseline_value:
        words = f"{name} is 0 in the baseline, and a limit in percent has no meaning there."
        return Check(metric, "inconclusive", words, limit=limit, **values)
    if found.p_worse is None:
        needed, fewest = ("three", FEWEST) if nights == 1 else ("five", FEWEST_NIGHTS)
        lacks = " and of ".join(side for side, has in (("the run", new), ("the baseline", old)) if has < fewest)
        words = (
            f"{few or name}: not judged, because {needed} repeats of {lacks} are needed, and there are {new} of the "
            f"run and {old} of the baseline. hint: `assayline gate RUN_ID --remeasure` measures both."
        )
        return Check(metric, "waiting" if nights > 1 else "inconclusive", words, limit=limit, **values)
    neighbors = "" if found.correlation is None else f", correlation of nights {found.correlation:.2g}"
    said = say_comparison(found, name, f"{new} and {old} repeats", more=neighbors)
    return judge_comparison(found, metric, said, find_level(nights))


def _say_change(worsening: float) -> str:
    return f"{abs(worsening):.1%} {'better' if worsening < 0 else 'worse'}"


INCONCLUSIVE_EXIT_CODE = 13
"""Exit code of `assayline gate --detailed-exit-code` if no limit fails and one is inconclusive."""


class GateFailedError(AssaylineError):
    """A run fails a limit of its gate. `report` has all limits."""

    exit_code = 1

    def __init__(self, message: str, report: "GateReport") -> None:
        super().__init__(message)
        self.report = report


class SuspectError(GateFailedError):
    """A nightly run fails no limit, and one comparison alone would fail it."""

    exit_code = 15
