"""Write the reports of a run, a benchmark, a history and a leaderboard from the database to files."""

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from assayline.benchmark.campaign import count_left, find_campaign
from assayline.comparison.baselines import check_run, resolve_baseline
from assayline.errors import SpecError
from assayline.files import replace_file, storing
from assayline.report.board import compose_board, read_board
from assayline.report.comparison import FRONTIER
from assayline.report.document import Chart, Document, hide_places, leave_out_texts
from assayline.report.history import compose_history
from assayline.report.history_rows import read_history
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
from assayline.report.sweep import compose_benchmark, read_benchmark_rows
from assayline.settings import Settings
from assayline.stats.worse import name_state
from assayline.store.database import Connection
from assayline.store.metrics import ensure_metrics, read_metric_table
from assayline.store.thread import DatabaseThread

Kind = Literal["run", "benchmark", "history", "leaderboard"]
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
        f"runs/{run_id}",
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


def compose_page(connection: Connection, settings: Settings, kind: Kind, name: Any, baseline: str | None) -> Document:
    """Build the page of a run, benchmark, history (see `read_history`) or leaderboard, whose `name` is a list of names.

    `baseline` of a run or history is a run id or a pinned name (default: of a run, that of its last verdict, then
    `gate.baseline`). Raises SpecError for a name or baseline that is missing, and for a run that has not finished.
    """
    if kind == "run":
        return compose_run(connection, name, baseline, settings.run_dir(name))
    if kind == "history":
        return compose_history(read_history(connection, name, baseline))
    if kind == "leaderboard":
        return compose_board(read_board(connection, name))
    # A URL must not name another folder.
    known = connection.execute("select 1 from raw.runs where benchmark_id = ? limit 1", [name]).fetchone()
    plan = find_campaign(settings, "benchmark", name) if known else None
    return compose_benchmark(read_benchmark_rows(connection, name, plan), count_left(plan, settings))


def make_report(
    settings: Settings,
    name: Any,
    baseline: str | None = None,
    folder: Path | None = None,
    has_texts: bool = True,
    kind: Kind = "run",
) -> Written:
    """Write a page into `folder` (default: its own); see `compose_page`. Raises SpecError and StoreError."""
    database = open_database(settings)
    document = database.query(lambda connection: compose_page(connection, settings, kind, name, baseline))
    return write_report(document, settings, folder, has_texts)


def write_report(document: Document, settings: Settings, out: Path | None = None, has_texts: bool = True) -> Written:
    """Write HTML and Markdown into the document's folder in the data folder, or as files to mail into `out`.

    Neither names hosts or folders of this machine. Raises StoreError if the folder is not writable.
    """
    own = settings.data_dir / document.folder
    shown, folder = hide_places(document if has_texts else leave_out_texts(document)), out or own
    html = render_html(shown, settings.data_dir / "cache", None if out else own)
    markdown = render_markdown(shown)
    html, markdown = (text.replace("\0", "\ufffd") for text in (html, markdown))  # neither format can represent it
    drawn = next((chart for chart in list_charts(document) if chart.title == FRONTIER), None)
    with storing(f"The report cannot be written to {folder}", "pass another folder with --out."):
        replace_file(folder / HTML_NAME, lambda file: file.write(html.encode("utf-8", "replace")))
        replace_file(folder / MARKDOWN_NAME, lambda file: file.write(markdown.encode("utf-8", "replace")))
        if drawn is not None:
            replace_file(folder / CHART_NAME, lambda file: file.write(write_chart(drawn)))
    return Written(folder / HTML_NAME, folder / MARKDOWN_NAME, markdown, document)


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
