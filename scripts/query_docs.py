"""Writes docs/queries.md, each answer from the database of examples/two_weeks.py: `python -m scripts.query_docs`.

A test makes the page again and compares.
"""

import sys
import tempfile
import textwrap
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from assayline.store.database import Connection, connect  # noqa: E402
from assayline.words import escape_markdown, show_value  # noqa: E402
from examples.two_weeks import make_database  # noqa: E402


class Question(NamedTuple):
    """What a person asks, how SQL does, and what to know of the answer."""

    title: str
    query: str
    note: str


QUESTIONS = (
    Question(
        "Is it worse than last week?",
        """
select scorer, candidate_mean, baseline_mean, difference, low, high, mcnemar_p, verdict
from compare_runs('20261121-013000-nightly-0002', '20261114-013000-nightly-0001');
""",
        "Both runs are compared prompt by prompt. `low` and `high` are the ends of a 95 % interval for the "
        "difference; the verdict is `worse` only where the interval leaves out zero and the exact test agrees. "
        "`assayline gate` makes a failed run of it.",
    ),
    Question(
        "Which prompts flipped?",
        """
select messages_json ->> '$[0].content' as prompt, target, baseline_value, candidate_value
from compare_prompts('20261121-013000-nightly-0002', '20261114-013000-nightly-0001')
order by difference, prompt
limit 6;
""",
        "The worst first. A value is the mean of the prompt's repeats, here one each.",
    ),
    Question(
        "At which kind of prompt is it bad?",
        """
select
    metadata_json ->> 'operation' as operation,
    count(*) as prompts,
    avg(mean_value) as mean
from prompt_score
join prompts using (run_id, prompt_id, occurrence)
where run_id = '20261121-013000-nightly-0002' and scorer = 'exact_match'
group by operation
order by mean;
""",
        "Columns that the spec lists under `prompts.columns.metadata` are in `prompts.metadata_json`.",
    ),
    Question(
        "What does a point of accuracy cost in time?",
        """
select
    100 * (thinking.accuracy - plain.accuracy) as points,
    thinking.working_s - plain.working_s as extra_s,
    extra_s / points as extra_s_per_point
from run_summary as thinking
join run_summary as plain on plain.run_id = '20261114-013000-nightly-0001'
where thinking.run_id = '20261121-093000-thinking-0003';
""",
        "Seconds that an engine was at work, for the same prompts; loading and pauses are outside. A difference of "
        "two single runs: hold it against the interval of the first question before paying.",
    ),
    Question(
        "Which requests were slowest, and where did their time go?",
        """
select left(request_id, 8) as request, e2e_s, queue_s, prefill_s, decode_s, output_tokens, engine_generation
from stg_requests
where run_id = '20261121-013000-nightly-0002' and status = 'ok'
order by e2e_s desc, request_id
limit 5;
""",
        "Offline, a request waits in the engine's queue until a seat is free. What a dead engine had begun is asked"
        " again from the start, and only the answering engine's times count.",
    ),
    Question(
        "Did memory reductions happen?",
        """
select engine_generation as engine, ending, failure_kind, reduced_arguments, isolated_requests, lost_s, recovery_s
from engine_history
where run_id = '20261121-013000-nightly-0002'
order by engine_generation;
""",
        "One line per engine: how it ended, what the next one got less of, and how long there was none. All runs "
        "with trouble: `from run_summary where engine_failures > 0`.",
    ),
    Question(
        "Which configuration is fastest?",
        """
select any_value(name) as name, metric, repeats, median_value, lowest_value, highest_value
from benchmark_metric
join runs using (benchmark_id, config_id)
where benchmark_id = 'window-8-or-32' and metric in ('output_tokens_per_s', 'e2e_p95_s')
group by all
order by metric desc, median_value desc;
""",
        "Medians over the repeats of `assayline benchmark`. More throughput is paid for with latency, as ever.",
    ),
    Question(
        "Is that difference in speed more than chance?",
        """
select metric, shift, shift_low, shift_high, relative_shift, p_value, verdict
from compare_configs(
    (select any_value(config_id) from runs where name = 'window-32'),
    (select any_value(config_id) from runs where name = 'window-8')
)
where metric in ('output_tokens_per_s', 'tpot_p50_s', 'e2e_p95_s')
order by metric;
""",
        "Over whole runs, not over requests, whose spread says nothing of how runs differ. Five repeats a side are "
        "the fewest for which the exact test can be below 0.01.",
    ),
    Question(
        "What went wrong, how often, and what did it say?",
        """
select runs.name, error_kind, error_requests, error_share, example_message
from error_breakdown
join runs using (run_id)
order by error_requests desc;
""",
        "Over all runs of the database; a run without errors has no line.",
    ),
    Question(
        "Where did the night's time go?",
        """
select load_s, warmup_s, working_s, downtime_s, lost_s, mean_in_flight_requests, window_share
from run_summary
where run_id = '20261121-013000-nightly-0002';
""",
        "`working_s` is what throughput is divided by; `downtime_s` are the rebuilds in between. `window_share` "
        "says how full an average step was.",
    ),
)

INTRODUCTION = (
    "Each with its query and its answer. The answers come from a database that anyone can make in a few seconds, "
    "without an engine: `python -m examples.two_weeks` writes `data/two-weeks/assayline.duckdb`. It has two nights of"
    " the demo's prompts a week apart, the second worse and with engines that ran out of memory; a run with room to "
    "think; and a benchmark of two windows, five repeats each. **Its answers and times are invented**, so that they "
    "are the same everywhere: they measure nothing. On your own database the same queries work with your run ids; "
    "`assayline runs` lists them. What every column means: [metrics.md](metrics.md)."
)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = make_database(Path(folder))
        with connect(path, 5, read_only=True) as connection:
            (ROOT / "docs" / "queries.md").write_text(render(connection), encoding="utf-8")


def render(connection: Connection) -> str:
    """The whole page, with the answers of this database."""
    lines = ["# Ten questions", "", *_wrap(INTRODUCTION), ""]
    for number, question in enumerate(QUESTIONS, start=1):
        lines += [f"## {number}. {question.title}", "", "```sql", question.query.strip(), "```", ""]
        lines += [*_answer(connection, question.query), "", *_wrap(question.note), ""]
    return "\n".join(lines).rstrip() + "\n"


def _answer(connection: Connection, query: str) -> list[str]:
    result = connection.execute(query)
    columns = result.description or []
    numeric = [str(column[1]) in ("DOUBLE", "BIGINT", "INTEGER", "HUGEINT") for column in columns]
    lines = [
        f"| {' | '.join(escape_markdown(column[0]) for column in columns)} |",
        f"|{'|'.join('---:' if is_number else '---' for is_number in numeric)}|",
    ]
    for row in result.fetchall():
        lines.append(f"| {' | '.join(escape_markdown(show_value(value)) for value in row)} |")
    return lines


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(text, 118, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    main()
