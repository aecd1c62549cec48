"""Reports of a run, of a benchmark, of a history and of a leaderboard, from the database to the files."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from assayline.benchmark.plan import benchmark_dir, count_left
from assayline.comparison.baselines import check_run, resolve_baseline
from assayline.digests import digest_json
from assayline.errors import SpecError
from assayline.files import replace_file, storing
from assayline.report.board import BoardRows, compose_board, read_board
from assayline.report.document import Chart, Document
from assayline.report.history import compose_history
from assayline.report.history_rows import HistoryRows, read_history
from assayline.report.html import draw_picture, render_html
from assayline.report.markdown import render_markdown
from assayline.report.run.accuracy import describe_accuracy, describe_prompts
from assayline.report.run.comparison import (
    ComparisonRows,
    describe_comparison,
    is_worse,
    read_comparison,
    say_limits,
    say_verdict,
)
from assayline.report.run.engines import describe_engines, describe_errors
from assayline.report.run.page import (
    choose_figures,
    describe_cost,
    describe_run,
    list_metrics,
    write_headline,
)
from assayline.report.run.rows import ReportRows, read_report
from assayline.report.run.speed import describe_latency, describe_load, describe_time
from assayline.report.sweep import compose_benchmark, read_benchmark_rows
from assayline.settings import Settings
from assayline.store.database import Connection, list_models
from assayline.store.metrics import compute_runs
from assayline.store.thread import DatabaseThread

HTML_NAME = "report.html"
MARKDOWN_NAME = "report.md"
PAGE_BYTES = 300_000
"""Of a page in Prefect's database, which has one per run."""


@dataclass(frozen=True, slots=True)
class Written:
    """A report that is on disk."""

    html: Path
    markdown: Path
    text: str
    """The Markdown."""
    document: Document


def put_on_page(document: Document) -> str:
    """Renders Markdown with pictures for a flow run's page. The last pictures are words where PAGE_BYTES are full."""
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


def compose_report(rows: ReportRows, comparison: ComparisonRows | None = None, run_dir: Path | None = None) -> Document:
    """The report of a run, beside its baseline if there is one, before it has a form.

    Media that came inside rows are in `run_dir`.
    """
    run = rows.run
    headline, state = write_headline(rows), str(run["state"])
    compared = []
    figures = choose_figures(rows)
    if comparison is not None:
        if is_worse(comparison, rows.summary["scorer"]):
            figures[0] = replace(figures[0], is_bad=True)
        if any(row["verdict"] == "broken" for row in comparison.limits):
            state = "worse"
        place = 0 if comparison.limits else 2
        headline[place:place] = [*say_limits(comparison), say_verdict(comparison)]
        compared.append(describe_comparison(rows, comparison))
    return Document(
        title=run["name"],
        subtitle=f"{run['model']} on {run['prompt_set']}, run {run['run_id']}",
        state=state,
        headline=headline,
        figures=figures,
        sections=[
            *compared,
            describe_accuracy(rows),
            *filter(None, [describe_load(rows)]),
            describe_latency(rows),
            describe_time(rows),
            describe_engines(rows),
            *filter(None, [describe_cost(rows)]),
            describe_errors(rows),
            describe_prompts(rows, run_dir),
            describe_run(rows),
            list_metrics(rows),
        ],
    )


def write_report(document: Document, folder: Path, settings: Settings) -> Written:
    """Writes both forms. Raises StoreError where the folder does not take them."""
    html, markdown = render_html(document, settings.data_dir / "cache"), render_markdown(document)
    html, markdown = (text.replace("\0", "\ufffd") for text in (html, markdown))  # no form has a sign for it
    with storing(f"The report cannot be written to {folder}", "Give another folder with --out."):
        replace_file(folder / HTML_NAME, lambda file: file.write(html.encode("utf-8", "replace")))
        replace_file(folder / MARKDOWN_NAME, lambda file: file.write(markdown.encode("utf-8", "replace")))
    return Written(folder / HTML_NAME, folder / MARKDOWN_NAME, markdown, document)


def make_report(
    settings: Settings,
    run_id: str,
    baseline: str | None = None,
    folder: Path | None = None,
    database: DatabaseThread | None = None,
) -> Written:
    """Writes the report of a run into `folder` (default: the run's own), held against a baseline if one is given.

    `baseline` is a run's id or a pinned name. Raises SpecError for a run or baseline that is not there or has not
    finished, and StoreError.
    """
    database = database or open_database(settings)
    run_dir = settings.run_dir(run_id)
    document = database.run(lambda connection: _compose(connection, run_id, baseline, run_dir))
    return write_report(document, folder or run_dir, settings)


