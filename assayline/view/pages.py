"""The viewer's pages: each reads its rows, and fills a template with them."""

import difflib
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode

from markdown_it import MarkdownIt
from markupsafe import Markup
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from assayline.benchmark.campaign import list_campaigns
from assayline.comparison.autopsy import read_autopsies, say_autopsy
from assayline.errors import AssaylineError, SpecError
from assayline.report.answers import (
    CHANGES,
    CHOICES,
    PAGE_ROWS,
    RUN_COLUMNS,
    TEXTS,
    Filters,
    RunChoices,
    list_answers,
    list_messages,
    list_pairs,
    read_answer,
    read_choices,
    write_runs,
    write_values,
)
from assayline.report.document import Document
from assayline.report.html import bundle_charts, fill_page, make_environment, read_page
from assayline.report.make import Kind, compose_page, find_last_baseline
from assayline.report.run.accuracy import show_media
from assayline.report.run.comparison import read_scores, say_score
from assayline.report.suite import compose_suite
from assayline.settings import Settings
from assayline.stats.worse import name_state
from assayline.store.database import Connection, Row, read_rows
from assayline.store.decisions import add_label, name_user
from assayline.store.locks import is_worked_on
from assayline.store.manifest import MANIFEST_NAME, read_manifest
from assayline.store.parts import count_table
from assayline.store.thread import DatabaseReader
from assayline.words import show_known, show_seconds, show_share, show_value

QUERY_LIMIT_S = 10.0
DOCUMENT_LIMIT_S = 60.0
"""Limit of all queries of a report; a page is kept until the database changes."""
KEPT_PAGES = 20
MOST_WORDS = 4_000
"""Words of two answers up to which their differences are marked; the time grows with the square."""
MOST_MARKDOWN = 50_000
"""Characters of an answer that are rendered as Markdown; the text above has all."""
MEDIA_PIXELS = 900
RUN_ID = re.compile(r"\d{8}-\d{6}-[\w-]+")
TEMPLATES = Path(__file__).parent / "templates"
TIMES = {"queued": "queue_s", "TTFT": "ttft_s", "TPOT": "tpot_s", "E2E": "e2e_s"}
COUNTS = {"prompt tokens": "prompt_tokens", "output tokens": "output_tokens", "preemptions": "preemptions"}


def link(path: str, **names: str) -> str:
    """Return a URL of the viewer."""
    return f"{path}?{urlencode(names)}"


