"""The report's section on noise: how much equal runs of one configuration differ."""

from dataclasses import dataclass

from assayline.benchmark.result import SHOWN
from assayline.comparison.queries import read_noise as read_noise_rows
from assayline.report.document import Column, Figure, Section, tabulate
from assayline.store.database import Connection, Row, read_rows
from assayline.words import count, show_share, show_value


@dataclass(frozen=True, slots=True)
class NoiseRows:
    """The noise of a benchmark's only configuration."""

    metrics: list[Row]
    """Rows of read_noise; empty if too few runs count, or a newer measurement replaces them."""
    flips: Row
    """Numbers of prompts, and of those whose text or score differs between runs."""


def read_noise(connection: Connection, benchmark_id: str) -> NoiseRows:
    """Read the noise that a benchmark measured. The caller ensures its metrics."""
    metrics = {row["metric"]: row for row in read_noise_rows(connection, "benchmark_id = ?", benchmark_id)}
    (flips,) = read_rows(connection, _FLIPS, benchmark_id)
    return NoiseRows([metrics[metric] for metric in SHOWN if metric in metrics], flips)


_FLIPS = """
    select
        count(*) as prompts,
        count(*) filter (flip_share > 0) as texts,
        count(*) filter (score_flip_share > 0) as scores,
        count(score_flip_share) as scored
    from noise_prompt((select list(run_id) from noise_run where benchmark_id = ?))
"""


def _relate(column: str) -> Column:
    """Return a column for a value as a percentage of the mean."""

    def relate(row: Row) -> float | None:
        return None if row[column] is None or not row["mean"] else row[column] / abs(row["mean"])

    header = {"run_sd": "SD of runs", "engine_sd": "SD of engines", "total_sd": "SD in total"}
    return Column(header.get(column, "noise floor"), relate, show_share)


COLUMNS = (
    Column("metric", "metric"),
    Column("mean", "mean", show_value),
    Column("unit", "unit"),
    *map(_relate, ("run_sd", "engine_sd", "total_sd", "noise_floor")),
)


def say_noise(noise: NoiseRows) -> list[str]:
    """Return the number of runs and engines, and how many prompts differ between equal runs."""
    row, flips = noise.metrics[0], noise.flips
    texts = f"Answers to {flips['texts']:,} of {count(flips['prompts'], 'prompt')} differ between these equal runs"
    scores = f", and the scores of {flips['scores']:,}" if flips["scored"] else ""
    return [f"{count(row['runs'], 'equal run')} on {count(row['engines'], 'engine')}.", f"{texts}{scores}."]


def choose_noise_figures(noise: NoiseRows) -> list[Figure]:
    """Return the key figures of a measurement."""
    first, flips = noise.metrics[0], noise.flips
    floors = [
        Figure(f"Noise floor, {row['metric']}", show_share(row["noise_floor"] / abs(row["mean"])))
        for row in noise.metrics[:3]
        if row["noise_floor"] is not None and row["mean"]
    ]
    return [
        Figure("Equal runs", f"{first['runs']:,}", f"on {count(first['engines'], 'engine')}"),
        Figure("Answers that differ", f"{flips['texts']:,}", f"of {count(flips['prompts'], 'prompt')}"),
        *floors,
    ]


def describe_noise(noise: NoiseRows) -> Section:
    """Build the section."""
    section = Section("noise", "Noise", [tabulate("Noise, relative to the mean", COLUMNS, noise.metrics)])
    section.say(
        "SD is a standard deviation: of runs on one engine, and what a new engine adds. With 95% confidence, two "
        "equal runs of one session differ by more than the noise floor in at most 5% of pairs."
    )
    return section
