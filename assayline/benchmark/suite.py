"""The plan of a suite: its evaluations by model, and a file with the runs that are done.

The file is in the suite's folder. A suite that was interrupted goes on from it.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from assayline.benchmark.configurations import identify_config
from assayline.clock import RunClock
from assayline.digests import digest_json
from assayline.errors import AssaylineError, SpecError
from assayline.files import MAKE_ROOM, write_json
from assayline.runs.manifest import new_run_id, read_manifest, read_spec_json
from assayline.settings import Settings
from assayline.spec.criteria import GateSpec
from assayline.spec.evaluation import EvalSpec
from assayline.spec.file import parse_stored
from assayline.spec.identity import canonical_json
from assayline.spec.suite import SuiteSpec, Tier

PLAN_NAME = "suite.json"


def shorten_model(model: str) -> str:
    """Return the last part of a model's path or hub id."""
    return model.rstrip("/").rsplit("/", 1)[-1]


@dataclass(frozen=True, slots=True)
class Cell:
    """One evaluation with one model."""

    evaluation: str
    model: str
    tier: Tier
    weight: float
    repeats: int
    baseline: str | None
    spec: EvalSpec

    @property
    def key(self) -> str:
        return f"{self.evaluation} · {self.model}"

    @property
    def label(self) -> str:
        """Its name in the UI, with the last part of the model's path."""
        return f"{self.evaluation} · {shorten_model(self.model)}"

    @property
    def measures(self) -> int:
        """Limits on speed and cost that count for a decision, and for which its baseline is measured again."""
        gate = self.spec.gate
        is_counted = self.tier == "critical" and self.baseline is not None
        return len(gate.max_slowdown) + len(gate.max_cost_increase) if is_counted else 0

    @property
    def tests(self) -> int:
        """Tests that can fail a critical cell by chance: of its accuracy, and of its speed and cost as one family."""
        return 1 + bool(self.spec.gate.max_slowdown or self.spec.gate.max_cost_increase)


@dataclass(frozen=True, slots=True)
class SuitePlan:
    """The state of a suite, as stored."""

    suite_id: str
    name: str
    digest: str
    """The digest of its cells: a suite whose specs have changed is another one."""
    runs: dict[str, list[str]] = field(default_factory=dict)
    """Ids of the completed runs by the key of their cell."""
    decision: str | None = None
    """None until it is made."""
    page: dict[str, Any] = field(default_factory=dict)
    """Rows and sentences of the decision's page; empty until it is made."""


def list_cells(suite: SuiteSpec) -> list[Cell]:
    """Read and check every spec. Cells of one model come together, and those with one engine after each other.

    Raises SpecError or ModelError.
    """
    cells: list[Cell] = []
    models: dict[tuple[str, str | None, str], str] = {}
    wanted: list[str | None] = [*suite.models] or [None]
    for model in wanted:
        for one in suite.evaluations:
            spec = one.load(model)
            identify_config(spec, models)
            name, baseline = one.name or spec.name, one.baseline or spec.gate.baseline
            cells.append(Cell(name, spec.model_name, one.tier, one.weight, one.repeats, baseline, spec))
    names = [(cell.evaluation, cell.model) for cell in cells]
    if twice := sorted({name for name, model in names if names.count((name, model)) > 1}):
        raise SpecError(
            f"Two evaluations of suite {suite.name} are called {', '.join(twice)}. hint: set `name` to a different "
            "name for each."
        )
    return list(_sort_by_engine(cells))


def _sort_by_engine(cells: list[Cell]) -> Iterator[Cell]:
    groups: dict[tuple[str, str], list[Cell]] = {}
    for model in dict.fromkeys(cell.model for cell in cells):
        for cell in cells:
            if cell.model == model:
                groups.setdefault((model, cell.spec.engine.model_dump_json()), []).append(cell)
    for group in groups.values():
        yield from group


def digest_cells(cells: list[Cell]) -> str:
    """Return a digest of all that decides what the suite runs and how it counts."""
    return digest_json(
        [[cell.key, cell.tier, cell.weight, cell.repeats, cell.baseline, canonical_json(cell.spec)] for cell in cells]
    )


def suite_dir(settings: Settings, suite_id: str) -> Path:
    """Return the folder of a suite."""
    return settings.data_dir / "suites" / suite_id


def begin_suite(suite: SuiteSpec, cells: list[Cell]) -> SuitePlan:
    """Return the plan of a new suite."""
    return SuitePlan(new_run_id(f"suite {suite.name}", RunClock.start()), suite.name, digest_cells(cells))


def find_undecided(cells: list[Cell], settings: Settings) -> SuitePlan | None:
    """Return the newest suite of these cells that has no decision yet."""
    digest = digest_cells(cells)
    undecided = (plan for plan in list_suites(settings) if plan.digest == digest and plan.decision is None)
    return next(undecided, None)


def find_complete(cells: list[Cell], settings: Settings) -> SuitePlan:
    """Return the newest suite that has all runs of these cells, with any baselines and limits. Raises SpecError."""
    for plan in list_suites(settings):
        if all(count_runs(plan, cell, settings) >= cell.repeats for cell in cells):
            return replace(plan, digest=digest_cells(cells), decision=None, page={})
    raise SpecError(
        "No suite has all runs of these evaluations: their specs or models differ, or runs are missing. hint: leave "
        "out --rejudge to run them."
    )


def count_runs(plan: SuitePlan, cell: Cell, settings: Settings) -> int:
    """Count the runs of a suite that are of this cell's spec, except its gate, and of its model."""
    wanted, config = _without_gate(cell.spec), identify_config(cell.spec, {})
    found = 0
    for run_id in plan.runs.get(cell.key, []):
        with suppress(AssaylineError):  # a run that was deleted, or is of a spec that is not valid any more
            run_dir = settings.run_dir(run_id)
            spec = parse_stored(read_spec_json(run_dir))
            found += _without_gate(spec) == wanted and read_manifest(run_dir).config_id == config
    return found


def _without_gate(spec: EvalSpec) -> str:
    return canonical_json(spec.model_copy(update={"gate": GateSpec()}))


def list_suites(settings: Settings) -> Iterator[SuitePlan]:
    """Yield the stored suites, newest first."""
    for path in sorted((settings.data_dir / "suites").glob(f"*/{PLAN_NAME}"), reverse=True):
        with suppress(OSError, ValueError, TypeError):  # of another version, or damaged: its runs are stored anyway
            yield SuitePlan(**json.loads(path.read_text(encoding="utf-8")))


def write_suite(plan: SuitePlan, settings: Settings) -> None:
    """Write the plan to its file. Raises StoreError."""
    write_json(suite_dir(settings, plan.suite_id) / PLAN_NAME, asdict(plan), MAKE_ROOM)
