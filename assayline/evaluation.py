"""Evaluation: one run of a spec, as the process that owns the database drives it.

`begin_evaluation` checks what is quick to check: arguments, model, database. Then engines load while `prepare` opens
the tokenizer and the prompt set; whatever it finds wrong stops them within a second, and leaves no row in the database.
The caller hands `order(i)` to workers, calls `try_load` now and then, and ends with `finish` or `abandon`.
"""

import os
import re
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from assayline.clock import RunClock
from assayline.engines.arguments import check_arguments
from assayline.errors import DatabaseLockedError, RunFailedError
from assayline.identity import ModelIdentity, digest_json, identify_model
from assayline.prepare import Preparation, PromptCounts
from assayline.settings import Settings
from assayline.shards import ShardQueue
from assayline.spec import EvalSpec
from assayline.spec_file import canonical_json, spec_hash
from assayline.store.database import Connection, connect
from assayline.store.integrity import read_integrity
from assayline.store.load import load_parts
from assayline.store.models import read_metric_table
from assayline.store.parts import count_rows, list_parts
from assayline.store.runs import RunStart, finish_run, insert_run, record_prompt_counts
from assayline.worker import WorkOrder

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class RunResult:
    """The end of a run, small enough to be a flow's result."""

    run_id: str
    database: str
    answered_requests: int
    metrics: list[dict[str, Any]]


@dataclass(slots=True)
class Evaluation:
    """A run under way. Make one with `begin_evaluation`."""

    run_id: str
    spec: EvalSpec
    settings: Settings
    model: ModelIdentity
    clock: RunClock
    _registered: bool = False
    _part_rows: dict[str, int] = field(default_factory=dict)
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "database"))

    @property
    def run_dir(self) -> Path:
        """Folder of the run's parts and logs, absolute: workers may have another working folder."""
        return self.settings.run_dir(self.run_id).absolute()

    def order(self, index: int) -> WorkOrder:
        """What the worker number `index` must know."""
        local = self.spec.engine.backend == "fake" or Path(self.spec.model).expanduser().is_dir()
        revision = None if local else self.model.folder.name
        return WorkOrder(
            self.run_id,
            self.run_dir,
            self.spec,
            self.settings,
            str(self.model.folder.absolute()) if local else self.spec.model,
            self.model.model_id,
            {"revision": revision, "tokenizer_revision": revision} if revision else {},
            self.clock,
            f"worker-{index}",
        )

    def prepare(self) -> PromptCounts:
        """Reads and renders every prompt into shards, and adds the run to the database once the first one is good.

        Raises ModelError, PromptError, SpecError or StoreError.
        """
        preparation = Preparation(self.spec, self.model)
        start = RunStart(
            self.run_id,
            self.spec.name,
            self.spec.prompts.set_name,
            self.spec.model,
            self.model.model_id,
            self.model.tokenizer_id,
            preparation.template_id,
            digest_json(self.spec.sampling),
            spec_hash(self.spec),
            canonical_json(self.spec),
            self.clock.started_wall_s,
        )
        self._with_database(lambda connection: insert_run(connection, start))
        self._registered = True
        return preparation.run(self.run_dir)

    def stop(self) -> None:
        """Asks preparation and workers to stop now."""
        ShardQueue(self.run_dir).stop()

    def count_answered(self) -> int:
        """Requests whose result or error is durable."""
        for part in list_parts(self.run_dir, "completions"):
            if part.name not in self._part_rows:
                self._part_rows[part.name] = count_rows(part)
        return sum(self._part_rows.values())

    def try_load(self) -> str | None:
        """Loads new parts, for the middle of a run: does not wait, but returns what is in the way, if something is."""
        if not self._registered:
            return None
        try:
            self._with_database(self._load, wait_s=0.0)
        except DatabaseLockedError as error:
            return str(error)
        return None

    def finish(self, counts: PromptCounts) -> RunResult:
        """Loads what is left, proves that every request was answered once, and reads the metrics.

        Raises RunFailedError, with the counts, when that is not so.
        """
        broken, metrics = self._with_database(lambda connection: self._conclude(connection, counts))
        if broken:
            raise RunFailedError(
                f"Run {self.run_id} does not add up: {broken}. Expected {counts.requests} requests, each answered "
                "once. What was answered is stored; see request_integrity and error_breakdown."
            )
        return RunResult(self.run_id, str(self.settings.database_path), self.count_answered(), metrics)

    def abandon(self, state: str) -> None:
        """Stops everything and stores what there is, with the state `failed` or `cancelled`."""
        self.stop()
        if self._registered:
            self._with_database(lambda connection: self._load(connection, state))

    def check_database(self) -> None:
        """Raises DatabaseLockedError or StoreError if the database cannot be used."""
        self._with_database(lambda connection: None)

    def _load(self, connection: Connection, end_state: str | None = None) -> None:
        load_parts(connection, self.run_id, self.run_dir)
        if end_state:
            finish_run(connection, self.run_id, end_state)

    def _conclude(self, connection: Connection, counts: PromptCounts) -> tuple[dict[str, int], list[dict[str, Any]]]:
        """What does not add up, and the metrics."""
        self._load(connection)
        record_prompt_counts(connection, self.run_id, counts.prompt_rows, counts.duplicate_prompts, counts.requests)
        broken = {name: count for name, count in read_integrity(connection, self.run_id).items() if count}
        finish_run(connection, self.run_id, "failed" if broken else "completed")
        return broken, read_metric_table(connection, self.run_id)

    def _with_database(self, work: Callable[[Connection], Answer], wait_s: float | None = None) -> Answer:
        """Does `work` in the database's own thread.

        In the main thread DuckDB meets a signal with an error of its own, in which the exception that the signal's
        handler raised is lost: Ctrl-C and Prefect's cancellation would look like a failure.
        """

        def connect_and_work() -> Answer:
            wait = self.settings.database_wait_s if wait_s is None else wait_s
            with connect(self.settings.database_path, wait) as connection:
                return work(connection)

        return self._thread.submit(connect_and_work).result()


def begin_evaluation(spec: EvalSpec, settings: Settings) -> Evaluation:
    """Checks arguments, model and database, and makes the run's folder.

    Raises SpecError, ModelError, DatabaseLockedError or StoreError.
    """
    check_arguments(spec)
    if settings.hf_token:
        os.environ["HF_TOKEN"] = settings.hf_token.get_secret_value()  # the hub's client reads it from there
    model = identify_model(spec.model, spec.revision)
    clock = RunClock.start()
    evaluation = Evaluation(new_run_id(spec.name, clock), spec, settings, model, clock)
    evaluation.check_database()
    ShardQueue(evaluation.run_dir).reset()
    (evaluation.run_dir / "spec.json").write_text(canonical_json(spec), encoding="utf-8")
    return evaluation


def new_run_id(name: str, clock: RunClock) -> str:
    """Sortable and speaking: UTC time, the spec's name, and four random hex digits."""
    when = datetime.fromtimestamp(clock.started_wall_s, UTC).strftime("%Y%m%d-%H%M%S")
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40] or "run"
    return f"{when}-{slug}-{uuid.uuid4().hex[:4]}"
