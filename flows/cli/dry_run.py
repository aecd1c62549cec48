"""A dry run: check spec, model, prompts, devices and, if asked, engine arguments. Nothing is loaded or written.

The database is read only, for baselines and for prompts that are answers of other runs.

It prints the first error row of each kind. It fails if every request would be an error row, or if a scorer reads none
of the first targets.
"""

import itertools
import json
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from assayline.comparison.baselines import resolve_baseline
from assayline.comparison.queries import foresee_reach
from assayline.engines.devices.claims import list_devices
from assayline.engines.process import engine_environment
from assayline.errors import (
    AssaylineError,
    EngineError,
    MediaError,
    NothingToAskError,
    SpecError,
    StoreError,
)
from assayline.media.load import Hearing, load_all
from assayline.records import Prompt, Request
from assayline.requests.build import PreparedPrompt
from assayline.run.begin import RunPlan, count_workers, plan_run, resolve_runs
from assayline.run.judging import check_judges, find_unreported, pick_judges
from assayline.run.prepare import Preparation
from assayline.run.resume import choose_run, describe_left
from assayline.run.worker import order_engine
from assayline.scorers.process import check_targets
from assayline.settings import Settings
from assayline.spec.checks import count_devices
from assayline.spec.conflicts import list_unused
from assayline.spec.engine import list_ignored
from assayline.spec.evaluation import EvalSpec
from assayline.spec.identity import canonical_json, spec_hash
from assayline.store.answers import open_answers
from assayline.store.manifest import Purpose
from assayline.store.thread import DatabaseThread
from assayline.words import count

TRIED_MEDIA = 100
"""Number of media files to decode. The existence of all files is checked."""

TRIED_TARGETS = 100
SHOWN_CHARACTERS = 400
END = "■"


class Faults(dict[str, tuple[int, str]]):
    """Rows that would be error rows: their number and the first of them, by kind of error."""

    def take(self, kind: str, row: int | None, message: str | None) -> None:
        number, first = self.get(kind, (0, f"row {row}: {message}"))
        self[kind] = number + 1, first

    @property
    def rows(self) -> int:
        return sum(number for number, _ in self.values())

    def describe(self) -> list[str]:
        """Return a line per kind, the most frequent first."""
        return [
            f"          {kind} {number}×, first in {first:.{SHOWN_CHARACTERS}}"
            for kind, (number, first) in sorted(self.items(), key=lambda one: -one[1][0])
        ]


class Trial:
    """The prompts of a run, rendered and counted."""

    def __init__(self, plan: RunPlan, database: DatabaseThread, most_rows: int | None = None) -> None:
        """Read the prompts, or the first `most_rows`. Raises the errors of a run."""
        self._spec = spec = plan.spec
        preparation = Preparation(spec, plan.model, rows=open_answers(spec, database.read))
        self.rows = self.requests = self.duplicates = self.tokens = 0
        self.turns: Counter[int] = Counter()
        self.errors, self.unreadable = Faults(), Faults()
        self.media: Counter[str] = Counter()
        self._tried: set[str] = set()
        self.first: Request | None = None
        self.ignored: dict[str, None] = {}
        self.targets: list[tuple[str, list[str] | None]] = []
        for prepared in itertools.islice(preparation, most_rows):
            self._take(prepared)

    def _take(self, prepared: PreparedPrompt) -> None:
        self.rows += 1
        self.duplicates += prepared.prompt.occurrence > 0
        self.requests += len(prepared.requests)
        for error in prepared.errors:
            self.errors.take(error.error_kind or "unknown", prepared.prompt.source_row, error.error_message)
        self.turns.update(one.turns for one in prepared.requests if one.turn_index == 0 and one.turns)
        if (target := prepared.prompt.target) is not None and len(self.targets) < TRIED_TARGETS:
            self.targets.append((target, prepared.prompt.options))
        for request in prepared.ready:
            form = request.sampling.get("structured_outputs")
            self.ignored |= dict.fromkeys(list_ignored(form.get("json") if isinstance(form, dict) else None))
        self.tokens += sum(len(request.prompt_token_ids) for request in prepared.requests)
        if self.first is None and prepared.ready:
            self.first = prepared.ready[0]
        if prepared.ready:
            self._try_media(prepared.prompt)

    def _try_media(self, prompt: Prompt) -> None:
        """Count a prompt's media, and decode the first files. Inline media is not kept, so it is not decoded."""
        for one in prompt.media or ():
            self.media[one["kind"]] += 1
            is_file = Path(one["path"]).is_absolute()
            if is_file and one["digest"] not in self._tried and len(self._tried) < TRIED_MEDIA:
                self._tried.add(one["digest"])
                try:
                    load_all([one], self._spec.prompts.media, Hearing())
                except MediaError as error:
                    self.unreadable.take(one["kind"], prompt.source_row, str(error))

    def describe(self) -> list[str]:
        """Return lines about conversations that are sent turn by turn, errors and media."""
        lines = []
        if self.turns:
            lines.append(
                f"turns     {self.turns.total()} conversations of {min(self.turns)} to {max(self.turns)} turns, "
                f"{sum(self.turns.elements())} in total; prompt tokens count first turns only, as later prompts "
                "contain the model's answers"
            )
        lines += self.errors.describe()
        if self.media:
            counted = ", ".join(f"{number} of kind {kind}" for kind, number in sorted(self.media.items()))
            tried = f"{len(self._tried)} files decoded, {self.unreadable.rows} unreadable"
            lines += [f"media     {counted}; {tried}", *self.unreadable.describe()]
        return lines

    def check(self) -> None:
        """Raise PromptError if a scorer reads no target, NothingToAskError if every request would be an error row."""
        check_targets(self._spec.scorers or [], self.targets)
        if self.requests and self.errors.rows == self.requests:
            first = self.errors.describe()[0].strip()
            raise NothingToAskError(
                f"All {self.requests} requests would be error rows: {first}. hint: fix the prompts."
            )


