"""Prompt sets that are answers of other runs: which runs, and their rows.

prompts.source.run: latest:NAME  ──►  the id of a completed run  ──►  rows, in a temporary file
"""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from assayline.comparison.baselines import check_run, resolve_baseline
from assayline.errors import SpecError
from assayline.files import MAKE_ROOM, storing
from assayline.prompts.sources.answers import AnswerRow
from assayline.runs.manifest import match_run_id
from assayline.spec.evaluation import EvalSpec
from assayline.spec.prompts import AnswersSource, PairsSource
from assayline.store.answer_rows import check_rows, find_newest_run, read_rows, write_rows
from assayline.store.database import Connection

RunWork = Callable[[Callable[[Connection], Any]], Any]
"""A function that runs work on the database: `DatabaseThread.run` or `read`."""

LATEST, BASELINE = "latest:", "baseline:"


def resolve_runs(spec: EvalSpec, run: RunWork) -> EvalSpec:
    """Return the spec with the ids of the runs whose answers are its prompts; other specs as they are.

    Checks that those runs are completed and have such answers. Raises SpecError or StoreError.
    """
    source = spec.prompts.source
    if not isinstance(source, AnswersSource | PairsSource):
        return spec

    def resolve(connection: Connection) -> AnswersSource | PairsSource:
        named = source.name_runs([_find_completed(connection, given) for given in source.runs])
        if len(set(named.runs)) < len(named.runs):
            raise SpecError(
                f"prompts.source.runs: {' and '.join(source.runs)} are one run, {named.runs[0]}. hint: name two runs."
            )
        check_rows(connection, named)
        return named

    prompts = spec.prompts.model_copy(update={"source": run(resolve)})
    return spec.model_copy(update={"prompts": prompts})


def open_answers(spec: EvalSpec, run: RunWork, folder: Path | None = None) -> Iterator[AnswerRow] | None:
    """Return the rows of a spec whose prompts are stored answers; None for another spec.

    They are in an unnamed file in the folder (None: the system's) until they are read. Raises SpecError or StoreError.
    """
    source = spec.prompts.source
    if not isinstance(source, AnswersSource | PairsSource):
        return None
    file = tempfile.TemporaryFile("w+", encoding="utf-8", dir=folder)  # noqa: SIM115 - read_rows closes it

    def write(connection: Connection) -> None:
        file.seek(0)
        file.truncate()  # if memory ran out, the work is repeated
        write_rows(connection, source, file)

    with storing("The answers of the judged run cannot be written", MAKE_ROOM):
        run(write)
        file.flush()
    return read_rows(file)


def _find_completed(connection: Connection, given: str) -> str:
    """Return the id of a run by an id as on the command line, `baseline:NAME` or `latest:NAME`.

    Raises SpecError unless it is completed.
    """
    if given.startswith(LATEST):
        return find_newest_run(connection, given.removeprefix(LATEST))
    if given.startswith(BASELINE):
        run_id = resolve_baseline(connection, given.removeprefix(BASELINE))
    else:
        known = connection.execute("select run_id from runs order by started_at desc").fetchall()
        run_id = match_run_id(given, [str(run_id) for (run_id,) in known]) or given
    state = check_run(connection, run_id)
    if state != "completed":
        raise SpecError(
            f"prompts.source: run {run_id} is {state}, not completed, so some of its answers may be missing. hint: "
            f"resume it with `assayline evaluate --resume {run_id}`, or name another run."
        )
    return run_id
