"""Delete runs and campaigns: their rows in the database, then their folders.

The rows of all runs go in one transaction, the folders one after another by a rename. After a kill, the same call
deletes what is left. A run goes with the runs of its judges, and a campaign with all its runs.
"""

import json
import shutil
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from assayline.benchmark.campaign import Kind, campaign_dir, find_campaign, list_campaigns
from assayline.comparison.baselines import list_pins
from assayline.errors import StoreError
from assayline.files import measure_folder, storing
from assayline.settings import Settings
from assayline.store.database import Connection, read_rows, transaction
from assayline.store.locks import holding, is_worked_on, name_holder
from assayline.store.manifest import Manifest, list_manifests, match_run_id, read_spec_json, unknown_run
from assayline.store.runs import forget_runs
from assayline.store.thread import DatabaseThread

KINDS: tuple[Kind, ...] = ("benchmark", "suite", "gate", "bisection")
ASIDE = ".deleted-"
"""Beginning of the names of folders in the data folder that are being deleted."""


@dataclass(frozen=True, slots=True)
class Deletion:
    """A run or a campaign to delete, with all that goes with it."""

    kind: str
    """run, benchmark, suite, gate or bisection."""
    name: str
    """Its id."""
    run_ids: list[str]
    folders: list[Path]
    """Its runs' folders, then its own."""
    size_bytes: int
    obstacle: str | None = None
    """Why it is kept, as a clause; None if it may be deleted."""


def plan_deletions(settings: Settings, names: Sequence[str], before_s: float | None = None) -> list[Deletion]:
    """Return what the ids of runs and campaigns name, or all that began before a Unix time, oldest first.

    A run's id may be the beginning of one, and may be that of a run without a folder. Raises SpecError for an unknown
    one, and StoreError.
    """
    runs = {run.run_id: run for run in reversed(list_manifests(settings.data_dir / "runs"))}
    stored, pins = DatabaseThread(settings).run(_read_rows) if settings.database_path.exists() else ([], {})
    known = {*runs, *stored}
    reads = {run_id: read for run_id in runs if (read := known & _read_sources(settings.run_dir(run_id)))}
    plan = _Plan(settings, runs, known, pins, reads)
    found = [plan.find(name) for name in dict.fromkeys(names)]
    if before_s is not None:
        alone = (one.run_id for one in runs.values() if plan.stands_alone(one))
        every = (plan.find(name) for name in (*plan.list_campaigns(), *alone))
        found = [one for one in every if plan.began_before(one, before_s)]
    going: set[str] = set()
    while going != (going := {run_id for one in found if not one.obstacle for run_id in one.run_ids}):
        found = [replace(one, obstacle=plan.find_obstacle(one, going)) for one in found]
    return found


def delete(settings: Settings, deletions: Iterable[Deletion]) -> None:
    """Delete what has no obstacle. Raises StoreError, also for a run that another process works on."""
    for left in settings.data_dir.glob(f"{ASIDE}*"):
        shutil.rmtree(left, ignore_errors=True)  # its deletion was killed
    for one in deletions:
        if one.obstacle is None:
            _delete(settings, one)


def _read_rows(connection: Connection) -> tuple[list[str], dict[str, str]]:
    stored = [row["run_id"] for row in read_rows(connection, "select run_id from runs order by started_at desc")]
    return stored, {pin.run_id: pin.baseline for pin in list_pins(connection)}


def _read_sources(run_dir: Path) -> set[str]:
    """Return the runs whose answers are the prompts of a run."""
    with suppress(StoreError):
        source = json.loads(read_spec_json(run_dir))["prompts"]["source"]
        return {"run": {source.get("run")}, "pairs": {*source.get("runs", ())}}.get(source["kind"], set())
    return set()