TRIED_ROWS = 100
"""Prompts tried of each of several runs."""
ENGINE_LIMIT_S = 300.0
NOT_ASKED = (
    "Not checked: whether vLLM takes this model with these engine.args, beyond names and ranges. hint: "
    "`--dry-run engine` of evaluate, benchmark and suite asks it, which takes longer."
)


def find_refusals(
    plans: Mapping[str, RunPlan], settings: Settings, asks_vllm: bool
) -> tuple[dict[str, AssaylineError], list[str]]:
    """Let vLLM check engine arguments if asked, in a process per environment that loads no model.

    Return why engines would not open, by the labels of their runs, and what is not known.
    """
    needing = {label: plan for label, plan in plans.items() if plan.spec.engine.needs_device}
    if not asks_vllm:
        return {}, [NOT_ASKED] if needing else []
    refusals: dict[str, AssaylineError | None] = {}
    for python in {plan.spec.engine.python for plan in needing.values()}:
        own = {label: plan for label, plan in needing.items() if plan.spec.engine.python == python}
        orders = pickle.dumps([order_engine(plan.spec, plan.model, plan.fresh.clock) for plan in own.values()])
        command = [python or sys.executable, "-m", "assayline.engines.host"]
        kept: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "timeout": ENGINE_LIMIT_S}
        try:
            done = subprocess.run(command, input=orders, env=engine_environment(settings, {}, {}), check=False, **kept)
            refusals |= zip(own, pickle.loads(done.stdout), strict=True)
        except (subprocess.TimeoutExpired, EOFError, pickle.UnpicklingError) as error:
            unknown = EngineError(f"vLLM could not check engine.args: {type(error).__name__}.")
            refusals |= dict.fromkeys(own, unknown)
    known = {label: one for label, one in refusals.items() if one and type(one) is not EngineError}
    return known, [str(one) for one in refusals.values() if type(one) is EngineError][:1]


def check_devices(spec: EvalSpec) -> None:
    """Raise DeviceError if this machine has too few devices for a run."""
    engine = spec.engine
    if engine.needs_device and spec.runner == "local" and not engine.uses_ray_executor:
        list_devices(engine.device, count_workers(spec), count_devices(engine.args))


def count_baseline(name: str, database: DatabaseThread) -> int:
    """Return the number of prompts of a baseline. Raises SpecError or StoreError if there is none of this name."""
    query = "select count(*) from prompts where run_id = ?"
    ((rows,),) = database.read(lambda opened: opened.execute(query, [resolve_baseline(opened, name)]).fetchall())
    return int(rows)


