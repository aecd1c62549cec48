"""The verdict on two engines that read the same answers, and its words: other probabilities, never worse ones."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from assayline.errors import ComparisonError
from assayline.spec.criteria import RereadLimit
from assayline.stats.rereads import LIMIT, SMALLEST, Distance, judge_reading, read_answers
from assayline.stats.worse import LEVEL, Verdict
from assayline.store.database import Connection, Row, read_rows
from assayline.store.measure import read_reading
from assayline.words import count, show_range, show_value

NAME = "probabilities"


def judge_reread(
    connection: Connection, run_id: str, reference: str, max_kl: float | None = None, level: float = LEVEL
) -> dict[str, Any]:
    """Judge a reading of the answers of `reference`, against its engine's own readings; return the fields of a Check.

    Raises ComparisonError if no answer was read by both.
    """
    rows = read_reading(connection, run_id)
    if (reading := read_answers(rows)) is None:
        raise ComparisonError(
            f"Run {run_id} has no answer that both engines have read. hint: look at its errors: `assayline view "
            f"{run_id}`."
        )
    verdict, p_value, needed = judge_reading(reading, max_kl, level)
    return {
        "check": NAME,
        "verdict": verdict,
        "words": describe_reading(reading, rows, reference, verdict, max_kl, needed),
        "candidate": reading.kl.value,
        "baseline": reading.floor,
        "limit": LIMIT * max(reading.floor, SMALLEST) if max_kl is None else max_kl,
        "unit": "nats/token",
        "p_value": p_value,
    }


NEWEST = """
    select
        readings.run_id,
        readings.spec_json ->> '$.prompts.source.reads[0]' as own_run_id,
        readings.spec_json ->> '$.prompts.source.reads[1]' as again_run_id
    from runs as readings
    join run_conditions as conditions on conditions.run_id = readings.run_id
    join runs as candidates on candidates.run_id = $1
    join run_conditions as own on own.run_id = $1
    where readings.purpose = 'reread' and readings.state = 'completed'
        and (readings.spec_json ->> '$.prompts.source.run') = $2
        and json_array_length(readings.spec_json -> '$.prompts.source.reads') = 2
        and readings.model_id = candidates.model_id and readings.machine = candidates.machine
        and (readings.spec_json -> '$.engine.args') = (candidates.spec_json -> '$.engine.args')
        and conditions.vllm_version is not distinct from own.vllm_version
    order by readings.started_at desc
    limit 1
"""
"""The newest reading of a baseline's answers by the engine of a run: its model, arguments, machine and vLLM. Next to it
are the readings by the baseline's engine."""


def judge_stored_reading(
    connection: Connection, candidate: str, baseline: str, limit: RereadLimit | None, level: float
) -> list[dict[str, Any]]:
    """Judge the newest reading of the baseline's answers by the engine of a run, if the gate has a limit for it."""
    if limit is None:
        return []
    rows = read_rows(connection, NEWEST, candidate, baseline)
    if rows:
        return [judge_reread(connection, rows[0]["run_id"], baseline, limit.max_kl, level)]
    hint = f"hint: `assayline reread {baseline} SPEC` with the run's spec, or a night, reads them"
    words = f"The run's engine has not read the answers of {baseline}. {hint}."
    return [{"check": NAME, "verdict": "inconclusive", "words": words, "limit": limit.max_kl, "unit": "nats/token"}]


def describe_reading(
    reading: Distance,
    rows: Sequence[Row],
    reference: str,
    verdict: Verdict,
    max_kl: float | None,
    needed: int | None,
) -> str:
    """Say what was found, with its numbers, and how it was judged."""
    ratio, least, most = reading.ratio
    found = "Whether the engine gives other probabilities than that of {} is not shown"
    if least > 1:
        found = "The engine gives other probabilities than that of {}"
    elif verdict == "pass":
        found = "The engine is not told apart from that of {}"
    ends = [show_range(show_value(low), show_value(high)) for low, high in (reading.ends, (least, most))]
    floor = show_value(reading.floor) + (f", taken as {SMALLEST:g}" if reading.floor < SMALLEST else "")
    limit = f"{LIMIT:g} times that" if max_kl is None else f"{max_kl:g} nats a token"
    judged = {"fail": f"It is shown beyond the limit of {limit}.", "pass": f"It is shown within the limit of {limit}."}
    more = "More than 100,000 prompts" if needed is None else f"About {needed:,} prompts"
    words = [
        f"{found.format(reference)}: {show_value(reading.kl.value)} nats a token (95% CI {ends[0]}), typically "
        f"{show_value(ratio)} times ({ends[1]}) what that engine differs from itself ({floor}), over "
        f"{count(reading.prompts, 'prompt')}.",
        _say_choices(rows),
        judged.get(verdict, f"It is shown neither beyond the limit of {limit} nor within it. {more} would decide."),
    ]
    return " ".join(words + ["It does not say which engine is better: accuracy does."] * (least > 1))


def _say_choices(rows: Sequence[Row]) -> str:
    """Say how many tokens and answers would be others."""
    tokens, others = sum(row["tokens"] for row in rows), sum(row["other_tokens"] for row in rows)
    parted = [row["first_other"] for row in rows if row["first_other"] is not None]
    words = f"{others:,} of {count(tokens, 'token')} would have been chosen otherwise"
    if not parted:
        return f"{words}."
    return f"{words}; {len(parted)} of {count(len(rows), 'answer')} part, half of them by token {median(parted):g}."
