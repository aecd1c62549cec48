"""Why greedy answers of two runs part: the probabilities that both engines give to their first different tokens.

A reading is needed (`run.reread`), of the baseline's answers by the candidate's engine or the other way round. Up to
the place where two answers part, both engines have read the same tokens.
"""

from collections.abc import Collection

from assayline.comparison.reread import NEWEST
from assayline.stats.rereads import LIMIT
from assayline.store.database import Connection, Row, read_rows
from assayline.words import count, show_value

EVEN = 2.0
"""In a tie, no engine gives one of the tokens more than this many times the probability of the other."""


def read_autopsies(connection: Connection, candidate: str, baseline: str, request_id: str | None = None) -> list[Row]:
    """Read the answers of two runs that part, or one of them; empty without a reading.

    `place` counts tokens from 1. Probabilities are named by engine and token, such as `baseline_p_candidate`: that of
    the candidate's token by the baseline's engine; None below 0.004. `nll_change`: mean change, from baseline to
    candidate, of the negative log-probability of the tokens before; None at place 1. `noise`: the variance of the
    logits' changes up to there, as a multiple of that between two readings by one engine. `is_tie`: under both engines,
    neither token is more than twice as likely as the other, and the noise is at most 3.
    """
    found: dict[str, Row] = {}
    for reader, source in ((baseline, candidate), (candidate, baseline)):
        for reading in read_rows(connection, NEWEST, reader, source):
            rows = read_rows(connection, _PARTINGS, *reading.values(), source, reader, request_id)
            found |= {row["request_id"]: _name_sides(row, is_of_baseline=source == baseline) for row in rows}
    return list(found.values())


_PARTINGS = """
    with answers as (
        select run_id, request_id, prompt_token_ids, output_token_ids
        from internal.one_request
        inner join internal.one_answer using (run_id, request_id)
        where run_id in ($4, $5) and request_id = coalesce($6, request_id) and error_kind is null
            and cast(sampling_json ->> '$.temperature' as double) = 0
    ),
    parted as (
        select
            ours.request_id,
            theirs.output_token_ids as other_ids,
            list_position(
                list_transform(list_zip(ours.output_token_ids, other_ids), lambda pair: pair[1] <> pair[2]), true
            ) as place
        from (from answers where run_id = $4) as ours
        inner join (from answers where run_id = $5) as theirs using (request_id, prompt_token_ids)
    ),
    tokens as (
        select
            request_id,
            position,
            other.run_id = $1 as is_read,
            own.logprob,
            own.top_token_ids,
            own.top_logprobs,
            other.logprob as read_logprob,
            other.top_token_ids as read_ids,
            other.top_logprobs as read_logprobs,
            list_filter(list_transform(own.top_token_ids, lambda token, rank: struct_pack(
                p := exp(own.top_logprobs[rank]),
                d := own.top_logprobs[rank] - read_logprobs[list_position(read_ids, token)]
            )), lambda one: one.d is not null) as shared,
            list_sum(list_transform(shared, lambda one: one.p * one.d ** 2))
            - list_sum(list_transform(shared, lambda one: one.p * one.d)) ** 2 as change,
            greatest(1e-6, 1 - list_sum(list_transform(own.top_logprobs, lambda one: exp(2 * one)))) as room
        from (from raw.tokens where run_id = $2) as own
        inner join (from raw.tokens where run_id in ($1, $3)) as other using (request_id, position)
    )
    select
        request_id,
        place,
        exp(max(logprob) filter (position = place - 1)) as own_p,
        exp(max(read_logprob) filter (position = place - 1)) as read_p,
        max(exp(top_logprobs[list_position(top_token_ids, other_ids[place])])) filter (position = place - 1)
            as own_p_other,
        max(exp(read_logprobs[list_position(read_ids, other_ids[place])])) filter (position = place - 1)
            as read_p_other,
        avg(logprob - read_logprob) filter (position < place - 1) as nll_change,
        coalesce(sum(change) / sum(room), 'inf') as variance,
        (select sum(change) / sum(room) from tokens where not is_read) as floor_variance
    from parted
    inner join (from tokens where is_read) using (request_id)
    where position < place
    group by request_id, place
    having count(*) = place
    order by request_id
"""
"""Answers of $4, read in run $1 by the engine of $5, and in runs $2 and $3 by their own engine, that part from those of
$5. If logits have noise of one variance, that of ln p / q under p is it × (1 − Σ p²), so their ratio estimates it.
"""
LEAST_VARIANCE = 4e-5
"""Of logits that count as equal, squared nats: a divergence of about 0.00001 nats per token."""


def _name_sides(row: Row, *, is_of_baseline: bool) -> Row:
    """Name the probabilities of a parting by engine and token, and call it. The answer read is one of the two sides."""
    own, other = ("baseline", "candidate") if is_of_baseline else ("candidate", "baseline")
    shares = {
        f"{own}_p_{own}": row["own_p"],
        f"{own}_p_{other}": row["own_p_other"],
        f"{other}_p_{own}": row["read_p"],
        f"{other}_p_{other}": row["read_p_other"],
    }
    change, floor = row["nll_change"], row["floor_variance"]
    noise = row["variance"] / max(floor or 0.0, LEAST_VARIANCE)
    odds = (row["own_p"], row["own_p_other"]), (row["read_p"], row["read_p_other"])
    is_even = all(other is not None and max(one, other) <= EVEN * min(one, other) for one, other in odds)
    return {
        "request_id": row["request_id"],
        "place": row["place"],
        **shares,
        "nll_change": change if change is None or is_of_baseline else -change,
        "noise": noise,
        "is_tie": is_even and noise <= LIMIT,
    }


def say_autopsy(row: Row) -> str:
    """Say where two answers part, and why."""
    call = "a tie broken differently" if row["is_tie"] else "the engines disagreed before"
    words = [
        f"The answers part at token {row['place']:,}: {call}.",
        f"The baseline's engine gives {_show(row, 'baseline')}; the run's engine {_show(row, 'candidate')}.",
    ]
    if row["nll_change"] is not None:
        change = show_value(row["nll_change"])
        words.append(f"The negative log-probability of the tokens before changed by {change} nats a token.")
    noise = show_value(row["noise"])
    words.append(f"Up to there, logits vary {noise} times as much as between two readings by one engine.")
    return " ".join(words)


def _show(row: Row, engine: str) -> str:
    own, other = (
        "below 0.004" if row[f"{engine}_p_{token}"] is None else f"{row[f'{engine}_p_{token}']:.3f}"
        for token in ("baseline", "candidate")
    )
    return f"the baseline's token a probability of {own}, and the run's {other}"


def say_autopsies(rows: Collection[Row]) -> str:
    """Count the partings by their call; empty without one."""
    if not rows:
        return ""
    ties = sum(row["is_tie"] for row in rows)
    called = "is a tie" if ties == 1 else "are ties"
    return (
        f"Of {count(len(rows), 'read answer')} that {'parts' if len(rows) == 1 else 'part'}, {ties:,} {called} broken "
        f"differently; before {len(rows) - ties:,}, the engines disagreed."
    )
