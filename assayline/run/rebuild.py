"""Rebuild a run's rows in the database from its manifest and part files.

For a database that was lost or damaged, has another version, or was not available when the run ended. Only rows that
are loaded again in the same transaction are deleted; an unusable file is renamed.
"""

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from assayline.errors import DamagedPartsError, StoreError
from assayline.files import storing
from assayline.run.evaluation import conclude_run
from assayline.spec.criteria import Scorer
from assayline.store.database import TABLE_VERSION, Connection, connect, transaction
from assayline.store.decisions import restore_decisions
from assayline.store.ingest import RunOutcome, read_outcomes, reload_parts, rescue_parts
from assayline.store.locks import holding
from assayline.store.manifest import (
    IMPORTS,
    Manifest,
    read_manifest,
    read_run_scorers,
    read_spec_json,
    write_manifest,
)
from assayline.store.parts import list_parts, set_part_aside
from assayline.store.runs import save_run
from assayline.store.score_files import read_function_scores, read_harness_scores
from assayline.store.scoring import score_run, score_runs


@dataclass(slots=True)
class Rebuilt:
    """Result of rebuilding one run."""

    manifest: Manifest
    rows: dict[str, int] = field(default_factory=dict)
    """Number of rows by table; empty for a run that prepared no requests."""
    scores: dict[str, int] = field(default_factory=dict)
    """Number of scores by scorer, for scorers of the spec and those added later."""
    missing: int = 0
    """Number of requests without an answer."""
    set_aside: list[Path] = field(default_factory=list)
    """Damaged parts, under their new names."""
    rescued: list[Path] = field(default_factory=list)
    """Damaged parts whose rows the database still had, written again."""


def set_database_aside(path: Path) -> Path:
    """Rename a database and its write-ahead log; return the new path. Raises StoreError."""
    aside = path.with_name(f"{path.name}.aside-{datetime.now(UTC):%Y%m%d-%H%M%S}")
    with storing(f"{path} cannot be renamed to {aside.name}", "fix the folder's permissions."):
        path.rename(aside)
        journal = path.with_name(f"{path.name}.wal")
        if journal.exists():
            journal.rename(aside.with_name(f"{aside.name}.wal"))
    return aside


def rebuild_run(run_dir: Path, database: Path, wait_s: float, set_aside: bool = False) -> Rebuilt:
    """Load a run again; with `set_aside`, rename damaged parts and load the others. Raises as `rebuild_runs`."""
    [rebuilt] = rebuild_runs([run_dir], database, wait_s, set_aside)
    return rebuilt


def rebuild_runs(run_dirs: Sequence[Path], database: Path, wait_s: float, set_aside: bool = False) -> list[Rebuilt]:
    """Load runs again in one transaction; with `set_aside`, rename damaged parts of a single run and load the others.

    Their metrics are computed when they are next read. Raises StoreError if one of them is in use, its manifest cannot
    be read or its parts have other columns; and DamagedPartsError.
    """
    given = [_Given(run_dir, Rebuilt(read_manifest(run_dir)), read_spec_json(run_dir)) for run_dir in run_dirs]
    with ExitStack() as held, connect(database, wait_s) as connection:
        for run_dir, rebuilt, _ in given:
            if rebuilt.manifest.table_version != TABLE_VERSION:
                raise StoreError(
                    f"The parts of run {run_dir.name} have tables of version {rebuilt.manifest.table_version}; version "
                    f"{TABLE_VERSION} is needed. hint: load them with assayline {rebuilt.manifest.assayline_version}, "
                    "which wrote them."
                )
            held.enter_context(holding(run_dir, "rebuild it after that process exits."))
        try:
            _reload(connection, given)
        except DamagedPartsError as error:
            if not set_aside or len(given) > 1:
                raise
            _set_parts_aside(connection, given[0].run_dir, list(error.parts), given[0].rebuilt)
            _reload(connection, given)
    return [one.rebuilt for one in given]


class _Given(NamedTuple):
    run_dir: Path
    rebuilt: Rebuilt
    spec_json: str


def _reload(connection: Connection, every: Sequence[_Given]) -> None:
    """Load runs in one transaction. A run enters the database when its first prompt is rendered."""
    given = {
        one.run_dir.name: one
        for one in every
        if one.rebuilt.manifest.template_id is not None or one.rebuilt.manifest.purpose in IMPORTS
    }
    after: dict[str, Manifest] = {}
    alike: dict[str, tuple[list[Scorer], list[str]]] = {}
    with transaction(connection):
        rows = reload_parts(connection, {run_id: one.run_dir for run_id, one in given.items()})
        for one in given.values():
            save_run(connection, one.rebuilt.manifest, one.spec_json)
        outcomes = read_outcomes(connection, list(given))
        for run_id, (run_dir, rebuilt, spec_json) in given.items():
            spec, before = json.loads(spec_json), rebuilt.manifest
            after[run_id] = _judge_again(before, outcomes[run_id], spec.get("max_error_share", 1.0))
            if after[run_id] != before:
                save_run(connection, after[run_id], spec_json)
            scorers, judged = read_run_scorers(run_dir, spec), read_harness_scores(run_dir)
            if (functions := read_function_scores(run_dir)) or judged.scorers:
                rebuilt.scores = score_run(connection, run_id, scorers, judged=judged, functions=functions)
            else:
                alike.setdefault(repr(scorers), (scorers, []))[1].append(run_id)
            restore_decisions(connection, run_dir)
        for scorers, run_ids in alike.values():
            for run_id, scores in score_runs(connection, run_ids, scorers).items():
                given[run_id].rebuilt.scores = scores
    for run_id, (run_dir, rebuilt, _) in given.items():
        if after[run_id] != rebuilt.manifest:
            write_manifest(run_dir, after[run_id])
        rebuilt.manifest, rebuilt.rows = after[run_id], rows[run_id]
        rebuilt.missing = outcomes[run_id].broken.get("missing_requests", 0)


def _judge_again(run: Manifest, outcome: RunOutcome, max_error_share: float) -> Manifest:
    """Return the manifest with its state corrected, judged as at the end of a run. An unfinished run stays one."""
    if run.purpose in IMPORTS:
        return run
    if run.prompts is None:
        if run.state != "completed":
            return run
        message = f"Run {run.run_id} lost part files with requests or answers after it was completed."
        return replace(run, state="failed", message=message)
    concluded = conclude_run(run, outcome, max_error_share)
    if "completed" not in (run.state, concluded.state):
        return run
    return replace(concluded, finished_at=run.finished_at or concluded.finished_at)


def _set_parts_aside(connection: Connection, run_dir: Path, damaged: list[Path], rebuilt: Rebuilt) -> None:
    """Rename damaged parts and write their rows again if the database has them. Lost prompts must be prepared again."""
    for part in damaged:
        rebuilt.set_aside.append(set_part_aside(part))
    run = rebuilt.manifest
    for table in sorted({part.parent.name for part in damaged}):
        parts = [part for part in damaged if part.parent.name == table]
        is_prepared = {part.name.startswith("prepare-") for part in parts}
        good = list_parts(run_dir, table)
        if len(is_prepared) == 1 and rescue_parts(connection, run.run_id, table, parts, good):
            rebuilt.rescued += parts
        elif table in ("prompts", "requests") or True in is_prepared:
            run = replace(run, prompts=None)
    if run != rebuilt.manifest:
        write_manifest(run_dir, run)
        rebuilt.manifest = run
