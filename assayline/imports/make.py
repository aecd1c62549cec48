"""Import of result files: each run becomes a folder of part files, which is loaded as `assayline db rebuild` loads it.

The id of a run ends with the digest of its files, so a second import adds nothing but what a killed one lacks. The
folder is written aside and renamed when it is complete, so a damaged file leaves nothing.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from assayline import __version__
from assayline.clock import UNKNOWN, RunClock
from assayline.digests import digest_file, digest_json
from assayline.errors import AssaylineError, PromptError, SpecError
from assayline.evaluation.rebuild import rebuild_run
from assayline.files import MAKE_ROOM, check_data_folder, storing, write_json
from assayline.imports import KINDS, eee, inspect
from assayline.imports.guidellm import read_report
from assayline.imports.lm_eval import read_results
from assayline.imports.openai_batch import read_batch
from assayline.imports.rows import Imported, Rows, check_rows
from assayline.imports.vllm_bench import read_benchmark
from assayline.records import Completion, Prompt, Request
from assayline.runs.locks import lock_run
from assayline.runs.manifest import (
    IMPORTED,
    SPEC_NAME,
    Manifest,
    PromptCounts,
    read_manifest,
    slugify,
    write_manifest,
)
from assayline.settings import Settings
from assayline.store.database import TABLE_VERSION, Connection
from assayline.store.metrics import ensure_metrics
from assayline.store.parts import PartWriter
from assayline.store.score_files import IMPORTED_SCORERS, IMPORTED_SCORES, HarnessScore
from assayline.store.thread import DatabaseThread

ASIDE = ".import-"
ROWS_PER_PART = 20_000
DIGEST_DIGITS = 12
READERS: dict[str, tuple[tuple[str, ...], Callable[[Path], Iterator[Imported]]]] = {
    "lm-eval": (("results_*.json",), read_results),
    "vllm-bench": (("*.json",), read_benchmark),
    "guidellm": (("*.json",), read_report),
    "inspect": (("*.eval", "*.json"), inspect.read_log),
    "eee": (("*.json",), eee.read_log),
}
"""Names of the files in a folder, and the reader of one, by kind. A batch alone has several files."""
SCORES = pa.schema([
    ("scorer", pa.string()), ("prompt_id", pa.string()), ("occurrence", pa.int32()), ("value", pa.float64()),
    ("extracted", pa.string()), ("explanation", pa.string()), ("error_kind", pa.string()),
    ("repeat_index", pa.int32()),
])  # fmt: skip


@dataclass(slots=True)
class Outcome:
    """An imported run."""

    run: Manifest
    is_new: bool
    """False if the same files had been imported before."""
    notes: list[str] = field(default_factory=list)
    """Sentences about rows and scores that are left out."""


def import_files(
    settings: Settings,
    kind: str,
    paths: list[Path],
    machine: str | None = None,
    show: Callable[[int], object] = lambda rows: None,
) -> Iterator[Outcome]:
    """Import the runs in files of a kind, one after another. `show` receives the number of prompts read so far.

    With a `machine`, speeds of runs that name the same one are compared.

    Raises SpecError for a missing file, PromptError for one that cannot be read, and StoreError.
    """
    for path in paths:
        if not path.exists():
            raise SpecError(f"{path} does not exist. hint: pass {KINDS[kind]}.")
    check_data_folder(settings.data_dir)
    for imported in _read_files(kind, paths):
        yield _import_run(settings, imported, machine, show)


def _read_files(kind: str, paths: list[Path]) -> Iterator[Imported]:
    if kind == "openai-batch":
        with _reading(", ".join(map(str, paths)), kind):
            yield from read_batch(paths)
        return
    patterns, read = READERS[kind]
    for path in paths:
        found = sorted(file for pattern in patterns for file in path.rglob(pattern)) if path.is_dir() else [path]
        if not found:
            raise PromptError(f"There is no {' or '.join(patterns)} in {path}. hint: pass {KINDS[kind]}.")
        for file in found:
            with _reading(str(file), kind):
                yield from read(file)


@contextmanager
def _reading(name: str, kind: str) -> Iterator[None]:
    """Convert the errors of a reader, which may be any for a foreign file, to a PromptError."""
    try:
        yield
    except AssaylineError:
        raise
    except Exception as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__
        what, _, hint = reason.partition(" hint: ")
        raise PromptError(
            f"{name} cannot be imported as {kind}: {what.rstrip('.')}. Nothing of this run, or of files after it, was "
            f"stored. hint: {hint or f'pass {KINDS[kind]}'}."
        ) from error


def _import_run(settings: Settings, imported: Imported, machine: str | None, show: Callable[[int], object]) -> Outcome:
    runs_dir = settings.data_dir / "runs"
    digest = digest_json([imported.tool, imported.part, *map(digest_file, imported.files)])[:DIGEST_DIGITS]
    for known in runs_dir.glob(f"*-{digest}"):
        run, notes = read_manifest(known), []
        if machine not in (None, run.machine):
            run, notes = replace(run, machine=machine), [f"Its machine is now {machine}."]
            write_manifest(known, run)
        return Outcome(run, _load(settings, known, is_changed=bool(notes)) and not notes, notes)
    runs_dir.mkdir(parents=True, exist_ok=True)
    with storing(f"The run cannot be written to {runs_dir}", MAKE_ROOM), ExitStack() as stack:
        for left in settings.data_dir.glob(f"{ASIDE}*"):
            if lock := lock_run(left):  # its import was killed
                shutil.rmtree(left)
                lock.release()
        aside = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=settings.data_dir, prefix=ASIDE)))
        if lock := lock_run(aside):
            stack.callback(lock.release)
        run_dir = aside / "run"
        run_dir.mkdir()
        counts, has_times = _write_rows(run_dir, imported, show)
        spec = _describe(imported, digest, has_times)
        run = replace(_make_manifest(imported, spec, digest, counts), machine=machine)
        write_json(run_dir / SPEC_NAME, spec, MAKE_ROOM)
        write_manifest(run_dir, run)
        place = run_dir.rename(runs_dir / run.run_id)
    _load(settings, place)  # if it fails, the same import completes it
    return Outcome(run, True, imported.notes)


def _load(settings: Settings, run_dir: Path, *, is_changed: bool = False) -> bool:
    """Load a run and its metrics into the database, unless it has them; return whether it lacked the run."""

    def read(connection: Connection) -> bool:
        return not connection.execute("select 1 from runs where run_id = ?", [run_dir.name]).fetchall()

    database = DatabaseThread(settings)
    if (is_missing := database.run(read)) or is_changed:  # an import was killed, or the database was lost
        rebuild_run(run_dir, settings.database_path, settings.database_wait_s)
    database.run(lambda connection: ensure_metrics(connection, [run_dir.name]))
    return is_missing


def _describe(imported: Imported, digest: str, has_times: bool) -> dict[str, Any]:
    """Return what stands for the spec of the run: the facts of the file, in the fields of a spec."""
    tool = {"tool": imported.tool, "version": imported.version, "settings": imported.settings}
    return {
        "name": imported.prompt_set, "model": imported.model, "scorers": [],
        "prompts": {"name": imported.prompt_set, "source": {"kind": IMPORTED, **tool}},
        "imported": {"digest": digest, "files": [file.name for file in imported.files], "part": imported.part},
        **({"load": imported.load} if imported.load else {}),
        **({} if has_times else {"gate": {"max_slowdown": {}}}),
    }  # fmt: skip


def _make_manifest(imported: Imported, spec: dict[str, Any], digest: str, counts: PromptCounts) -> Manifest:
    started_s = imported.files[0].stat().st_mtime if imported.started_s is None else imported.started_s
    decides = [imported.tool, imported.version, imported.model, imported.prompt_set, imported.settings, imported.load]
    return Manifest(
        run_id=f"{datetime.fromtimestamp(started_s, UTC):%Y%m%d-%H%M%S}-{slugify(imported.prompt_set)}-{digest}",
        name=imported.prompt_set,
        spec_hash=digest_json(spec),
        config_id=digest_json(decides),
        prompt_set=imported.prompt_set,
        model=imported.model,
        model_id=None,
        tokenizer_id=None,
        sampling_id=None,
        inputs=None,
        inputs_digest=None,
        clock=RunClock(started_s, 0.0, UNKNOWN),
        host_name=UNKNOWN,
        assayline_version=__version__,
        table_version=TABLE_VERSION,
        purpose="import",
        state=IMPORTED,
        is_final=True,
        finished_at=(
            None
            if imported.finished_s is None
            else datetime.fromtimestamp(imported.finished_s, UTC).replace(tzinfo=None).isoformat()
        ),
        prompts=counts,
    )


def _write_rows(run_dir: Path, imported: Imported, show: Callable[[int], object]) -> tuple[PromptCounts, bool]:
    """Write the rows to parts. Return their counts, and whether there are times."""
    has_times = False
    prompts = duplicates = requests = 0
    scores: list[HarnessScore] = []
    outside: dict[str, float] = {}
    path = run_dir / IMPORTED_SCORES
    path.parent.mkdir()
    parts = PartWriter(run_dir, "import", ROWS_PER_PART, float("inf"))
    with pq.ParquetWriter(path, SCORES, compression="zstd") as score_file:
        for row in _read_rows(imported):
            if isinstance(row, HarnessScore):
                if not 0 <= row.value <= 1:
                    outside.setdefault(row.scorer, row.value)
                scores.append(row)
                if len(scores) >= ROWS_PER_PART:
                    score_file.write_table(_to_arrow(scores))
                    scores.clear()
                continue
            if isinstance(row, Prompt):
                prompts, duplicates = prompts + 1, duplicates + (row.occurrence > 0)
                if prompts % ROWS_PER_PART == 0:
                    show(prompts)
            requests += isinstance(row, Request)
            has_times |= isinstance(row, Completion) and row.finished_at_s is not None
            parts.add(row)
        score_file.write_table(_to_arrow(scores))
    parts.flush()
    if outside:
        _leave_out(path, outside)
    imported.notes.extend(
        f"{one} has no scores: a value is {value:g}, expected 0 to 1." for one, value in outside.items()
    )
    write_json(run_dir / IMPORTED_SCORERS, imported.scorers, MAKE_ROOM)
    return PromptCounts(prompts, duplicates, requests, failed_requests=0, shards=0), has_times


def _read_rows(imported: Imported) -> Rows:
    """Yield the checked rows. An error of the file is a PromptError, one of the disk is not."""
    with _reading(str(imported.files[0]), imported.tool):
        yield from check_rows(imported)


def _to_arrow(scores: Iterable[HarnessScore]) -> pa.Table:
    return pa.Table.from_pylist([one._asdict() for one in scores], SCORES)


def _leave_out(path: Path, scorers: Iterable[str]) -> None:
    """Write the file of scores again without these scorers."""
    aside = path.with_suffix(".all")
    path.rename(aside)
    with pq.ParquetFile(aside) as given, pq.ParquetWriter(path, SCORES, compression="zstd") as kept:
        for batch in given.iter_batches():
            kept.write_batch(batch.filter(pc.invert(pc.is_in(batch["scorer"], pa.array(list(scorers))))))
    aside.unlink()
