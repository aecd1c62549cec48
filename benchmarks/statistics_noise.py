"""Part `noise` of `benchmarks.statistics`: how often two equal runs differ by more than the noise floor.

Each case draws noise measurements and, for each, two more runs on fresh engines. `engine_share` is the engines' share
of the variance of a run. `beyond` is the share of pairs that differ by more than the floor of the view `noise`, `plain`
by more than one that ignores engines: t × sqrt(2) × the standard deviation of all runs. `floor` is the median floor in
standard deviations of a run.

It simulates with NumPy what SQL computes, after it has compared some measurements with the SQL.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import duckdb
import numpy as np
import pyarrow
from scipy.special import stdtrit

from assayline.store.database import apply_schema

Dice = np.random.Generator
DESIGNS = ((5, 2), (10, 1), (3, 2), (10, 2))
"""Engines and runs per engine; the first one is the default."""
CHECKED = 50
DRAWS: dict[str, Callable[[Dice, tuple[int, ...]], np.ndarray]] = {
    "normal": lambda dice, shape: dice.standard_normal(shape),
    "heavy tails": lambda dice, shape: dice.standard_t(4, shape) / np.sqrt(2),
}
"""Noise of standard deviation 1."""


def find_floors(values: np.ndarray) -> np.ndarray:
    """Compute the noise floors of measurements × engines × runs, as the view `noise` does."""
    _, engines, runs = values.shape
    between = runs * values.mean(axis=2).var(axis=1, ddof=1)
    if runs == 1:
        return np.asarray(stdtrit(engines - 1, 0.975) * np.sqrt(2 * between))
    within = values.var(axis=2, ddof=1).mean(axis=1)
    parts = between / runs, (1 - 1 / runs) * within
    total, spare = parts[0] + parts[1], engines * (runs - 1)
    degrees = np.floor(total**2 / (parts[0] ** 2 / (engines - 1) + parts[1] ** 2 / spare))
    is_plain = between <= within
    degrees, total = np.where(is_plain, spare, degrees), np.where(is_plain, within, total)
    return np.asarray(stdtrit(degrees, 0.975) * np.sqrt(2 * total))


def draw_runs(dice: Dice, shape: tuple[int, int, int], engine_share: float, noise: str) -> np.ndarray:
    """Draw measurements × engines × runs with a standard deviation of 1."""
    draw = DRAWS[noise]
    return np.sqrt(engine_share) * draw(dice, (*shape[:2], 1)) + np.sqrt(1 - engine_share) * draw(dice, shape)


def measure_noise(dice: Dice, cases: int) -> Iterator[dict[str, Any]]:
    """Share of pairs of equal runs that differ by more than the noise floor."""
    for noise, (engines, runs), engine_share in itertools.product(DRAWS, DESIGNS, (0.0, 0.2, 0.5, 0.9)):
        values = draw_runs(dice, (cases, engines, runs), engine_share, noise)
        pairs = draw_runs(dice, (cases, 2, 1), engine_share, noise)[:, :, 0]
        differences = abs(pairs[:, 0] - pairs[:, 1])
        floors, flat = find_floors(values), values.reshape(cases, -1)
        plain = stdtrit(engines * runs - 1, 0.975) * np.sqrt(2) * flat.std(axis=1, ddof=1)
        yield {
            "engines": engines,
            "runs": engines * runs,
            "engine_share": engine_share,
            "beyond": float((differences > floors).mean()),
            "plain": float((differences > plain).mean()),
            "floor": f"{np.median(floors):.2f}",
            "noise": noise,
        }


def check_against_sql(dice: Dice) -> None:
    """Raise unless the view `noise` has these floors."""
    connection = duckdb.connect(config={"threads": 1})
    apply_schema(connection)
    for engines, runs in DESIGNS:
        values = draw_runs(dice, (CHECKED, engines, runs), 0.5, "normal") + 10
        drawn = [
            {"config_id": f"{case:03}", "run_id": f"{case:03}-{engine}-{run}", "value": float(value),
             "kept_from": f"{case:03}-{engine}-0"}
            for case, of_case in enumerate(values)
            for engine, of_engine in enumerate(of_case)
            for run, value in enumerate(of_engine)
        ]  # fmt: skip
        connection.execute("begin")
        connection.register("drawn", pyarrow.Table.from_pylist(drawn))
        for statement in _INSERTS:
            connection.execute(statement)
        found = connection.execute("select noise_floor from internal.noise order by config_id").fetchall()
        connection.execute("rollback")
        assert np.allclose([floor for (floor,) in found], find_floors(values), rtol=1e-4), f"{engines} × {runs}"


_INSERTS = (
    """
    insert into raw.runs by name
    select run_id, 'spec' as name, 'set' as prompt_set, 'model' as model, 'hash' as spec_hash, '{}' as spec_json,
        config_id, 'noise' as benchmark_id, '0' as assayline_version, 'host' as host_name, 1 as attempt,
        'completed' as state, timestamp '2026-01-01' as started_at
    from drawn
    """,
    """
    insert into raw.engine_events by name
    select run_id, 'w' as worker, 1 as attempt, 0 as engine_generation, 'opened' as event, 0 as at_s,
        to_json({'kept_from': kept_from}) as details_json
    from drawn
    """,
    """
    insert into raw.metric_values by name
    select run_id, 'computed_value' as source, 'output_tokens_per_s' as metric, 'mean' as statistic, value,
        'tokens/s' as unit, true as higher_is_better
    from drawn
    """,
)
