"""Write the reports of a run, a benchmark, a history and a leaderboard from the database to files."""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from assayline.benchmark.campaign import Campaign, campaign_dir, count_left, find_campaign
from assayline.comparison.baselines import check_run, resolve_baseline
from assayline.digests import digest_json
from assayline.errors import SpecError
from assayline.files import replace_file, storing
from assayline.report.board import BoardRows, compose_board, read_board
from assayline.report.comparison import FRONTIER
from assayline.report.document import Chart, Document, hide_places, leave_out_texts
from assayline.report.history import compose_history
from assayline.report.history_rows import HistoryRows, read_history
from assayline.report.html import draw_picture, list_charts, render_html, write_chart
from assayline.report.markdown import render_markdown
from assayline.report.run.accuracy import describe_accuracy, describe_prompts
from assayline.report.run.comparison import (
    answer_questions,
    describe_comparison,
    is_worse,
    read_comparison,
    say_verdict,
)
from assayline.report.run.engines import describe_engines, describe_errors
from assayline.report.run.judges import describe_judges, name_source, read_judges, say_distrust
from assayline.report.run.page import choose_figures, describe_cost, describe_run, list_metrics, write_headline
from assayline.report.run.rows import open_run
from assayline.report.run.speed import describe_latency, describe_load, describe_time
from assayline.report.suite import compose_suite
from assayline.report.sweep import compose_benchmark, read_benchmark_rows
from assayline.settings import Settings
from assayline.stats.worse import name_state
from assayline.store.database import Connection
from assayline.store.metrics import ensure_metrics, read_metric_table
from assayline.store.thread import DatabaseThread

HTML_NAME = "report.html"
MARKDOWN_NAME = "report.md"
CHART_NAME = "frontier.vl.json"
"""The chart of a benchmark's page as Vega-Lite, for other tools."""
PAGE_BYTES = 300_000
"""Maximum bytes of a page in Prefect's database, which has one per run."""


@dataclass(frozen=True, slots=True)
class Written:
    """A report on disk."""

    html: Path
    markdown: Path
    text: str
    """The Markdown."""
    document: Document


def put_on_page(document: Document) -> str:
    """Render Markdown with images for the page of a flow run. Beyond PAGE_BYTES, charts become descriptions."""
    while (left := PAGE_BYTES - len(render_markdown(document).encode())) < 0 and document.sections:
        document = replace(document, sections=document.sections[:-1])

    def draw(chart: Chart) -> str | None:
        nonlocal left
        uri = draw_picture(chart)
        if len(uri) > left:
            return None
        left -= len(uri)
        return uri

    return render_markdown(document, draw)


def compose_run(connection: Connection, run_id: str, baseline: str | None, run_dir: Path) -> Document:
    """Build the report of a run, compared with a baseline if there is one (see `make_report`).

    `run_dir` holds the media that came inside rows.
    """
    check_report_run(connection, run_id)
    ensure_metrics(connection, [run_id])  # first: it deletes audits and rankings, which judges store
    if baseline is None:
        other = find_last_baseline(connection, run_id)
    else:
        other = find_baseline_run(connection, baseline, run_id)
    comparison = None if other is None else read_comparison(connection, run_id, other)
    judges, metrics = read_judges(connection, run_id), read_metric_table(connection, run_id)
    with open_run(connection, run_id) as run:
        own = [describe(run) for describe in OWN_SECTIONS]
        prompts = describe_prompts(run, run_dir)
        about = describe_run(run, [name_source(source) for source in judges.sources])
    headline, state = write_headline(run, metrics), str(run.row["state"])
    if comparison is not None:
        gate = comparison.gate
        state = name_state(state, gate.verdict if gate else "pass")
        headline.insert(0 if gate else 1, gate.tell("This run", "the baseline") if gate else say_verdict(comparison))
    if doubts := say_distrust(judges):
        headline[:0], state = doubts, "worse" if state == "worse" else "not trusted"
    return Document.of(
        run.row["name"],
        f"{run.row['model']} on {run.row['prompt_set']}, run {run_id}",
        state,
        headline,
        choose_figures(run, is_worse=comparison is not None and is_worse(comparison, run.summary["scorer"])),
        [
            *((answer_questions(connection, run, comparison), describe_comparison(comparison)) if comparison else ()),
            *own[:2],
            describe_judges(judges),
            *own[2:],
            prompts,
            about,
            list_metrics(metrics),
        ],
    )


