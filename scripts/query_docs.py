"""Write docs/reference/sql-cookbook.md, with results from the database of examples/two_weeks.py.

`python -m scripts.query_docs`; a test regenerates the page and compares it.

Queries use only tables and functions of the schema main, and run on a plain DuckDB connection, like a user's.
"""

import sys
import tempfile
import textwrap
from pathlib import Path
from typing import NamedTuple

import duckdb

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from assayline.words import escape_markdown, show_value  # noqa: E402
from examples.two_weeks import make_database  # noqa: E402


class Question(NamedTuple):
    """A question, its query, and notes on how to read the result."""

    title: str
    query: str
    note: str


QUESTIONS = (
    Question(
        "Is it worse than last week?",
        """
select scorer, candidate_mean, baseline_mean, difference, prompts, worse_prompts, better_prompts
from compare_runs('20261121-013000-nightly-0002', '20261114-013000-nightly-0001');
""",
        "The function compares both runs prompt by prompt. The gate tests the difference against a limit, and stores "
        "its 95% interval, p and verdict in the table `comparison`.",
    ),
    Question(
        "Which prompts got worse?",
        """
select answer.question, answer.target, answer.text as answer, answer.ttft_s
from answer
join answer as earlier using (prompt_id, occurrence, repeat_index)
where answer.run_id = '20261121-013000-nightly-0002'
    and earlier.run_id = '20261114-013000-nightly-0001'
    and answer.scores['exact_match'] < earlier.scores['exact_match']
order by question
limit 5;
""",
        "`answer` has one row per request: question, target, answer, scores by scorer, times. A prompt has the same "
        "`prompt_id` in every run, so two runs join on it. A prompt set may contain a row twice, and a run may ask it "
        "several times: `occurrence` and `repeat_index` tell these apart.",
    ),
    Question(
        "Which kind of prompt is it bad at?",
        """
select metadata_json ->> 'operation' as operation, count(*) as answers, avg(value) as mean_score
from score
join prompt using (run_id, prompt_id, occurrence)
where run_id = '20261121-013000-nightly-0002' and scorer = 'exact_match'
group by operation
order by mean_score;
""",
        "`metadata_json` has the columns that the spec lists under `prompts.columns.metadata`.",
    ),
    Question(
        "How did accuracy change over time?",
        """
select started_at, value as accuracy, low, high, n as prompts
from metric_value
where name = 'nightly' and metric = 'accuracy'
order by started_at;
""",
        "`low` and `high` are the ends of the 95% interval. `history('nightly')` has other metrics too, and whether "
        "each run counts.",
    ),
    Question(
        "How long do users wait for the first token, by day?",
        """
select cast(started_at as date) as day, name, count(*) as runs, median(value) as ttft_p95_s
from metric_value
where metric = 'ttft_s' and statistic = 'p95'
group by day, name
order by day, name;
""",
        "The 95th percentile of each run, and the median of these over the day's runs. Percentiles of one run have "
        "intervals too, in `low` and `high`, if enough of its requests are independent.",
    ),
    Question(
        "What does an engine setting do to throughput?",
        """
select
    spec_json ->> '$.engine.args.max_num_seqs' as max_num_seqs,
    count(*) as runs,
    median(output_tokens_per_s) as output_tokens_per_s,
    median(tpot_p50_s) as tpot_p50_s
from run
where benchmark_id = 'window-8-or-32'
group by max_num_seqs
order by output_tokens_per_s;
""",
        "`spec_json` is the whole spec, so any of its fields can be a column; `$.engine.max_concurrency` is another. A "
        "larger batch has more throughput, and each of its requests gets its tokens more slowly.",
    ),
    Question(
        "Which configuration is faster?",
        """
select metric, candidate_median, baseline_median, relative_shift, baseline_lowest, baseline_highest
from compare_configs(
    (select any_value(config_id) from run where name = 'window-32'),
    (select any_value(config_id) from run where name = 'window-8')
)
where metric in ('output_tokens_per_s', 'tpot_p50_s', 'e2e_p95_s')
order by metric;
""",
        "The function compares whole runs, because requests of one run do not show how runs differ. The report of a "
        "benchmark and the gate test whether a difference is more than chance.",
    ),
    Question(
        "Which model is best?",
        """
select task, model, value, low, high, best_rank, worst_rank, is_winner
from ranking
where names = ['three-models'];
""",
        "A rank is an interval: the data cannot tell the first two models apart, so each has rank 1 to 2 and neither "
        "wins. `assayline report --leaderboard three-models` stored these rows; without a name, it ranks all runs.",
    ),
    Question(
        "What does a right answer cost?",
        """
select model, 1000 * value as euros_per_1000, 1000 * low as low, 1000 * high as high, run.accuracy
from metric_value
join run using (run_id, model)
where metric = 'cost_per_right_answer' and run.benchmark_id = 'three-models'
order by value;
""",
        "Needs a `price` in the spec, here EUR 1.80 for an hour of the machine. Wrong answers are paid for, too, and "
        "the load time is left out; `full_cost_per_right_answer` includes it.",
    ),
    Question(
        "Which rows failed, and why?",
        """
select source_row, error_kind, error_message, worker, engine_generation
from request
where run_id = '20261121-013000-nightly-0002' and status = 'error'
order by source_row;
""",
        "`source_row` is the position of the row in the prompt file, from 0.",
    ),
    Question(
        "Which requests were slowest, and where did their time go?",
        """
select left(request_id, 8) as request, e2e_s, queue_s, prefill_s, decode_s, output_tokens, engine_generation
from request
where run_id = '20261121-013000-nightly-0002' and status = 'ok'
order by e2e_s desc, request_id
limit 5;
""",
        "`e2e_s` is the sum of queue, prefill and decode. Offline, a request waits in the engine's queue until a "
        "sequence is free. A request that outlives an engine is sent to the next one, and only its times there count.",
    ),
    Question(
        "Did the engine run out of memory, what was reduced, and how much of the run was recovery?",
        """
select engine_generation as engine, ending, failure_kind, reduced_arguments,
    engine.recovery_s, engine.recovery_s / run.duration_s as share_of_run
from engine
join run using (run_id)
where run_id = '20261121-013000-nightly-0002'
order by engine;
""",
        "One row per engine: how it ended, what was reduced for the next one, and how long the run waited for it. "
        "`run.recovery_s` is the sum; all runs with trouble: `from run where recovery_s > 0`.",
    ),
    Question(
        "How much load can it take?",
        """
select offered_requests_per_s, requests_per_s, e2e_p50_s, ttft_p95_s, is_saturated, power, is_knee
from load_point
where benchmark_id = 'two-to-eight-a-second'
order by offered_requests_per_s;
""",
        "The knee is the load with the highest power, which is throughput divided by latency. At 8 requests a second "
        "the queue grows without end, so that point cannot be the knee.",
    ),
    Question(
        "Which answers were cut off?",
        """
select finish_reason, count(*) as answers, max(output_tokens) as longest_tokens, avg(value) as mean_score
from request
join score using (run_id, prompt_id, occurrence, repeat_index)
where run_id = '20261122-120000-models-1200' and status = 'ok'
group by finish_reason
order by answers desc;
""",
        "An answer that reaches `max_tokens`, here 14, has `length` and no end, so it is usually scored as wrong. "
        "`answer.text` has its text.",
    ),
    Question(
        "What did the gate decide, and why?",
        """
select name, started_at, limit_on, verdict, candidate_value, baseline_value, limit_value, words
from verdict
where is_last
order by started_at desc, ordinal;
""",
        "One row per limit. `assayline gate` exits with 1 if one fails; `run.verdict` has the gate's decision in a "
        "word.",
    ),
)

