"""The rates that a load sweep has measured, and the search for the highest one at which an SLO holds, in words."""

from collections.abc import Sequence

from assayline.benchmark.profile import GOAL, Probe
from assayline.store.database import Connection, read_rows
from assayline.store.metrics import ensure_benchmark
from assayline.words import show_range, show_rate, show_share


def read_achieved_rates(connection: Connection, benchmark_id: str, config_ids: Sequence[str]) -> list[float | None]:
    """Return the median achieved requests per second of each configuration over completed runs; None without one."""
    query = """
        select median(value)
        from metric_values
        join runs using (run_id)
        where benchmark_id = ? and config_id = ? and state = 'completed' and metric = 'requests_per_s'
    """
    ensure_benchmark(connection, benchmark_id)
    return [connection.execute(query, [benchmark_id, one]).fetchall()[0][0] for one in config_ids]


def read_probes(connection: Connection, benchmark_id: str, slo: str) -> list[Probe]:
    """Read the rates that a search has measured, lowest first; repeats of a rate count together."""
    ensure_benchmark(connection, benchmark_id)
    return [Probe(**row) for row in read_rows(connection, _PROBES, slo, benchmark_id)]


_PROBES = """
    select
        offered_requests_per_s as rate_per_s,
        cast(round(sum(value * n)) as bigint) as good,
        cast(sum(n) as bigint) as requests,
        bool_or(is_saturated) as is_saturated,
        bool_or(overload.run_id is not null) as is_late
    from load_point
    join metric_values using (run_id)
    left join overload using (run_id)
    where metric = 'good_share' and detail = ? and benchmark_id = ? and n > 0
        and arrival not in ('concurrency', 'all_at_once')
    group by offered_requests_per_s
    order by offered_requests_per_s
"""


def say_search(slo: str, probes: Sequence[Probe]) -> str:
    """Describe the highest rate at which the SLO is shown to hold, and the lowest at which it does not."""

    def tell(one: Probe) -> str:
        span = show_range(*map(show_share, one.interval))
        saturated = ", saturated" if one.is_saturated else ""
        return f"{show_share(one.good / one.requests)} of {one.requests:,} good, 95%: {span}{saturated}"

    bad = [one for one in probes if one.is_too_much]
    good = [one for one in probes if one.holds and (not bad or one.rate_per_s < bad[0].rate_per_s)]
    over = f", and not at {show_rate(bad[0].rate_per_s, 'requests')} ({tell(bad[0])})" if bad else ""
    late = [one for one in probes if one.is_late and not one.is_too_much]
    if late and late[-1].rate_per_s > (good[-1].rate_per_s if good else 0):
        over += f"; {show_rate(late[-1].rate_per_s, 'requests')} does not count, as its client sent or read late"
    if not good:
        hint = "hint: send more requests per rate, by --seconds or more prompts."
        return f"{slo} is not shown to hold at any rate{over}. {hint}"
    held = f"{slo} holds up to {show_rate(good[-1].rate_per_s, 'requests')} ({tell(good[-1])})"
    return f"{held}{over}. It holds if {GOAL:.0%} of the requests are good."
