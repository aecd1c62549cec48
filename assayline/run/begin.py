"""Begin an evaluation: quick checks, then a new run or the resumption of an unfinished one.

Only the process that holds a run's lock resumes it: it loads the parts of earlier attempts, and does not send answered
requests again.
"""

import os
import socket
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pydantic import ValidationError

from assayline import __version__
from assayline.clock import RunClock
from assayline.comparison.baselines import check_run, resolve_baseline
from assayline.digests import digest_json
from assayline.engines.devices.claims import count_workers as count_devices_here
from assayline.engines.devices.claims import name_cpu
from assayline.errors import DatabaseLockedError, SpecError, StoreError
from assayline.files import MAKE_ROOM, write_text
from assayline.load.arrivals import check_trace
from assayline.model import ModelIdentity, identify_spec_model
from assayline.run.evaluation import Evaluation
from assayline.run.order import keep_lengths
from assayline.run.resume import choose_run, digest_inputs
from assayline.settings import Settings
from assayline.spec.checks import check_arguments, count_devices
from assayline.spec.criteria import PriceSpec
from assayline.spec.evaluation import EvalSpec
from assayline.spec.identity import canonical_json, config_id, spec_hash
from assayline.spec.prompts import AnswersSource, PairsSource
from assayline.store.answers import RunWork, check_answers, find_newest_run
from assayline.store.database import TABLE_VERSION, Connection
from assayline.store.locks import lock_run
from assayline.store.manifest import (
    AUTO,
    ENDED_WELL,
    SPEC_NAME,
    Manifest,
    Purpose,
    change_tags,
    match_run_id,
    new_run_id,
    read_job,
    write_manifest,
)
from assayline.store.parts import recall_lengths
from assayline.store.scoring import check_scorers
from assayline.store.thread import DatabaseThread

__all__ = ["Evaluation", "RunPlan", "begin_evaluation", "begin_run", "plan_run"]

LATEST, BASELINE = "latest:", "baseline:"
"""Prefixes of a run in prompts.source: the newest completed run of a name, or a baseline."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """A run before it begins."""

    spec: EvalSpec
    """With the ids of the runs that it reads, and the machine's price."""
    fresh: Manifest
    """The manifest of a new run."""
    model: ModelIdentity
    purpose: Purpose


def begin_evaluation(
    spec: EvalSpec, settings: Settings, resume: str = AUTO, purpose: Purpose | None = None, **facts: Any
) -> Evaluation:
    """Plan a run and begin it."""
    return begin_run(plan_run(spec, settings, purpose or Purpose(resume=resume), **facts), settings)


def begin_run(plan: RunPlan, settings: Settings) -> Evaluation:
    """Check the database, then create the run's folder or resume an unfinished run.

    The plan's purpose names the run to resume: auto (the newest unfinished run of this spec, if there is one), never,
    or an id. With auto, deployed flows resume only runs of deployed flows, and others only the others.
    Raises SpecError or StoreError.
    """
    spec, manifest, database = plan.spec, plan.fresh, DatabaseThread(settings)
    workers = count_workers(spec)
    runs_dir = settings.data_dir / "runs"
    with ExitStack() as undo:
        choice = choose_run(manifest, canonical_json(spec), runs_dir, plan.purpose)
        if choice.lock is not None:
            undo.callback(choice.lock.release)
        lengths = None if choice.manifest else _check_database(database, manifest, choice.notes)
        lock = choice.lock or lock_run(runs_dir / manifest.run_id)
        if lock is None:
            raise StoreError(f"Another process holds the new run {manifest.run_id}. hint: run the same command again.")
        undo.callback(lock.release)
        manifest = choice.manifest or replace(manifest, has_lengths=bool(lengths))
        evaluation = Evaluation(
            manifest=manifest,
            spec=spec,
            settings=settings,
            model=plan.model,
            database=database,
            lock=lock,
            notes=choice.notes,
        )
        if choice.manifest is None:
            _make_folder(evaluation, lengths)
        else:
            evaluation.resume(plan.purpose.tags)
            _keep_spec(evaluation)
        evaluation.dispatcher.workers = workers
        undo.pop_all()
    return evaluation


