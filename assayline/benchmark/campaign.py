"""A campaign: runs that belong together, of a benchmark, a suite, a bisection or a gate that measures again.

Its file is written before the first run, and has the id of each run before that begins. The same command goes on with
an unfinished campaign: with the runs that it began and with no others.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from assayline.benchmark.profile import SweepProfile
from assayline.clock import RunClock
from assayline.digests import digest_json
from assayline.errors import SpecError, StoreError
from assayline.files import MAKE_ROOM, write_json
from assayline.load.arrivals import check_trace
from assayline.model import identify_spec_model
from assayline.settings import Settings
from assayline.spec.checks import check_arguments
from assayline.spec.evaluation import EvalSpec
from assayline.spec.file import parse_stored
from assayline.spec.identity import canonical_json, config_id
from assayline.spec.suite import Tier
from assayline.store.manifest import Manifest, new_run_id, read_manifest
from assayline.store.scoring import check_scorers

Kind = Literal["benchmark", "suite", "gate", "bisection"]
Quality = Literal["accuracy", "kl"]
"""Quality by which a benchmark chooses: mean scores, or the divergence of probabilities by a reread."""
DAMAGES = (OSError, ValueError, TypeError, LookupError)
"""Errors of a file that cannot be read as a campaign."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A spec that a campaign runs several times: a task in one variant."""

    task: str
    """An evaluation of a suite; empty for a spec alone."""
    variant: str
    """The model of a suite's cell; the fields that a benchmark varies, with their values; the side of a gate."""
    spec_json: str
    config_id: str
    label: str
    """Its name in the UI."""
    repeats: int = 1
    weight: float = 1.0
    tier: Tier = "critical"
    baseline: str | None = None
    is_baseline: bool = False
    """Whether it measures the baseline of a suite's cell again."""
    is_measured: bool = True
    """Whether its runs are compared as repeats of one session. An interrupted one is then replaced, not resumed."""

    @property
    def key(self) -> str:
        return f"{self.task} · {self.variant}" if self.task else self.variant

    @cached_property
    def spec(self) -> EvalSpec:
        return parse_stored(self.spec_json)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """A campaign, as stored."""

    campaign_id: str
    kind: Kind
    name: str
    asked: str
    """The digest of what was asked for: the same goes on."""
    cells: list[Cell]
    order: list[str]
    """The key of each run, in the order of the runs."""
    runs_per_engine: int | None = 0
    """Runs of each cell that an engine is kept for; 0: none, as each run opens its own; None: all."""
    profile: SweepProfile | None = None
    """Set if the cells are points of a load sweep."""
    swept_json: str | None = None
    """The spec whose load is swept."""
    baseline: str | None = None
    """The variant that a benchmark's others are compared with, if one was named; else they are with the best."""
    quality: Quality = "accuracy"
    readings: dict[str, str] = field(default_factory=dict)
    """Ids of the runs in which engines read the baseline's answers, by variant."""
    runs: dict[str, list[str]] = field(default_factory=dict)
    """Ids of the runs by the key of their cell. The last one may not have begun."""
    is_over: bool = False
    decision: str | None = None
    page: dict[str, Any] = field(default_factory=dict)
    """Rows and sentences of a suite's page; empty until it is decided. A bisection has the reason of each
    skipped candidate, and a benchmark why a variant has no reading."""

    @property
    def planned(self) -> int:
        """Runs that cannot be listed yet, because the rates of a sweep are unknown until its ends are measured."""
        profile = self.profile
        if profile is None or profile.slo or profile.rates_per_s:
            return 0
        return self.cells[0].repeats * profile.points

    @property
    def total(self) -> int:
        """Total number of runs."""
        return len(self.order) + self.planned


def new_campaign(
    kind: Kind, name: str, cells: Sequence[Cell], order: Iterable[Cell], what: str = "", **more: Any
) -> Campaign:
    """Plan a campaign. `what` stands in its id (default: its kind), and `more` are other fields."""
    profile = more.get("profile")
    others = [more.get(field) for field in ("baseline", "quality")]
    asked = [kind, name, [asdict(cell) for cell in cells], profile and asdict(profile), *others]
    return Campaign(
        campaign_id=new_run_id(f"{what or kind} {name}", RunClock.start()),
        kind=kind,
        name=name,
        asked=digest_json(asked),
        cells=list(cells),
        order=[cell.key for cell in order],
        **more,
    )


def alternate(cells: Sequence[Cell], rounds: int) -> Iterator[Cell]:
    """Yield rounds in alternating direction, so that a drifting machine favours none."""
    for number in range(rounds):
        yield from cells if number % 2 == 0 else reversed(cells)


def read_runs(campaign: Campaign, settings: Settings) -> dict[str, list[Manifest]]:
    """Read the runs that a campaign began, by the key of their cell."""
    found: dict[str, list[Manifest]] = {}
    for key, run_ids in campaign.runs.items():
        for run_id in run_ids:
            with suppress(StoreError):  # it did not begin, or was deleted
                found.setdefault(key, []).append(read_manifest(settings.run_dir(run_id)))
    return found


def is_done(run: Manifest, cell: Cell) -> bool:
    """Return True if a run counts as one of the cell's, and nothing of it is left to do."""
    is_whole = run.attempt == 1 or not cell.is_measured
    return run.state == "completed" and not run.lacks_report and is_whole


