"""Import of result files: each run becomes a folder of part files, which is loaded as `assayline db rebuild` loads it.

The id of a run ends with the digest of its files, so a second import adds nothing but what a killed one lacks. The
folder is written aside and renamed when it is complete, so a damaged file leaves nothing.
"""

import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from assayline import __version__
from assayline.clock import UNKNOWN, RunClock
from assayline.digests import digest_file, digest_json
from assayline.errors import AssaylineError, PromptError, SpecError
from assayline.files import MAKE_ROOM, check_data_folder, storing, write_json
from assayline.imports import KINDS, eee, inspect
from assayline.imports.guidellm import read_report
from assayline.imports.kinds import find_files
from assayline.imports.lm_eval import read_results
from assayline.imports.openai_batch import read_batch
from assayline.imports.rows import ZONE, Imported, Rows, check_rows, describe_scorer
from assayline.imports.totals import read_stage, read_values
from assayline.imports.vllm_bench import read_benchmark
from assayline.records import Completion, Prompt, Request
from assayline.run.rebuild import rebuild_run
from assayline.run.tag import tag_run
from assayline.settings import Settings
from assayline.spec.criteria import GateSpec
from assayline.store.database import TABLE_VERSION, Connection, read_rows
from assayline.store.locks import lock_run
from assayline.store.manifest import (
    IMPORTED,
    IMPORTS,
    SPEC_NAME,
    Manifest,
    PromptCounts,
    change_tags,
    find_run,
    read_manifest,
    read_spec_json,
    slugify,
    write_manifest,
)
from assayline.store.metrics import ensure_metrics
from assayline.store.parts import PartWriter
from assayline.store.score_files import IMPORTED_SCORERS, IMPORTED_SCORES, HarnessScore
from assayline.store.thread import DatabaseThread

ASIDE = ".import-"
ROWS_PER_PART = 20_000
DIGEST_DIGITS = 12
FIGURES = (
    "accuracy",
    "output_tokens_per_s",
    "total_tokens_per_s",
    "requests_per_s",
    "ttft_p50_s",
    "batch_latency_p50_s",
)
READERS: dict[str, Callable[[Path], Iterator[Imported]]] = {
    "lm-eval": read_results,
    "vllm-bench": read_benchmark,
    "guidellm": read_report,
    "inspect": inspect.read_log,
    "eee": eee.read_log,
    "inference-perf": read_stage,
    "values": read_values,
}
"""Reader of a file by kind. A batch alone has several files."""
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
    figures: dict[str, tuple[float, str]] = field(default_factory=dict)
    """Value and unit of its most important metrics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Names given by the user; None keeps those of the file."""

    model: str | None = None
    name: str | None = None
    """Name of the run and of its prompt set."""
    machine: str | None = None
    """Speeds of runs that name the same machine are compared."""
    tags: Sequence[str] = ()


NO_NAMES = Names()


def import_files(
    settings: Settings,
    kind: str | None,
    paths: list[Path],
    names: Names = NO_NAMES,
    zone: tzinfo = UTC,
    show: Callable[[int], object] = lambda rows: None,
    say: Callable[[str], object] = lambda sentence: None,
) -> Iterator[Outcome]:
    """Import the runs in files, one after another, of a kind or, if it is None, of the kinds found.

    Times without an offset are those of `zone`. `show` receives the number of prompts read so far, and `say` a
    sentence about files of no kind. Raises SpecError for a missing file, PromptError for one that cannot be read, and
    StoreError.
    """
    for path in paths:
        if not path.exists():
            raise SpecError(f"{path} does not exist. hint: pass files or folders{f': {KINDS[kind]}' if kind else ''}.")
    check_data_folder(settings.data_dir)
    ZONE.set(zone)
    for found, files in find_files(paths, kind, say):
        for imported in read_files(found, files):
            imported.model, imported.prompt_set = names.model or imported.model, names.name or imported.prompt_set
            with reading(str(imported.files[0]), found):
                imported.check()
            yield _import_run(settings, imported, names, show)


def read_files(kind: str, files: list[Path]) -> Iterator[Imported]:
    with reading(", ".join(map(str, files)), kind):
        yield from read_batch(files) if kind == "openai-batch" else READERS[kind](files[0])


@contextmanager
def reading(name: str, kind: str) -> Iterator[None]:
    """Convert the errors of a reader, which may be any for a foreign file, to a PromptError."""
    try:
        yield
    except AssaylineError:
        raise
    except Exception as error:
        reason = (
            f"no {error}; is it of another version"
            if isinstance(error, KeyError)
            else str(error) or type(error).__name__
        )
        what, _, hint = reason.partition(" hint: ")
        raise PromptError(
            f"{name} cannot be imported as {kind}: {what.rstrip('.')}. Nothing of this run, or of files after it, was "
            f"stored. hint: {hint or f'pass {KINDS[kind]}'}."
        ) from error


def _import_run(settings: Settings, imported: Imported, names: Names, show: Callable[[int], object]) -> Outcome:
    runs_dir = settings.data_dir / "runs"
    content = [*map(digest_file, imported.files)] if imported.content is None else [imported.content]
    digest = digest_json([imported.tool, imported.part, *content])[:DIGEST_DIGITS]
    for known in runs_dir.glob(f"*-{digest}"):
        run, notes = _rename(known, names)
        is_missing, figures = _load(settings, known, is_changed=bool(notes))
        if names.tags:
            run = tag_run(settings, run.run_id, names.tags)
        return Outcome(run, is_missing and not notes, notes, figures)
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
        run = replace(
            _make_manifest(imported, spec, digest, counts), machine=names.machine, tags=change_tags((), names.tags)
        )
        write_json(run_dir / SPEC_NAME, spec, MAKE_ROOM)
        write_manifest(run_dir, run)
        place = run_dir.rename(runs_dir / run.run_id)
    _, figures = _load(settings, place)  # if it fails, the same import completes it
    if imported.ended:
        imported.notes.append(f"It is partial, and no gate passes it: {imported.ended}.")
    return Outcome(run, True, imported.notes, figures)