class Pages:
    """The pages of one data folder."""

    def __init__(self, settings: Settings, reader: DatabaseReader) -> None:
        self._settings = settings
        self._reader = reader
        self._runs_dir = settings.data_dir / "runs"
        self._kept: dict[tuple[Any, ...], str] = {}
        self._templates = make_environment(TEMPLATES)
        shows = (show_known, show_seconds, show_share, show_value)
        self._templates.filters.update({show.__name__: show for show in shows})
        self._templates.filters |= {"show_cell": _link_run, "read_markdown": read_markdown}
        self._templates.globals.update(link=link, name_state=name_state, zip=zip)
        self.routes = [
            Route("/", self.show_runs),
            Route("/live", self.show_live),
            Route("/static/{name}", self.show_file),
            Route("/run", self.show_run),
            Route("/answers", self.show_answers),
            Route("/answer", self.show_answer),
            Route("/answer", self.label, methods=["POST"]),
            Route("/compare", self.show_answers),
            Route("/pair", self.show_answer),
            Route("/pair", self.label, methods=["POST"]),
            Route("/history", self._report("history", lambda given: given.get("name", ""))),
            Route("/leaderboard", self._report("leaderboard", lambda given: given.getlist("name"))),
            Route("/benchmark", self._report("benchmark", lambda given: given.get("id", ""))),
            Route("/suite", self.show_suite),
        ]
        self.handlers = {AssaylineError: self.show_error}

    def show_error(self, request: Request, error: Exception) -> Response:
        """Show the message of an error and its hint."""
        sentences = str(error).replace(" hint: ", "\nhint: ").splitlines()
        status = 404 if isinstance(error, SpecError) else 503
        return self._fill("base.html", status, title="This page cannot be shown", sentences=sentences)

    def show_live(self, request: Request) -> Response:
        """Send the progress of the running runs."""
        running = list_running(self._runs_dir)
        counts = ("answered", "expected_requests")
        return JSONResponse({run_id: {name: run[name] for name in counts} for run_id, run in running.items()})

    def show_file(self, request: Request) -> Response:
        """Send one of the viewer's own scripts and styles."""
        files: dict[str, tuple[str, Callable[[], str]]] = {
            "page.css": ("text/css", partial(read_page, "page.css")),
            "page.js": ("text/javascript", partial(read_page, "page.js")),
            "charts.js": ("text/javascript", partial(bundle_charts, self._settings.data_dir / "cache")),
            "view.css": ("text/css", partial(_read_own, "view.css")),
            "view.js": ("text/javascript", partial(_read_own, "view.js")),
        }
        if request.path_params["name"] not in files:
            raise SpecError("There is no such file. hint: go back to the list of runs.")
        kind, read = files[request.path_params["name"]]
        return Response(read(), media_type=kind)

    def show_runs(self, request: Request) -> Response:
        """Show all runs, those that are running with their progress."""
        given = {name: request.query_params.get(name, "") for name in (*CHOICES, "tag", "text", "sort")}
        number = Filters.read(request.query_params).number
        query = write_runs(given)
        running = list_running(self._runs_dir)

        def read(connection: Connection) -> tuple[list[Row], list[Row]]:
            choices = (
                f"select distinct {', '.join(CHOICES)}, unnest(coalesce(nullif(tags, []), [null])) as tag from raw.runs"  # noqa: S608 - names of ours
            )
            return query.read_plain(connection, number), read_rows(connection, choices)

        rows, choices = self._reader.read(read)
        known = {row["run_id"] for row in rows}
        unknown = dict.fromkeys(re.findall(r"\w+", RUN_COLUMNS))  # the database learns them later
        new = [unknown | running[run_id] for run_id in running if run_id not in known]
        listed = [{**row, **running.get(row["run_id"], {})} for row in rows[:PAGE_ROWS]]
        runs = [*(new if number == 1 and not any(given.values()) else ()), *listed]
        suites = list_campaigns(self._settings, "suite") if any(run["purpose"] == "suite" for run in runs) else ()
        return self._fill(
            "runs.html",
            title="Runs",
            runs=runs,
            given=given,
            choices={
                name: sorted(found) for name in (*CHOICES, "tag") if (found := {row[name] for row in choices} - {None})
            },
            suites={run_id: suite for suite in suites for run_ids in suite.runs.values() for run_id in run_ids},
            number=number,
            has_next=len(rows) > PAGE_ROWS,
            page_link=lambda number: link("/", **given, page=str(number)),
            sql=query.write(number),
        )

    def show_run(self, request: Request) -> Response:
        """Show the report of a run, or the progress of a running one."""
        run_id, baseline = request.query_params.get("run", ""), request.query_params.get("baseline")
        answers = partial(link, "/answers", run=run_id)
        compared = link("/compare", run=run_id, **({"baseline": baseline} if baseline else {}))
        links = {
            "short": [("All changed answers", compared), ("History", link("/history", name=run_id))],
            "comparison": [("All changed answers", compared)],
            "accuracy": [("Wrong answers", answers(score="wrong")), ("Answers that were cut off", answers(cut="1"))],
            "latency": [("Slowest answers", answers(sort="slow")), ("Slowest first tokens", answers(sort="first"))],
            "errors": [("Answers with an error", answers(error="any"))],
            "prompts": [("All answers", answers())],
            "judges": [("Answers without a label", answers(label="none"))],
        }
        running = list_running(self._runs_dir).get(run_id)
        shortcuts = [("Answers", answers(), "Enter")]
        if running:
            subtitle = f"{running['model']}, run {run_id}"
            document = Document(running["name"], subtitle, "running", ["The report follows when the run ends."], [], [])
            page = self._fill_document(document, shortcuts=shortcuts, links=links, live=run_id)
            return HTMLResponse(page)

        def compose(connection: Connection) -> Document:
            self._find_run(connection, run_id)
            return compose_page(connection, self._settings, "run", run_id, baseline)

        name = ("History", link("/history", name=run_id), "h")
        return self._show_document(request, compose, shortcuts=[*shortcuts, name], links=links)

    def show_suite(self, request: Request) -> Response:
        """Show a suite: its decision, or the runs until then."""
        name = request.query_params.get("id", "")
        plan = next((one for one in list_campaigns(self._settings, "suite") if one.campaign_id == name), None)
        if plan is None:
            raise SpecError(f"Suite {name!r} is not in the data folder. hint: go back to the list of runs.")
        return HTMLResponse(self._fill_document(compose_suite(plan)))

    def _report(self, kind: Kind, find: Callable[[QueryParams], Any]) -> Callable[[Request], Response]:
        """Return the page of a report, whose name `find` returns."""

        def show(request: Request) -> Response:
            name = find(request.query_params)
            return self._show_document(request, lambda found: compose_page(found, self._settings, kind, name, None))

        return show

    def show_answers(self, request: Request) -> Response:
        """Show the answers of a run, or the pairs of answers of two runs."""
        filters = Filters.read(request.query_params)

        def read(connection: Connection) -> dict[str, Any]:
            found = self._read_list(connection, request, filters)
            query = found["query"]
            return {**found, "rows": query.read(connection, filters.number), "total": query.count(connection)}

        found = self._reader.read(read)
        rows, query, baseline = found["rows"], found["query"], found["baseline"]
        run = found["choices"].run
        hidden = self._name_runs(found)
        return self._fill(
            "answers.html",
            title="Changed answers" if baseline else "Answers",
            filters=filters,
            hidden=hidden,
            changes=[(name, name) for name in CHANGES] if baseline else (),
            up=link("/run", run=run["run_id"]),
            row_link=self._link_rows(found, filters),
            page_link=lambda number: request.url.path + filters.link(hidden, page=str(number)),
            has_next=len(rows) > PAGE_ROWS,
            sql=query.write(filters.number, TEXTS),
            **{**found, "rows": rows[:PAGE_ROWS]},
        )

    def show_answer(self, request: Request) -> Response:
        """Show one answer, or a pair side by side."""
        filters = Filters.read(request.query_params)
        request_id = request.query_params.get("request", "")

        def read(connection: Connection) -> dict[str, Any]:
            found = self._read_list(connection, request, filters)
            place = found["query"].find(connection, request_id)
            answer = read_answer(connection, found["choices"].run["run_id"], request_id)
            if answer is None:
                raise SpecError(f"The run has no answer {request_id!r}. hint: go back to its list.")
            other, paired = None, place
            if found["baseline"] and not place:  # its list does not have it (any more)
                every = Filters(scorer=filters.scorer, change="all")
                paired = self._read_list(connection, request, every)["query"].find(connection, request_id)
            if theirs := paired.get("baseline_request_id"):
                other = read_answer(connection, found["baseline"]["run_id"], theirs)
            place = {**dict.fromkeys(("place", "before", "after")), **place}
            sides = found["choices"].run["run_id"], found["baseline"]["run_id"] if other else ""
            autopsy = " ".join(map(say_autopsy, read_autopsies(connection, *sides, request_id))) if other else ""
            return {**found, "place": place, "answer": answer, "other": other, "autopsy": autopsy}

        found = self._reader.read(read)
        answer, other, run = found["answer"], found["other"], found["choices"].run
        for row in filter(None, (answer, other)):
            row["facts"] = _list_facts(row)
        answer["messages"] = list_messages(answer)
        answer["exhibits"] = show_media(answer["media_json"], self._settings.run_dir(run["run_id"]), MEDIA_PIXELS)
        texts = mark_changes(other["text"], answer["text"]) if other else (answer["text"],)
        up = "/compare" if found["baseline"] else "/answers"
        return self._fill(
            "answer.html",
            title=f"Row {show_value(answer['source_row'])}"
            + (f", repeat {answer['repeat_index']}" * bool(answer["repeat_index"])),
            texts=texts,
            up=up + filters.link(self._name_runs(found)),
            row_link=self._link_rows(found, filters),
            sql=_write_answer(run["run_id"], request_id),
            **found,
        )

    async def label(self, request: Request) -> Response:
        """Store a label, and go to the next answer of the list, which the label may change."""
        body = (await request.body()).decode("utf-8", "replace")
        form = {name: values[0] for name, values in parse_qs(body, True).items()}
        return await run_in_threadpool(self._label, request, form)

    def _label(self, request: Request, form: Mapping[str, str]) -> Response:
        filters, request_id = Filters.read(request.query_params), request.query_params.get("request", "")
        rubric, word = form.get("rubric") or None, form.get("label") or None

        def read(connection: Connection) -> dict[str, Any]:
            found = self._read_list(connection, request, filters)
            place = found["query"].find(connection, request_id)  # empty if an earlier label took it off the list
            run_id = found["choices"].run["run_id"]
            return {**found, "place": place or read_answer(connection, run_id, request_id)}

        found = self._reader.read(read)
        place, run_id = found["place"], found["choices"].run["run_id"]
        if not place or word not in (None, *dict(found["choices"].questions).get(rubric, ())):
            raise SpecError(f"{word!r} is not a label of this answer. hint: choose one of the page's buttons.")
        sample = {name: place[name] for name in ("run_id", "prompt_id", "occurrence", "repeat_index")}
        now = datetime.now(UTC).replace(tzinfo=None)
        row = {**sample, "rubric": rubric, "label": word, "labelled_by": name_user(), "labelled_at": now}
        self._reader.write(lambda connection: add_label(connection, self._settings.run_dir(run_id), row))
        following = place.get("after") if word else None
        return RedirectResponse(self._link_rows(found, filters)(following or request_id), 303)

    def _read_list(self, connection: Connection, request: Request, filters: Filters) -> dict[str, Any]:
        """Read what a list of answers needs: the run's choices and its query, and for pairs the baseline."""
        names = request.query_params.getlist("run")
        is_pairs = request.url.path in ("/compare", "/pair")
        given = request.query_params.get("baseline")
        if is_pairs and not given and len(names) > 1:
            given, *_, names[0] = sorted(names)  # ids begin with their time
        choices = self._find_run(connection, names[0] if names else "")
        scorer, rubric = choices.choose_scorer(filters), choices.questions[0][0]
        run_id = choices.run["run_id"]
        if not is_pairs:
            return {"choices": choices, "query": list_answers(run_id, scorer, rubric, filters), "baseline": None}
        found = given or find_last_baseline(connection, run_id)
        if not found or found == run_id:
            raise SpecError("A comparison needs two runs. hint: mark two runs in the list.")
        baseline = self._find_run(connection, found).run
        pairing, _, scores = read_scores(connection, run_id, baseline["run_id"], choices.run["spec_json"])
        query = list_pairs(run_id, baseline["run_id"], pairing, scorer, rubric, filters)
        sentences = [say_score(scores[scorer])] if scorer in scores else []
        return {"choices": choices, "query": query, "baseline": baseline, "sentences": sentences}

    def _find_run(self, connection: Connection, run_id: str) -> RunChoices:
        if (found := read_choices(connection, run_id)) is None:
            raise SpecError(f"Run {run_id!r} is not in the database. hint: choose one from the list of runs.")
        return found

    def _name_runs(self, found: Mapping[str, Any]) -> dict[str, str]:
        named = {"run": found["choices"].run["run_id"]}
        return named | ({"baseline": found["baseline"]["run_id"]} if found["baseline"] else {})

    def _link_rows(self, found: Mapping[str, Any], filters: Filters) -> Callable[[str], str]:
        path = "/pair" if found["baseline"] else "/answer"
        return lambda request_id: path + filters.link({**self._name_runs(found), "request": request_id})

    def _show_document(self, request: Request, compose: Callable[[Connection], Document], **values: Any) -> Response:
        """Show a report, which is composed again if the database has changed."""
        path = self._settings.database_path
        files = [file.stat() for file in (path, path.with_name(f"{path.name}.wal")) if file.exists()]
        key = (str(request.url), *((found.st_ino, found.st_mtime_ns, found.st_size) for found in files))
        if key not in self._kept:
            document = self._reader.read(compose, DOCUMENT_LIMIT_S)
            self._kept[key] = self._fill_document(document, **values)
            while len(self._kept) > KEPT_PAGES:
                self._kept.pop(next(iter(self._kept)), None)
        return HTMLResponse(self._kept[key])

    def _fill_document(self, document: Document, **values: Any) -> str:
        template = self._templates.get_template("document.html")
        return _clean(fill_page(template, document, **{"shortcuts": (), "links": {}, "live": None, **values}))

    def _fill(self, template: str, status: int = 200, **values: Any) -> HTMLResponse:
        given = {"sentences": (), "baseline": None, **values}
        return HTMLResponse(_clean(self._templates.get_template(template).render(given)), status)