def count_done(campaign: Campaign, settings: Settings) -> Counter[str]:
    """Count the runs that are done, by the key of their cell."""
    runs = read_runs(campaign, settings)
    return Counter(cell.key for cell in campaign.cells for run in runs.get(cell.key, ()) if is_done(run, cell))


def list_left(campaign: Campaign, settings: Settings) -> list[Cell]:
    """List the runs still to do, in order. Each run that is done counts as the next of its cell."""
    done, cells = count_done(campaign, settings), {cell.key: cell for cell in campaign.cells}
    left = []
    for key in campaign.order:
        if done[key] > 0:
            done[key] -= 1
        else:
            left.append(cells[key])
    return left


def count_left(campaign: Campaign | None, settings: Settings) -> int | None:
    """Return the number of runs still to do; None without a campaign."""
    return None if campaign is None else len(list_left(campaign, settings)) + campaign.planned


def campaign_dir(settings: Settings, kind: Kind, campaign_id: str) -> Path:
    """Return the folder of a campaign."""
    return settings.data_dir / f"{kind}s" / campaign_id


def write_campaign(campaign: Campaign, settings: Settings) -> None:
    """Write the campaign to its file. Raises StoreError."""
    folder = campaign_dir(settings, campaign.kind, campaign.campaign_id)
    write_json(folder / f"{campaign.kind}.json", asdict(campaign), MAKE_ROOM)


def find_campaign(settings: Settings, kind: Kind, campaign_id: str) -> Campaign | None:
    """Read a campaign; None if it cannot be read, for example because the database came without the folder."""
    with suppress(*DAMAGES):
        return _parse(campaign_dir(settings, kind, campaign_id) / f"{kind}.json")
    return None


def list_campaigns(settings: Settings, kind: Kind) -> Iterator[Campaign]:
    """Yield the campaigns of a kind, newest first."""
    ids = sorted((path.name for path in campaign_dir(settings, kind, "").glob("*")), reverse=True)
    yield from filter(None, (find_campaign(settings, kind, one) for one in ids))


def find_unfinished(campaign: Campaign, settings: Settings) -> Campaign | None:
    """Return the newest campaign that was asked for like this one, if it is not over."""
    alike = (one for one in list_campaigns(settings, campaign.kind) if one.asked == campaign.asked)
    newest = next(alike, None)
    return None if newest is None or newest.is_over else newest


def read_benchmark(benchmark_id: str, settings: Settings) -> Campaign:
    """Read an existing benchmark. Raises SpecError for an unknown one or changed models, and StoreError."""
    folder = campaign_dir(settings, "benchmark", benchmark_id)
    path = folder / "benchmark.json"
    known = sorted((one.parent.name for one in folder.parent.glob("*/benchmark.json")), reverse=True)
    if benchmark_id not in known:
        told = f"newest: {', '.join(known[:3])}" if known else "there is none yet"
        raise SpecError(
            f"There is no benchmark {benchmark_id!r} in {folder.parent} ({told}). hint: pass an existing id."
        )
    try:
        campaign = _parse(path)
    except DAMAGES as error:
        raise StoreError(f"{path} cannot be read: {error}. hint: restore the file, or start a new benchmark.") from None
    models: Models = {}
    if any(identify_config(cell.spec, models) != cell.config_id for cell in campaign.cells):
        raise SpecError(
            f"Benchmark {benchmark_id} cannot be resumed: the files of a model, or the configurations that this "
            "version of assayline derives from the spec, have changed. hint: start a new benchmark."
        )
    return campaign


def _parse(path: Path) -> Campaign:
    data = json.loads(path.read_text(encoding="utf-8"))
    profile = SweepProfile(**data["profile"]) if data["profile"] else None
    return Campaign(**{**data, "cells": [Cell(**cell) for cell in data["cells"]], "profile": profile})


Models = dict[tuple[str, str | None, str], str]
"""Ids of models by their names, each of which is read once."""


def make_cell(spec: EvalSpec, variant: str, models: Models, task: str = "", label: str = "", **more: Any) -> Cell:
    """Check a spec, and return its cell. `more` are other fields. Raises SpecError or ModelError."""
    name = f"{task} · {variant}" if task else variant
    digest = identify_config(spec, models)
    values = {"spec_json": canonical_json(spec), "config_id": digest, "label": label or name, **more}
    return Cell(task=task, variant=variant, **values)


def identify_config(spec: EvalSpec, models: Models) -> str:
    """Check a spec and return its config_id. Raises SpecError or ModelError."""
    check_arguments(spec)
    check_scorers(spec.scorers or [])
    check_trace(spec.load, spec.prompts.source)
    key = (spec.model, spec.revision, spec.model_name)
    if key not in models:
        models[key] = identify_spec_model(spec).model_id
    return config_id(spec, models[key])


def can_share_engine(cells: Iterable[Cell]) -> bool:
    """Return whether the runs of cells can share engines: each has one engine, in a process on this machine."""
    specs = [cell.spec for cell in cells]
    return all(spec.engine.is_shareable and (spec.workers, spec.runner) == (1, "local") for spec in specs)