def rename_run(settings: Settings, run_id: str, names: Names) -> Outcome:
    """Give an imported run other names, which decide the runs that it is compared with.

    Raises SpecError for an unknown run and for one that was not imported, and StoreError.
    """
    run_dir = find_run(settings.data_dir / "runs", run_id)
    if read_manifest(run_dir).purpose not in IMPORTS:
        raise SpecError(f"Run {run_id} was not imported, so its spec names it. hint: rename imported runs.")
    run, notes = _rename(run_dir, names)
    return Outcome(run, False, notes, _load(settings, run_dir, is_changed=bool(notes))[1])


def _rename(run_dir: Path, names: Names) -> tuple[Manifest, list[str]]:
    """Store the names that differ from those of a run; return it, and a sentence about each."""
    run, spec = read_manifest(run_dir), json.loads(read_spec_json(run_dir))
    wanted: dict[str, Any] = {"model": names.model, "name": names.name, "machine": names.machine}
    changed = {what: name for what, name in wanted.items() if name not in (None, getattr(run, what))}
    if changed:
        spec |= {what: name for what, name in changed.items() if what != "machine"}
        spec["prompts"]["name"] = spec["name"]
        run = replace(run, **changed, prompt_set=spec["name"], spec_hash=digest_json(spec), config_id=_identify(spec))
        write_json(run_dir / SPEC_NAME, spec, MAKE_ROOM)
        write_manifest(run_dir, run)
    return run, [f"Its {what} is now {name}." for what, name in changed.items()]


def _load(settings: Settings, run_dir: Path, *, is_changed: bool = False) -> tuple[bool, dict[str, tuple[float, str]]]:
    """Load a run and its metrics into the database, unless it has them; return whether it lacked it, and figures."""

    def read(connection: Connection) -> bool:
        return not connection.execute("select 1 from runs where run_id = ?", [run_dir.name]).fetchall()

    database = DatabaseThread(settings)
    if (is_missing := database.run(read)) or is_changed:  # an import was killed, or the database was lost
        rebuild_run(run_dir, settings.database_path, settings.database_wait_s)

    def measure(connection: Connection) -> dict[str, tuple[float, str]]:
        ensure_metrics(connection, [run_dir.name])
        rows = read_rows(connection, "select metric, value, unit from run_metric where run_id = ?", run_dir.name)
        known = {row["metric"]: (row["value"], row["unit"]) for row in rows if row["value"] is not None}
        return {name: known[name] for name in FIGURES if name in known}

    return is_missing, database.run(measure)


def _identify(spec: dict[str, Any]) -> str:
    source = spec["prompts"]["source"]
    decides = [source["tool"], source["version"], spec["model"], spec["name"], source["settings"], spec.get("load")]
    return digest_json(decides)


def _describe(imported: Imported, digest: str, has_times: bool) -> dict[str, Any]:
    """Return what stands for the spec of the run: the facts of the file, in the fields of a spec."""
    tool = {"tool": imported.tool, "version": imported.version, "settings": imported.settings}
    totals = () if imported.has_rows else imported.totals
    stated = {name for one in totals for name in (one.metric, f"{one.metric.removesuffix('_s')}_{one.statistic}_s")}
    limits = {name: limit for name, limit in GateSpec().max_slowdown.items() if name in stated}
    return {
        "name": imported.prompt_set, "model": imported.model, "scorers": [],
        "prompts": {"name": imported.prompt_set, "source": {"kind": IMPORTED, **tool}},
        "imported": {
            "digest": digest, "files": [file.name for file in imported.files], "part": imported.part,
            **({} if imported.has_rows else {"totals": [one._asdict() for one in totals]}),
        },
        **({"load": imported.load} if imported.load else {}),
        **({} if has_times else {"gate": {"max_slowdown": limits}}),
    }  # fmt: skip


def _make_manifest(imported: Imported, spec: dict[str, Any], digest: str, counts: PromptCounts) -> Manifest:
    started_s = imported.files[0].stat().st_mtime if imported.started_s is None else imported.started_s
    return Manifest(
        run_id=f"{datetime.fromtimestamp(started_s, UTC):%Y%m%d-%H%M%S}-{slugify(imported.prompt_set)}-{digest}",
        name=imported.prompt_set,
        spec_hash=digest_json(spec),
        config_id=_identify(spec),
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
        purpose="import" if imported.has_rows else "totals",
        state="cancelled" if imported.ended else IMPORTED,
        message=f"It is partial: {imported.ended}." if imported.ended else None,
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
        for row in _read_rows(imported) if imported.has_rows else ():
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
    stated = () if imported.has_rows else [one.detail for one in imported.totals if one.metric == "accuracy"]
    scorers = {name: describe_scorer(imported.tool, imported.version, name) for name in stated if name}
    write_json(run_dir / IMPORTED_SCORERS, imported.scorers or scorers, MAKE_ROOM)
    asked = max(requests, imported.counts.get("requests") or 0)
    return PromptCounts(prompts, duplicates, asked, failed_requests=0, shards=0), has_times


def _read_rows(imported: Imported) -> Rows:
    """Yield the checked rows. An error of the file is a PromptError, one of the disk is not."""
    with reading(str(imported.files[0]), imported.tool):
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