OWN_SECTIONS = (
    describe_errors,
    describe_accuracy,
    describe_load,
    describe_latency,
    describe_time,
    describe_engines,
    describe_cost,
)
"""Sections of the run alone; its judges follow the second."""


def write_report(
    document: Document, settings: Settings, own: Path, out: Path | None = None, has_texts: bool = True
) -> Written:
    """Write HTML and Markdown into `own`, a folder in the data folder, or as files to mail into `out`.

    Neither names hosts or folders of this machine. Raises StoreError if the folder is not writable.
    """
    shown, folder = hide_places(document if has_texts else leave_out_texts(document)), out or own
    html = render_html(shown, settings.data_dir / "cache", None if out else own)
    markdown = render_markdown(shown)
    html, markdown = (text.replace("\0", "\ufffd") for text in (html, markdown))  # neither format can represent it
    with storing(f"The report cannot be written to {folder}", "pass another folder with --out."):
        replace_file(folder / HTML_NAME, lambda file: file.write(html.encode("utf-8", "replace")))
        replace_file(folder / MARKDOWN_NAME, lambda file: file.write(markdown.encode("utf-8", "replace")))
    return Written(folder / HTML_NAME, folder / MARKDOWN_NAME, markdown, document)


def make_report(
    settings: Settings, run_id: str, baseline: str | None = None, folder: Path | None = None, has_texts: bool = True
) -> Written:
    """Write the report of a run into `folder` (default: the run's own), compared with a baseline if there is one.

    `baseline` is a run id or a pinned name (default: that of its last verdict, then `gate.baseline`). Raises SpecError
    for a run or baseline that is missing or has not finished, and StoreError.
    """
    run_dir = settings.run_dir(run_id)
    document = open_database(settings).query(lambda connection: compose_run(connection, run_id, baseline, run_dir))
    return write_report(document, settings, run_dir, folder, has_texts)


def open_database(settings: Settings) -> DatabaseThread:
    """Open the database for reading. Raises StoreError if it does not exist, because reading must not create it."""
    settings.need_database()
    return DatabaseThread(settings)


def find_last_baseline(connection: Connection, run_id: str) -> str | None:
    """Return the run that this run was last judged against, else that of its gate.baseline; None without either."""
    judged = "(select max_by(baseline_run_id, judged_at) from verdicts where run_id = runs.run_id)"
    query = f"select coalesce({judged}, spec_json ->> '$.gate.baseline') from runs where run_id = ?"  # noqa: S608
    ((name,),) = connection.execute(query, [run_id]).fetchall()
    with suppress(SpecError):  # it is not pinned or stored any more, or it is this run
        return find_baseline_run(connection, name, run_id) if name else None
    return None


def find_benchmark(connection: Connection, settings: Settings, benchmark_id: str) -> Document:
    """Build the page of a benchmark. Raises SpecError for one without runs: a URL must not name another folder."""
    known = connection.execute("select 1 from raw.runs where benchmark_id = ? limit 1", [benchmark_id]).fetchone()
    plan = find_campaign(settings, "benchmark", benchmark_id) if known else None
    return compose_benchmark(read_benchmark_rows(connection, benchmark_id, plan), count_left(plan, settings))


