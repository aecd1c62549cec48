"""The task that lets a Prefect deployment do the work: one run of it per worker, on whatever its work pool starts.

For people who have a pool with a machine per GPU node. A run gets the folder of the run that it works for, and nothing
else: it is `assayline worker` by another way. One that crashes is started again; the others answer meanwhile.
"""

import time
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import httpx
from prefect import get_client, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound, PrefectException
from prefect.states import Cancelled

from assayline.errors import EngineError, SpecError
from assayline.evaluation.orders import WorkOrder
from assayline.evaluation.shards.queue import ShardQueue
from tasks.launch import END_WAIT_S, wait_for_workers

DEPLOYMENT = "work/work"
"""The one in prefect.yaml."""
LOOK_INTERVAL_S = 3.0
MOST_CRASHES_PER_WORKER = 3
"""Runs that may crash, for each worker that there is to be."""
NOT_BEGUN = (StateType.SCHEDULED, StateType.PENDING)


@task(name="deploy-workers", cache_policy=NO_CACHE, persist_result=False)
def deploy_workers(order: WorkOrder, workers: int) -> None:
    """Starts so many runs of the spec's deployment, and waits until everything is answered.

    Raises SpecError for a deployment that is not there, EngineError if a run fails or too many crash.
    """
    crew = _Deployed(order, workers)
    try:
        crew.start(workers)
        wait_for_workers(order, crew.look, f"The work pool of {crew.deployment} starts them")
        crew.wait_for_the_last()
    finally:
        crew.cancel_those_that_never_began()
    queue = ShardQueue(order.run_dir)
    if crew.failure and not queue.is_finished() and not queue.is_stopped():
        raise EngineError(f"{crew.failure} What was answered is kept: the same command resumes the run.")


class _Deployed:
    """The deployment's runs of one evaluation."""

    def __init__(self, order: WorkOrder, workers: int) -> None:
        self.deployment = order.spec.deployment or DEPLOYMENT
        self.failure: str | None = None
        self._order = order
        self._most_crashes = MOST_CRASHES_PER_WORKER * workers
        self._log = get_run_logger()
        self._runs: dict[UUID, FlowRun] = {}
        self._crashed: set[UUID] = set()
        self._looked_s = float("-inf")

    def start(self, count: int) -> None:
        """Raises SpecError."""
        for _ in range(count):
            try:
                # timeout 0: it returns at once
                run: Any = run_deployment(self.deployment, parameters={"run": str(self._order.run_dir)}, timeout=0)
            except ObjectNotFound:
                raise SpecError(
                    f"There is no deployment {self.deployment}, which runner: deployment needs. Expected FLOW/NAME of "
                    "one of the flow `work`: `prefect deploy --all` makes work/work, and `deployment` in the "
                    "spec names another one."
                ) from None
            self._runs[run.id] = run
            self._log.info("Asked for a worker: run %s of %s", run.name, self.deployment)

    def look(self) -> bool:
        """Looks at all runs now and then, and starts another for one that crashed. True when there is no hope."""
        if time.monotonic() - self._looked_s < LOOK_INTERVAL_S:
            return False
        self._looked_s = time.monotonic()
        for run in self._read(list(self._runs)):
            self._runs[run.id] = run
            if run.state_type == StateType.FAILED:
                said = run.state.message if run.state else None
                self.failure = f"Run {run.name} of {self.deployment} failed: {said or 'its page says why'}"
            elif run.state_type == StateType.CRASHED and run.id not in self._crashed:
                self._crashed.add(run.id)
                self._log.warning("Run %s of %s crashed. What it had written is kept.", run.name, self.deployment)
                if len(self._crashed) > self._most_crashes:
                    self.failure = f"{len(self._crashed)} runs of {self.deployment} crashed."
                else:
                    self.start(1)
        return self.failure is not None

    def wait_for_the_last(self) -> None:
        """All is answered: workers close their engines and end."""
        deadline = time.monotonic() + END_WAIT_S
        while any(self._is_under_way(run) for run in self._runs.values()) and time.monotonic() < deadline:
            time.sleep(LOOK_INTERVAL_S / 3)
            self._runs.update((run.id, run) for run in self._read(list(self._runs)))

    def cancel_those_that_never_began(self) -> None:
        """They would find a run that is over."""
        for run in self._read([run.id for run in self._runs.values() if run.state_type in NOT_BEGUN]):
            if run.state_type in NOT_BEGUN:
                self._try_cancel(run)

    def _is_under_way(self, run: FlowRun) -> bool:
        return run.state_type in (StateType.RUNNING, StateType.CANCELLING)

    def _try_cancel(self, run: FlowRun) -> None:
        try:
            with get_client(sync_client=True) as client:
                client.set_flow_run_state(run.id, Cancelled(message="The run that it was to work for is over."))
        except (httpx.HTTPError, PrefectException, OSError) as error:
            self._log.warning("Run %s, which has not begun, cannot be cancelled: %s", run.name, error)

    def _read(self, ids: Sequence[UUID]) -> list[FlowRun]:
        """The runs as the API has them; none while it does not answer, which is no reason to stop the workers."""
        if not ids:
            return []
        try:
            with get_client(sync_client=True) as client:
                return client.read_flow_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=list(ids))))
        except (httpx.HTTPError, PrefectException, OSError) as error:
            self._log.warning("Workers cannot be looked at: %s", error)
            return []