def add_price(spec: EvalSpec, settings: Settings) -> EvalSpec:
    """Add the machine's price to a spec without a price. Raises SpecError if the setting is invalid."""
    if spec.price is not None or settings.price is None:
        return spec
    try:
        return spec.model_copy(update={"price": PriceSpec.model_validate(settings.price)})
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(["price", *map(str, problem["loc"])])
        raise SpecError(
            f"Invalid setting ASSAYLINE_PRICE: given {settings.price}; {field}: {problem['msg']}. hint: give JSON with "
            'the fields of a spec\'s `price`, such as {"currency": "EUR", "per_gpu_hour": 2.5}.'
        ) from None


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
        check_answers(connection, named)
        return named

    prompts = spec.prompts.model_copy(update={"source": run(resolve)})
    return spec.model_copy(update={"prompts": prompts})


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
    if state not in ENDED_WELL:
        raise SpecError(
            f"prompts.source: run {run_id} is {state}, not completed, so some of its answers may be missing. hint: "
            f"resume it with `assayline evaluate --resume {run_id}`, or name another run."
        )
    return run_id


def plan_run(
    spec: EvalSpec, settings: Settings, purpose: Purpose | None = None, read: RunWork | None = None, **facts: Any
) -> RunPlan:
    """Check arguments and model of a spec, and plan a new run of it. Raises SpecError, ModelError or StoreError.

    `read` reads the runs whose answers are prompts (default: with the right to write). `facts` are other fields of
    the manifest: is_deployed and flow_run_id.
    """
    settings.pass_on_token()
    purpose = purpose or Purpose()
    spec = add_price(resolve_runs(spec, read or DatabaseThread(settings).run), settings)
    check_arguments(spec)
    check_scorers(spec.scorers or [])
    check_trace(spec.load, spec.prompts.source)
    model = identify_spec_model(spec)
    inputs = digest_inputs(spec)
    clock = RunClock.start()
    manifest = Manifest(
        run_id=purpose.run_id or new_run_id(spec.name, clock),
        name=spec.name,
        spec_hash=spec_hash(spec),
        config_id=config_id(spec, model.model_id),
        prompt_set=spec.prompts.set_name,
        model=spec.model_name,
        model_id=model.model_id,
        tokenizer_id=model.tokenizer_id,
        sampling_id=digest_json(spec.sampling),
        inputs=inputs,
        inputs_digest=None if inputs is None else digest_json(inputs),
        clock=clock,
        host_name=socket.gethostname(),
        job=read_job(os.environ),
        assayline_version=__version__,
        table_version=TABLE_VERSION,
        is_longest_first=spec.is_longest_first,
        machine=settings.machine or name_cpu(),
        tags=change_tags((), purpose.tags),
        purpose="judge" if any(scorer.kind == "verdict" for scorer in spec.scorers or ()) else purpose.kind,
        benchmark_id=purpose.campaign_id if purpose.is_measured or purpose.kind != "suite" else None,
        suite_id=purpose.campaign_id if purpose.kind == "suite" else None,
        **facts,
    )
    return RunPlan(spec, manifest, model, purpose)


def count_workers(spec: EvalSpec) -> int:
    """Return a spec's number of workers on this machine; 1 for `auto` on a Ray cluster, which is counted later.

    Raises SpecError or DeviceError.
    """
    if spec.workers != "auto":
        return spec.workers
    if spec.runner != "local" or not spec.engine.needs_device:
        return 1
    return count_devices_here(spec.engine.device, count_devices(spec.engine.args))


def _check_database(database: DatabaseThread, asks: Manifest, notes: list[str]) -> pa.Table | None:
    """Check that the database can be used, before any file is written. A lock is only noted. Raises StoreError.

    Return the lengths of answers in earlier runs if the new run orders by them. An error in reading them is only noted,
    because it costs speed alone.
    """
    try:
        if not asks.is_longest_first:
            return database.run(lambda connection: None)
        return database.run(
            lambda connection: recall_lengths(connection, asks.model_id, asks.prompt_set, asks.benchmark_id)
        )
    except DatabaseLockedError as error:
        notes.append(f"The run begins without the database, and needs it at its end: {error}")
        return None
    except StoreError as error:
        database.run(lambda connection: None)
        notes.append(f"Sending requests in the order given, because earlier answers cannot be read: {error}")
        return None


def _make_folder(evaluation: Evaluation, lengths: pa.Table | None) -> None:
    """Write all files that a resume needs; the manifest last, because it makes the folder a run."""
    run_dir = evaluation.run_dir
    if lengths:
        keep_lengths(run_dir, lengths)
    _keep_spec(evaluation)
    write_manifest(run_dir, evaluation.manifest)


def _keep_spec(evaluation: Evaluation) -> None:
    """Write the spec if it is missing, as in an unfinished copy of the run's folder."""
    path = evaluation.run_dir / SPEC_NAME
    if not path.exists():
        write_text(path, canonical_json(evaluation.spec), MAKE_ROOM)
