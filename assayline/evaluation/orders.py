"""What a worker must know of its run, and where it finds that: in the run's folder, whoever starts it.

The flow writes `work.json`, with a token that is new in each attempt. A worker that is handed its order compares the
token with the one in the folder that it sees; one that is started with the folder's name alone takes everything from
there, and waits until it sees the flow's beat change. So a folder that is not shared after all is a sentence, before a
model is loaded.
"""

import json
import time
import uuid
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from assayline.clock import RunClock
from assayline.engines.devices.claims import count_workers
from assayline.engines.messages import Open
from assayline.errors import SpecError, StoreError
from assayline.places.documents import write_run_json
from assayline.places.home import attach, find_url, place_of
from assayline.records import Json
from assayline.runs.leases import BEATS, Beat, list_owners
from assayline.runs.manifest import SPEC_NAME, Manifest, read_manifest, read_spec_json
from assayline.settings import Settings
from assayline.spec.checks import count_devices
from assayline.spec.evaluation import EvalSpec
from assayline.spec.file import parse_spec

WORK_NAME = "work.json"
WORKERS = "workers"
"""Folder of the names that workers have taken, in all attempts of the run."""

FLOW_OWNER = "flow"
"""Whose beat the flow's is."""
MOST_PARTS_PER_S = 50
"""Of answers, of all workers together; a loader takes some 200 parts of all kinds a second (benchmarks/scale.py)."""

FLOW_BEAT_INTERVAL_S = 2.0
POLL_INTERVAL_S = 0.2


@dataclass(frozen=True, slots=True)
class WorkOrder:
    """What a worker must know. Small and picklable: prompts and completions never travel in it."""

    run_id: str
    run_dir: Path
    spec: EvalSpec
    settings: Settings
    model: str
    model_id: str
    model_args: dict[str, Json]
    """Arguments of the engine that the model and the prompts ask for, and the spec does not give."""
    clock: RunClock
    worker: str
    attempt: int = 1
    """Which start of the run this is."""
    first_generation: int = 0
    """Number of this worker's first engine: one more than the last of earlier attempts."""
    sent_before: int = 0
    """Requests of the run that earlier attempts sent and settled."""
    errors_before: int = 0
    """Those of them that are error rows."""
    load_end_before: str | None = None
    """Why earlier attempts stopped sending, if they did."""
    token: str | None = None
    """What the run's folder must say for this to be the same folder; None: it is not asked."""
    lease_s: float = 60.0
    """Silence after which a worker's shards are taken over, the same for all workers of a run."""
    has_media: bool = False
    """Whether prompts may have media that the model takes."""
    workers_here: int = 1
    """Workers among which this machine's cores are shared out, where it has no GPUs."""
    whole_machine: bool = True
    """Whether the machine must have a device for each of them, or only for this one."""
    url: str | None = None
    """Where the run is, if it is in an object store; `run_dir` is then a copy, on each machine another one."""
    is_alone: bool = False
    """Whether this is the only worker of the run's flow."""


@dataclass(frozen=True, slots=True)
class WorkPlan:
    """What the orders of a run's workers have in common in one attempt, beside its manifest and its spec."""

    model: str
    model_args: dict[str, Json]
    attempt: int
    lease_s: float
    workers: int = 1
    """How many the flow has; with `auto`, how many its machine has devices for."""
    has_media: bool = False
    sent_before: int = 0
    errors_before: int = 0
    load_end_before: str | None = None
    first_generations: dict[str, int] = field(default_factory=dict)
    """By worker, where earlier attempts had engines."""
    token: str = field(default_factory=lambda: uuid.uuid4().hex)


def write_plan(run_dir: Path, plan: WorkPlan) -> None:
    """Makes the run's folder one that workers can join. Raises StoreError."""
    write_run_json(run_dir, WORK_NAME, asdict(plan))


def count_flow_workers(spec: EvalSpec) -> int:
    """How many workers the flow of a spec has. Raises SpecError or DeviceError."""
    if spec.workers != "auto":
        return spec.workers
    if spec.runner != "local":
        raise SpecError(
            f"workers: auto counts the devices of this machine, and runner: {spec.runner} has others. Say how many "
            "workers there are to be."
        )
    return count_workers(spec.engine.device, count_devices(spec.engine.args)) if spec.engine.needs_device else 1


def make_order(
    run_dir: Path,
    plan: WorkPlan,
    manifest: Manifest,
    spec: EvalSpec,
    settings: Settings,
    worker: str,
    workers_here: int | None = None,
) -> WorkOrder:
    """The order of one worker; `workers_here` for one that is not the flow's own.

    Where there are hundreds, each writes its parts less often: small parts are what a loader fails at first.
    """
    flush_interval_s = max(settings.flush_interval_s, plan.workers / MOST_PARTS_PER_S)
    if flush_interval_s > settings.flush_interval_s:
        settings = settings.model_copy(update={"flush_interval_s": flush_interval_s})
    return WorkOrder(
        manifest.run_id,
        run_dir,
        spec,
        settings,
        plan.model,
        manifest.model_id,
        plan.model_args,
        manifest.clock,
        worker,
        plan.attempt,
        plan.first_generations.get(worker, 0),
        plan.sent_before,
        plan.errors_before,
        plan.load_end_before,
        plan.token,
        plan.lease_s,
        plan.has_media,
        workers_here or plan.workers,
        workers_here is None and spec.runner == "local",
        find_url(run_dir),
        workers_here is None and plan.workers == 1,
    )