def make_benchmark_report(
    settings: Settings, benchmark_id: str, folder: Path | None = None, has_texts: bool = True
) -> Written:
    """Write the report of a benchmark into `folder` (default: the benchmark's own).

    Raises SpecError for a benchmark without runs, and StoreError.
    """
    document = open_database(settings).query(lambda connection: find_benchmark(connection, settings, benchmark_id))
    own = campaign_dir(settings, "benchmark", benchmark_id)
    written = write_report(document, settings, own, folder, has_texts)
    drawn = next((chart for chart in list_charts(document) if chart.title == FRONTIER), None)
    if drawn is not None:
        replace_file(written.html.with_name(CHART_NAME), lambda file: file.write(write_chart(drawn)))
    return written


def make_suite_report(settings: Settings, plan: Campaign) -> Written:
    """Write the page of a suite into its folder. Raises StoreError."""
    return write_report(compose_suite(plan), settings, campaign_dir(settings, "suite", plan.campaign_id))


def make_history_report(
    settings: Settings, name: str, baseline: str | None = None, folder: Path | None = None, has_texts: bool = True
) -> tuple[HistoryRows, Written]:
    """Write the report of a history into `folder` (default: its own), and return its rows as well.

    `name` is a spec name or a run id. Raises SpecError for a missing history or baseline, and StoreError.
    """
    rows = open_database(settings).query(lambda connection: read_history(connection, name, baseline))
    written = write_report(compose_history(rows), settings, history_dir(settings, rows), folder, has_texts)
    return rows, written


def history_dir(settings: Settings, rows: HistoryRows) -> Path:
    """Return the folder of a history's report, named after the spec as far as a file system allows.

    A digest is appended if other models or prompt sets share the name, or if it is not a valid folder name.
    """
    run = rows.newest
    identity = [run["name"], run["model"], run["prompt_set"]]
    return settings.data_dir / "histories" / _name_folder(run["name"], identity, is_plain=not rows.others)


def _name_folder(name: str, identity: Sequence[str], *, is_plain: bool) -> str:
    """Return the name if it is unique and valid as a folder name; else a cleaned name with a digest of `identity`."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-")[:60]
    return plain if is_plain and plain == name else f"{plain}-{digest_json(list(identity))[:8]}".lstrip("-")


def make_leaderboard(
    settings: Settings, names: Sequence[str] = (), folder: Path | None = None, has_texts: bool = True
) -> tuple[BoardRows, Written]:
    """Write the leaderboard of these runs, specs, prompt sets or benchmarks (default: all), and return its rows as
    well.

    Raises SpecError for an unknown name, and StoreError.
    """
    rows = open_database(settings).query(lambda connection: read_board(connection, names))
    return rows, write_board(settings, rows, folder, has_texts)


def write_board(settings: Settings, rows: BoardRows, folder: Path | None = None, has_texts: bool = True) -> Written:
    """Write a leaderboard from its rows."""
    names = rows.names
    name = "-".join(names) or "all"
    own = settings.data_dir / "leaderboards" / _name_folder(name, names, is_plain=len(names) < 2)
    return write_report(compose_board(rows), settings, own, folder, has_texts)


def check_report_run(connection: Connection, run_id: str) -> None:
    """Raise SpecError for a run that is not in the database, or has not finished."""
    if check_run(connection, run_id) == "running":
        raise SpecError(
            f"Run {run_id} has not finished, and a report needs a finished run. hint: if no process is working on "
            f"it, resume it with `assayline evaluate --resume {run_id}`."
        )


def find_baseline_run(connection: Connection, name: str, run_id: str) -> str:
    """Resolve a pinned name or run id to a finished run other than the report's own. Raises SpecError."""
    found = resolve_baseline(connection, name)
    if found == run_id:
        raise SpecError(f"The baseline {name!r} is run {run_id} itself. hint: pass another run, or omit --baseline.")
    if check_run(connection, found) == "running":
        raise SpecError(f"The baseline {name!r} is run {found}, which has not finished. hint: pass a finished run.")
    return found