def list_running(runs_dir: Path) -> dict[str, Row]:
    """Return the progress of each run that a process works on, by its id, newest first.

    It is read from the runs' folders: the database learns of them later.
    """
    found = {}
    for path in sorted(runs_dir.glob(f"*/{MANIFEST_NAME}"), reverse=True):
        if not is_worked_on(path.parent):
            continue
        try:
            run = read_manifest(path.parent)
        except AssaylineError:
            continue
        if run.state == "running":
            found[run.run_id] = {
                "run_id": run.run_id,
                "name": run.name,
                "model": run.model,
                "prompt_set": run.prompt_set,
                "state": run.state,
                "started_at": datetime.fromtimestamp(run.clock.started_wall_s, UTC),
                "answered": count_table(path.parent, "completions"),
                "expected_requests": run.prompts.requests if run.prompts else None,
            }
    return found


def mark_changes(before: str | None, after: str | None) -> tuple[Any, Any]:
    """Split two texts into pieces (is it changed, text), word by word; long texts are compared line by line."""
    texts = before or "", after or ""
    words = [re.findall(r"\w+|\s+|[^\w\s]", text) for text in texts]
    if sum(map(len, words)) > MOST_WORDS:
        words = [text.splitlines(keepends=True) for text in texts]
    if sum(map(len, words)) > MOST_WORDS:
        return texts
    pieces: tuple[list[tuple[bool, str]], list[tuple[bool, str]]] = ([], [])
    for kind, *ends in difflib.SequenceMatcher(None, words[0], words[1], autojunk=False).get_opcodes():
        for side, (start, end) in enumerate((ends[:2], ends[2:])):
            if start < end:
                pieces[side].append((kind != "equal", "".join(words[side][start:end])))
    return pieces


def read_markdown(text: str) -> Markup:
    """Render an answer's Markdown: its HTML stays text, and images stay links, so that nothing is loaded."""
    parser = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")
    return Markup(parser.render(text[:MOST_MARKDOWN]))


def _link_run(text: str) -> str:
    """Link a run id in a table of a report."""
    return Markup('<a href="{}">{}</a>').format(link("/run", run=text), text) if RUN_ID.fullmatch(text) else text


def _list_facts(row: Row) -> list[tuple[str, str]]:
    times = [(name, show_seconds(row[key])) for name, key in TIMES.items() if row[key] is not None]
    counts = [(name, show_value(row[key])) for name, key in COUNTS.items() if row[key]]
    return [*times, *counts, ("finish reason", show_known(row["finish_reason"])), ("request", row["request_id"][:12])]


def _write_answer(run_id: str, request_id: str) -> str:
    text = "from main.request\njoin main.answer using (run_id, request_id)\nwhere run_id = $run and request_id = $id"
    return write_values(text, {"run": run_id, "id": request_id})


def _clean(page: str) -> str:
    """Replace what HTML and UTF-8 cannot represent."""
    return page.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


@cache
def _read_own(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")