def check_runs(named: Sequence[tuple[str, EvalSpec]], settings: Settings, asks_vllm: bool) -> list[str]:
    """Find what runs would refuse, by their labels: prompts, judges, devices and engine arguments. Return remarks.

    `asks_vllm`: whether vLLM checks the engine arguments. Raises the first error, with the words of all.
    """
    database = DatabaseThread(settings)
    refused: dict[str, list[str]] = {}
    errors: list[AssaylineError] = []
    plans: dict[str, RunPlan] = {}

    def refuse(label: str, error: AssaylineError) -> None:
        errors.append(error)
        refused.setdefault(str(error), []).append(label)

    models: dict[tuple[str | None, ...], RunPlan] = {}  # the files of a model are read once
    for label, given in named:
        try:
            key = (given.model, given.revision, given.adapter, given.model_name)
            plan = models.get(key) or plan_run(given, settings, read=database.read)
            plan = models[key] = replace(plan, spec=resolve_runs(given, database.read))
            check_devices(plan.spec)
            check_judges(plan)
            Trial(plan, database, TRIED_ROWS).check()
            plans[label] = plan
        except AssaylineError as error:
            refuse(label, error)
    refusals, unknown = find_refusals(plans, settings, asks_vllm)
    for label, refusal in refusals.items():
        refuse(label, refusal)
    if errors:
        is_general = [*refused.values()] == [[label for label, _ in named]]
        if not is_general:
            errors[0].args = ("\n".join(f"{_name_few(labels)}: {words}" for words, labels in refused.items()),)
        raise errors[0]
    return unknown


def _name_few(labels: list[str]) -> str:
    return labels[0] if len(labels) == 1 else f"{labels[0]} and {count(len(labels) - 1, 'other')}"


def describe_run(spec: EvalSpec, settings: Settings, resume: str, *, asks_vllm: bool = False) -> Iterator[str]:
    """Read and render every prompt, and yield lines about what a run would do. `asks_vllm` as in `check_runs`.

    Raises the errors of a run, and NothingToAskError if every request would be an error row.
    """
    database = DatabaseThread(settings)
    plan = plan_run(spec, settings, Purpose(resume=resume), database.read)
    spec, model = plan.spec, plan.model
    runs_dir = settings.data_dir / "runs"
    choice = choose_run(plan.fresh, canonical_json(spec), runs_dir, plan.purpose, is_dry=True)
    notes = [*choice.notes, *list_unused(spec), *check_judges(plan)]
    unreported = find_unreported(plan, settings)
    check_devices(spec)
    trial = Trial(plan, database)
    yield f"spec      {spec.name}, digest {spec_hash(spec)}"
    yield f"model     {spec.model_name}, {model.model_id}"
    yield (
        f"prompts   {trial.rows} rows of {spec.prompts.set_name}, {trial.duplicates} duplicates, {trial.requests} "
        f"requests ({trial.errors.rows} error rows), {trial.tokens} prompt tokens"
    )
    yield from trial.describe()
    yield (
        f"engine    {spec.engine.backend}, {spec.engine.mode}, {spec.workers} worker(s), "
        f"arguments {json.dumps(spec.engine.args)}"
    )
    for scorer in pick_judges(spec.scorers):
        models = ", ".join(str(scorer.model or judge.get("model")) for judge in scorer.spec)
        yield f"judge     {scorer.title}: {models}, {trial.requests - trial.errors.rows} answers"
    if spec.scorers and spec.prompts.columns.cluster is None:
        yield f"gate      {foresee_reach(trial.rows, spec.gate.max_accuracy_drop)}"
    if (first := trial.first) is not None:
        yield f"sampling  {json.dumps(first.sampling, default=str)}{_name_defaults(spec, first)}"
        if first.messages is None:
            yield f"first prompt, {len(first.prompt_token_ids)} tokens, up to the mark {END}:"
            yield f"{first.rendered or ''}{END}"
        else:
            yield "first prompt, rendered by the server:"
            yield json.dumps(first.messages, indent=2, ensure_ascii=False)
    yield from notes
    if trial.ignored:
        yield (
            f"vLLM does not enforce {', '.join(trial.ignored)} of the JSON schema, so answers may break it. hint: add "
            "`type` next to a keyword that is for one type; the scorer json checks all of the schema."
        )
    if spec.gate.baseline is not None:
        try:
            count_baseline(spec.gate.baseline, database)
        except (SpecError, StoreError) as error:
            yield f"gate.baseline {spec.gate.baseline!r}: {error}"
    refusals, unknown = find_refusals({spec.name: plan}, settings, asks_vllm)
    yield from unknown
    trial.check()
    if refusals:
        raise refusals[spec.name]
    if unreported:
        yield f"This would add judges and report to run {unreported}, which has all its answers."
    elif found := choice.manifest:
        yield f"This would resume run {found.run_id}: {describe_left(runs_dir / found.run_id, found)}."
    else:
        yield "This would start a new run."
    yield "Dry run: nothing was generated or stored."


def _name_defaults(spec: EvalSpec, first: Request) -> str:
    """Return what applies to sampling that is not set."""
    unset = (
        [] if spec.engine.is_served or "temperature" in first.sampling else ["temperature 1, so answers are sampled"]
    )
    unset += ["max_tokens up to the end of the context"] if first.sampling.get("max_tokens") is None else []
    return f"; vLLM's defaults: {', '.join(unset)}" if unset else ""