def open_database(settings: Settings) -> DatabaseThread:
    """The database to report from. Raises StoreError where there is none: reading must not make one."""
    settings.need_database()
    return DatabaseThread(settings)


def _compose(connection: Connection, run_id: str, baseline: str | None, run_dir: Path) -> Document:
    check_report_run(connection, run_id)
    other = None if baseline is None else find_baseline_run(connection, baseline, run_id)
    comparison = None if other is None else read_comparison(connection, run_id, other)
    with compute_runs(connection, [run_id], list_models()):
        rows = read_report(connection, run_id)
    return compose_report(rows, comparison, run_dir)


def make_benchmark_report(settings: Settings, benchmark_id: str, folder: Path | None = None) -> Written:
    """Writes the report of a benchmark into `folder` (default: the benchmark's own).

    Raises SpecError for a benchmark without runs, and StoreError.
    """
    rows = open_database(settings).run(lambda connection: read_benchmark_rows(connection, benchmark_id))
    document = compose_benchmark(rows, count_left(benchmark_id, settings))
    return write_report(document, folder or benchmark_dir(settings, benchmark_id), settings)


def make_history_report(
    settings: Settings, name: str, baseline: str | None = None, folder: Path | None = None
) -> tuple[HistoryRows, Written]:
    """Writes the report of a history into `folder` (default: its own); also returns its rows.

    `name` is that of a spec, or the id of a run. Raises SpecError for a history or baseline that is not there, and
    StoreError.
    """
    rows = open_database(settings).run(lambda connection: read_history(connection, name, baseline))
    written = write_report(compose_history(rows), folder or history_dir(settings, rows), settings)
    return rows, written


def history_dir(settings: Settings, rows: HistoryRows) -> Path:
    """Where a history's report is: a folder that is called as the spec is, as far as a file system allows.

    Where other models or prompt sets share the name, and where it is no name for a folder, a digest tells them apart.
    """
    run = rows.newest
    identity = [run["name"], run["model"], run["prompt_set"]]
    return settings.data_dir / "histories" / _name_folder(run["name"], identity, is_plain=not rows.others)


def _name_folder(name: str, identity: Sequence[str], *, is_plain: bool) -> str:
    """The name, if it is one for a folder and nobody else's; else what is left of it, with a digest of `identity`."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-")[:60]
    return plain if is_plain and plain == name else f"{plain}-{digest_json(list(identity))[:8]}".lstrip("-")


def make_leaderboard(
    settings: Settings, names: Sequence[str] = (), folder: Path | None = None
) -> tuple[BoardRows, Written]:
    """Writes the leaderboard of these runs, specs, prompt sets or benchmarks, or of all; `folder` as elsewhere.

    Also returns its rows. Raises SpecError for a name that is not there, and StoreError.
    """
    rows = open_database(settings).run(lambda connection: read_board(connection, names))
    return rows, write_board(settings, rows, folder)


def write_board(settings: Settings, rows: BoardRows, folder: Path | None = None) -> Written:
    """Writes a leaderboard that was read; `folder` as elsewhere."""
    names = rows.names
    name = "-".join(names) or "all"
    own = settings.data_dir / "leaderboards" / _name_folder(name, names, is_plain=len(names) < 2)
    return write_report(compose_board(rows), folder or own, settings)


def check_report_run(connection: Connection, run_id: str) -> None:
    """Raises SpecError for a run that is not in the database, or has not ended."""
    if check_run(connection, run_id) == "running":
        raise SpecError(
            f"Run {run_id} has not finished, and a report is of a run that has. If nobody works on it any more, "
            f"`assayline evaluate --resume {run_id}` resumes it."
        )


def find_baseline_run(connection: Connection, name: str, run_id: str) -> str:
    """The run that a pinned name or a run's id means, other than the report's own. Raises SpecError."""
    found = resolve_baseline(connection, name)
    if found == run_id:
        raise SpecError(f"The baseline {name!r} is run {run_id} itself. Give another run, or leave --baseline out.")
    if check_run(connection, found) == "running":
        raise SpecError(f"The baseline {name!r} is run {found}, which has not finished. Give a run that has.")
    return found