INTRODUCTION = (
    "Each has its query and its answer. The queries use the tables and functions of `main` alone, so "
    "they work in any DuckDB shell, notebook or dashboard: `duckdb -readonly data/assayline.duckdb`. "
    "[examples/notebook.py](../../examples/notebook.py) makes charts of three such queries, for marimo.",
    "The answers come from a database that you can make in a few seconds, without an engine: `python -m "
    "examples.two_weeks` writes `data/two-weeks/assayline.duckdb`. **Its answers and times are invented**, so that "
    "they are the same everywhere: they measure nothing. It has two nights of the demo's prompts a week apart, the "
    "second worse and with engines that ran out of memory; a run with room to think; a benchmark of two limits of "
    "concurrency, five repeats each; one of three models; and one model under five loads. With your own database, use "
    "your run ids, which `assayline list runs` lists. [The reference](metrics/index.md) explains every "
    "column.",
)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = make_database(Path(folder))
        with duckdb.connect(path, read_only=True) as connection:
            (ROOT / "docs" / "reference" / "sql-cookbook.md").write_text(render(connection), encoding="utf-8")


def render(connection: duckdb.DuckDBPyConnection) -> str:
    """Format the page with the results from this database."""
    lines = ["# Fifteen questions", ""]
    for paragraph in INTRODUCTION:
        lines += [*_wrap(paragraph), ""]
    for number, question in enumerate(QUESTIONS, start=1):
        lines += [f"## {number}. {question.title}", "", "```sql", question.query.strip(), "```", ""]
        lines += [*_answer(connection, question.query), "", *_wrap(question.note), ""]
    return "\n".join(lines).rstrip() + "\n"


def _answer(connection: duckdb.DuckDBPyConnection, query: str) -> list[str]:
    result = connection.execute(query)
    columns = result.description or []
    numeric = [str(column[1]) in ("DOUBLE", "BIGINT", "INTEGER", "HUGEINT") for column in columns]
    lines = [
        f"| {' | '.join(escape_markdown(column[0]) for column in columns)} |",
        f"|{'|'.join('---:' if is_number else '---' for is_number in numeric)}|",
    ]
    for row in result.fetchall():
        lines.append(f"| {' | '.join(escape_markdown(_show(value)) for value in row)} |")
    return lines


def _show(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else show_value(value)


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(text, 100, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    main()
