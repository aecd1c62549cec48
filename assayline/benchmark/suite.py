"""The plan of a suite: its evaluations by model, and a file with the runs that are done.

The file is in the suite's folder. A suite that was interrupted goes on from it.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from assayline.benchmark.configurations import identify_config
from assayline.clock import RunClock
from assayline.digests import digest_json
from assayline.errors import SpecError
from assayline.files import MAKE_ROOM, write_json
from assayline.runs.manifest import new_run_id
from assayline.settings import Settings
from assayline.spec.evaluation import EvalSpec
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
    for path in sorted((settings.data_dir / "suites").glob(f"*/{PLAN_NAME}"), reverse=True):
        try:
            plan = SuitePlan(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            continue  # of another version, or damaged: its runs are stored all the same
        if plan.digest == digest and plan.decision is None:
            return plan
    return None


def write_suite(plan: SuitePlan, settings: Settings) -> None:
    """Write the plan to its file. Raises StoreError."""
    write_json(suite_dir(settings, plan.suite_id) / PLAN_NAME, asdict(plan), MAKE_ROOM)