@dataclass(frozen=True, slots=True)
class _Plan:
    settings: Settings
    runs: dict[str, Manifest]
    """Oldest first."""
    known: set[str]
    """Ids of all runs with a folder or rows."""
    pins: dict[str, str]
    """Baselines by run."""
    reads: dict[str, set[str]]
    """The runs whose answers a run reads."""

    def find(self, name: str) -> Deletion:
        """Return what an id names. Raises SpecError."""
        for kind in KINDS:
            if name and (folder := campaign_dir(self.settings, kind, name)).is_dir():
                campaign = find_campaign(self.settings, kind, name)
                kept = {one for ids in campaign.runs.values() for one in ids} if campaign else set()
                own = [run.run_id for run in self.runs.values() if name in (run.benchmark_id, run.suite_id)]
                run_ids = [one for one in {*kept, *own} if one in self.known]
                return self._make(kind, name, run_ids, folder)
        if name and (aside := self.settings.data_dir / f"{ASIDE}{name}").is_dir():
            return Deletion("run", name, [], [], measure_folder(aside))
        ids = sorted(self.known, reverse=True)
        if (run_id := match_run_id(name, ids)) is None:
            raise unknown_run(name, ids, str(self.settings.data_dir))
        return self._make("run", run_id, [run_id], None)

    def list_campaigns(self) -> list[str]:
        return sorted(one.campaign_id for kind in KINDS for one in list_campaigns(self.settings, kind))

    def stands_alone(self, run: Manifest) -> bool:
        """Return whether a run is neither of a campaign nor of a judge of another run."""
        return self._find_campaign(run) is None and not (run.purpose == "judge" and run.run_id in self.reads)

    def began_before(self, one: Deletion, before_s: float) -> bool:
        began_s = [run.clock.started_wall_s for run_id in one.run_ids if (run := self.runs.get(run_id))]
        return bool(began_s) and max(began_s) < before_s

    def _make(self, kind: str, name: str, run_ids: list[str], folder: Path | None) -> Deletion:
        whole = self._add_judges(run_ids)
        runs_dir = self.settings.data_dir / "runs"
        folders = [path for one in reversed(whole) if (path := runs_dir / one).is_dir()]
        folders += [folder] if folder else []
        return Deletion(kind, name, whole, folders, sum(map(measure_folder, folders)))

    def _add_judges(self, run_ids: list[str]) -> list[str]:
        """Return the runs and those of their judges, which read the answers of one run alone."""
        judges = [one for one, read in self.reads.items() if self.runs[one].purpose == "judge" and read <= {*run_ids}]
        return list(dict.fromkeys([*run_ids, *judges]))

    def find_obstacle(self, deletion: Deletion, going: set[str]) -> str | None:
        """Return why it is kept, where the runs `going` are deleted."""
        for one in deletion.run_ids:
            if one in self.pins:
                return f"{'it' if one == deletion.name else f'run {one}'} is the baseline {self.pins[one]}"
        for folder in deletion.folders:
            if is_worked_on(folder):
                return f"{folder.name} is in use by {name_holder(folder)}"
        for one, read in self.reads.items():
            if one not in going and read & {*deletion.run_ids}:
                return f"run {one} reads its answers"
        run = self.runs.get(deletion.name)
        if run and (campaign := self._find_campaign(run)):
            return f"it belongs to {campaign}, which is deleted whole"
        if run and run.purpose == "judge" and run.run_id in self.reads:
            return f"it judges run {min(self.reads[run.run_id])}, and is deleted with it"
        return None

    def _find_campaign(self, run: Manifest) -> str | None:
        for name in filter(None, (run.suite_id, run.benchmark_id)):
            for kind in KINDS:
                if campaign_dir(self.settings, kind, name).is_dir():
                    return f"{kind} {name}"
        return None


def _delete(settings: Settings, one: Deletion) -> None:
    with ExitStack() as held:
        for folder in one.folders:
            held.enter_context(holding(folder, "wait for its end.", f"{one.kind.capitalize()} {one.name}"))

        def forget(connection: Connection) -> None:
            with transaction(connection):
                forget_runs(connection, one.run_ids)

        if settings.database_path.exists():
            DatabaseThread(settings).run(forget)
        for folder in one.folders:
            with storing(f"{folder} cannot be deleted", "fix the permissions, and repeat the command."):
                aside = folder.rename(settings.data_dir / f"{ASIDE}{folder.name}")
                shutil.rmtree(aside)