def read_order(
    run_dir: Path, settings: Settings, worker: str | None = None, workers_here: int | None = None
) -> WorkOrder:
    """The order of a worker that is started with the folder's name alone; unnamed, it gets a name of its own.

    `workers_here` is for workers of other launchers than the flow: how many of them share this machine's cores.

    Raises StoreError where this is no run's folder, or the run is over.
    """
    run_dir = run_dir.absolute()
    manifest, plan = read_manifest(run_dir), _read_plan(run_dir)
    if manifest.state != "running":
        raise StoreError(
            f"Run {manifest.run_id} is {manifest.state}: there is nothing to answer. `assayline evaluate "
            f"--resume {manifest.run_id}` takes up a run that is unfinished; start workers after it."
        )
    spec = parse_spec(json.loads(read_spec_json(run_dir)), origin=str(run_dir / SPEC_NAME))
    return make_order(run_dir, plan, manifest, spec, settings, worker or take_name(run_dir), workers_here)


def write_engine_order(order: WorkOrder, clock: RunClock) -> Open:
    """The engine that a worker's spec asks for; each generation of it differs in its number and in `args` alone."""
    spec, engine = order.spec, order.spec.engine
    return Open(
        backend=engine.backend,
        model=order.model,
        model_id=order.model_id,
        args={**engine.args, **order.model_args},
        sampling=spec.sampling_defaults,
        device=engine.device,
        record_token_times=engine.record_token_times or engine.is_streaming,
        reasoning=spec.reasoning,
        server=engine.server if engine.kind.is_served else None,
        chat_kwargs=spec.chat.kwargs,
        media=spec.prompts.media,
        has_media=order.has_media,
        clock=clock,
        run_id=order.run_id,
        worker=order.worker,
        engine_generation=order.first_generation,
    )


def take_name(run_dir: Path) -> str:
    """The first name that no worker of the run has had, in any attempt: rows tell workers apart by it.

    Raises StoreError.
    """
    place, number = place_of(run_dir), 0
    own = uuid.uuid4().hex.encode()
    try:
        taken = set(place.names(WORKERS))
        while (name := f"worker-{number}") in taken or not place.create(f"{WORKERS}/{name}", own):
            number += 1
    except OSError as error:
        raise StoreError(f"{place.name}/{WORKERS} cannot be written: {error}. {place.advice}") from error
    return name


def name_anew(order: WorkOrder) -> WorkOrder:
    """The order with another name, if a worker of its name has been at work in this attempt: a launcher's retry."""
    names = {owner.rpartition("-")[0] for owner in list_owners(order.run_dir)}
    if order.worker not in names:
        return order
    return replace(order, worker=take_name(order.run_dir), first_generation=0)


def reserve_names(run_dir: Path, workers: int) -> None:
    """Keeps the names of the flow's own workers, which are the same in each attempt. Raises StoreError."""
    place = place_of(run_dir)
    try:
        for number in range(workers):
            place.note(f"{WORKERS}/worker-{number}")
    except OSError as error:
        raise StoreError(f"{place.name}/{WORKERS} cannot be written: {error}. {place.advice}") from error


def check_same_folder(order: WorkOrder) -> None:
    """Raises StoreError if the folder that this process sees is not the one that the order's run has.

    Of a run in a store, this machine's folder becomes a copy.
    """
    if order.url is not None:
        attach(order.run_dir, order.url)
    if order.token is not None and _read_plan(order.run_dir).token != order.token:
        raise StoreError(_not_shared(order.run_dir, "what is written there is of another attempt, or a copy"))


def wait_for_flow(run_dir: Path, wait_s: float) -> None:
    """Waits until this process has seen the flow write into the folder. Raises StoreError if it does not in time."""
    deadline = time.monotonic() + wait_s
    first = _read_beat(run_dir)
    while _read_beat(run_dir) == first:
        if time.monotonic() >= deadline:
            raise StoreError(
                _not_shared(run_dir, f"the flow of the run wrote nothing there for {wait_s:g} s")
                + " If the flow has ended, resume the run first; `--alone` works without one."
            )
        time.sleep(POLL_INTERVAL_S)


def begin_flow_beat(run_dir: Path) -> Beat:
    """Shows workers that the flow is there. Raises StoreError."""
    beat = Beat(run_dir, FLOW_OWNER, FLOW_BEAT_INTERVAL_S)
    try:
        beat.begin()
    except OSError as error:
        place = place_of(run_dir)
        raise StoreError(f"{place.name} cannot be written: {error}. {place.advice}") from error
    return beat


def _read_plan(run_dir: Path) -> WorkPlan:
    place = place_of(run_dir)
    try:
        data: dict[str, Any] = json.loads(place.read(WORK_NAME))
        return WorkPlan(**data)
    except FileNotFoundError:
        raise StoreError(_not_shared(run_dir, f"it has no {WORK_NAME}")) from None
    except (OSError, ValueError, TypeError) as error:
        raise StoreError(
            f"{place.name}/{WORK_NAME} cannot be read: {error}. Resume the run, which writes it anew."
        ) from None


def _read_beat(run_dir: Path) -> bytes | None:
    try:
        return place_of(run_dir).read(f"{BEATS}/{FLOW_OWNER}")
    except OSError:
        return None


def _not_shared(run_dir: Path, what: str) -> str:
    place = place_of(run_dir)
    return (
        f"The folder {place.name} as this machine sees it is not the run's: {what}. Workers on other machines need the "
        "same data folder (ASSAYLINE_DATA_DIR) under the same path, on a file system that all of them share."
    )
