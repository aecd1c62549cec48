"""The planner of suites: their evaluations by model, as cells of a campaign."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from assayline.benchmark.campaign import (
    Campaign,
    Cell,
    Models,
    alternate,
    can_share_engine,
    find_unfinished,
    identify_config,
    list_campaigns,
    make_cell,
    new_campaign,
    read_runs,
)
from assayline.comparison.baselines import resolve_baseline
from assayline.comparison.queries import read_side
from assayline.errors import AssaylineError, SpecError, StoreError
from assayline.settings import Settings
from assayline.spec.criteria import GateSpec
from assayline.spec.evaluation import EvalSpec
from assayline.spec.file import parse_stored
from assayline.spec.identity import canonical_json
from assayline.spec.suite import SuiteSpec, load_suite, parse_suite
from assayline.store.database import Connection
from assayline.store.manifest import read_spec_json
from assayline.store.thread import DatabaseThread

REJUDGE = "rejudge"


def shorten_model(model: str) -> str:
    """Return the last part of a model's path or hub id."""
    return model.rstrip("/").rsplit("/", 1)[-1]


def as_suite(given: SuiteSpec | Mapping[str, Any] | str | Path) -> SuiteSpec:
    """Return a suite from itself, its fields, or the path of a YAML file. Raises SpecError."""
    if isinstance(given, str | Path):
        return load_suite(given)
    return parse_suite(given) if isinstance(given, Mapping) else given


def list_cells(suite: SuiteSpec) -> list[Cell]:
    """Read and check every spec. Cells of one model come together, and those with one engine after each other.

    Raises SpecError or ModelError.
    """
    cells: list[Cell] = []
    models: Models = {}
    wanted: list[str | None] = [*suite.models] or [None]
    for model in wanted:
        for one in suite.evaluations:
            spec = one.load(model)
            name, model_name = one.name or spec.name, spec.model_name
            values: dict[str, Any] = {
                "label": f"{name} · {shorten_model(model_name)}",
                "repeats": one.repeats,
                "weight": one.weight,
                "tier": one.tier,
                "baseline": one.baseline or spec.gate.baseline,
                "is_measured": False,
            }
            cells.append(make_cell(spec, model_name, models, name, **values))
    names = [cell.key for cell in cells]
    if twice := sorted({cell.task for cell in cells if names.count(cell.key) > 1}):
        raise SpecError(
            f"Two evaluations of suite {suite.name} are called {', '.join(twice)}. hint: set `name` to a different "
            "name for each."
        )
    groups: dict[tuple[str, str], list[Cell]] = {}
    for variant in dict.fromkeys(cell.variant for cell in cells):
        for cell in cells:
            if cell.variant == variant:
                groups.setdefault((variant, cell.spec.engine.model_dump_json()), []).append(cell)
    return [cell for group in groups.values() for cell in group]


def plan_suite(suite: SuiteSpec, settings: Settings, resume: str, *, is_nightly: bool = False) -> Campaign:
    """Plan a suite, or return the one to go on with, or with `rejudge` the newest with all its runs.

    The cells of a baseline that is measured again, in turn with its candidate, follow those of the evaluations.
    Raises SpecError or ModelError.
    """
    cells = list_cells(suite)
    baselines = {} if is_nightly else _find_baselines(cells, settings)
    if resume == REJUDGE:
        return _find_complete(suite, cells, baselines, settings)
    cells = [replace(cell, is_measured=cell.key in baselines) for cell in cells]
    pairs = [[baselines[cell.key], cell] if cell.key in baselines else [cell] for cell in cells]
    planned = [*cells, *baselines.values()]
    order = [one for pair in pairs for one in alternate(pair, pair[0].repeats)]
    shared = None if can_share_engine(cells) else 0
    campaign = new_campaign("suite", suite.name, planned, order, runs_per_engine=shared)
    return (resume == "auto" and find_unfinished(campaign, settings)) or campaign


def name_baseline(cell: Cell) -> str:
    """Return the key of the cell that measures a cell's baseline again."""
    return f"{cell.task}, baseline · {cell.variant}"


def _find_baselines(cells: list[Cell], settings: Settings) -> dict[str, Cell]:
    """Return what to run for the baselines of cells with limits on speed, by the key of the cell.

    A baseline of the cell's own configuration is left out, and so is one that cannot run here.
    """

    def read(connection: Connection, cell: Cell) -> EvalSpec:
        return parse_stored(read_side(connection, resolve_baseline(connection, str(cell.baseline))).spec_json)

    found: dict[str, Cell] = {}
    for cell in (cell for cell in cells if cell.measures):
        try:
            spec = DatabaseThread(settings).run(partial(read, cell=cell))
            digest = identify_config(spec, {})
        except StoreError:
            raise
        except AssaylineError:
            continue  # the gate names an unknown baseline, and one of another session
        if digest != cell.config_id:
            name = f"{cell.task}, baseline"
            label = f"{name} · {shorten_model(spec.model_name)}"
            own: dict[str, Any] = {"task": name, "label": label, "spec_json": canonical_json(spec), "config_id": digest}
            found[cell.key] = replace(cell, is_measured=True, is_baseline=True, **own)
    return found


def _find_complete(suite: SuiteSpec, cells: list[Cell], baselines: dict[str, Cell], settings: Settings) -> Campaign:
    """Return the newest suite that has all runs of these cells, with any baselines and limits, to judge it again."""
    for campaign in list_campaigns(settings, "suite"):
        if all(_count_runs(campaign, cell, settings) >= cell.repeats for cell in cells):
            again = [one for one in baselines.values() if _count_runs(campaign, one, settings) >= one.repeats]
            fresh = new_campaign("suite", suite.name, [*cells, *again], [])
            return replace(fresh, campaign_id=campaign.campaign_id, runs=campaign.runs)
    raise SpecError(
        "No suite has all runs of these evaluations: their specs or models differ, or runs are missing. hint: leave "
        "out --rejudge to run them."
    )


def _count_runs(campaign: Campaign, cell: Cell, settings: Settings) -> int:
    """Count the runs of a suite that are of this cell's spec, except its gate, and of its model."""
    found = 0
    for run in read_runs(campaign, settings).get(cell.key, ()):
        with suppress(AssaylineError):  # a run of a spec that is not valid any more
            spec = parse_stored(read_spec_json(settings.run_dir(run.run_id)))
            found += _without_gate(spec) == _without_gate(cell.spec) and run.config_id == cell.config_id
    return found


def _without_gate(spec: EvalSpec) -> str:
    return canonical_json(spec.model_copy(update={"gate": GateSpec()}))
