"""Evaluation: one run of a spec, driven by the process that owns the database.

`begin_evaluation` (in `begin.py`) creates or resumes it. Then workers are driven (`drive.py`) while `prepare` opens the
tokenizer and the prompt set; an error there stops the engines within a second, and leaves no row in the database. The
caller calls `try_load` from time to time, and ends with `finish` or `abandon`.

The manifest in the run's folder is written before the database, and records the run's state if the database cannot.
"""

import logging
import os
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from assayline import __version__
from assayline.clock import RunClock, utc_now
from assayline.comparison.gate import GateReport
from assayline.engines.messages import Open
from assayline.errors import DatabaseLockedError, PromptsChangedError, RunFailedError, StoreError
from assayline.load.progress import LoadProgress
from assayline.model import ModelIdentity
from assayline.records import EngineEvent
from assayline.run.dispatcher import Dispatcher
from assayline.run.functions import pick_functions, score_samples
from assayline.run.order import LENGTHS_NAME
from assayline.run.prepare import Preparation, judge_task, open_renderer
from assayline.run.tokens import write_tokens
from assayline.run.worker import WorkOrder, order_engine
from assayline.settings import Settings
from assayline.spec.criteria import Scorer
from assayline.spec.evaluation import EvalSpec
from assayline.spec.identity import canonical_json
from assayline.store.answers import AnswerSurvey, lacks_media, open_answers, survey_answers
from assayline.store.database import TABLE_VERSION, Connection, transaction
from assayline.store.ingest import RunOutcome, load_parts, read_outcome
from assayline.store.locks import RunLock
from assayline.store.manifest import Manifest, PromptCounts, change_tags, read_job, read_run_scorers, write_manifest
from assayline.store.metrics import read_metric_table, read_notes
from assayline.store.parts import PartWriter, list_parts, merge_parts, remove_unfinished, split_parts
from assayline.store.runs import save_run
from assayline.store.score_files import read_function_scores, read_harness_scores, write_function_scores
from assayline.store.scoring import SampleToScore, StoredAnswer, read_answers, read_samples, score_run
from assayline.store.thread import DatabaseThread

LOG = logging.getLogger("assayline")

_ADVICE = (
    "Stored answers are in the table request. An error row is an answer, so the run cannot be resumed. hint: find the "
    "cause, then start a new run with --fresh."
)


def conclude_run(run: Manifest, outcome: RunOutcome, max_error_share: float) -> Manifest:
    """Return the final manifest of a run whose prompts are all prepared and whose parts are all loaded."""
    if run.prompts is None:
        raise ValueError(f"{run.run_id} was concluded before its prompts were counted")
    message = _describe_failure(run.run_id, run.prompts.requests, outcome, max_error_share)
    return replace(
        run,
        state="failed" if message else "completed",
        message=message,
        is_final=bool(message) and not outcome.broken.get("missing_requests"),
        finished_at=utc_now(),
    )


def _describe_failure(run_id: str, requests: int, outcome: RunOutcome, max_error_share: float) -> str | None:
    if outcome.broken:
        more = (
            "run the same command again, which resumes the run and sends the missing requests."
            if outcome.broken.get("missing_requests")
            else "start a new run with --fresh; this one has no request left to send."
        )
        return (
            f"Run {run_id} is inconsistent: {outcome.broken}. Expected {requests} requests, each answered once; stored "
            f"answers are in the table request. hint: {more}"
        )
    if "max_errors" in outcome.load_ends:
        unsent = f"{outcome.unsent} requests were" if outcome.unsent else "Nothing was"
        return (
            f"Run {run_id} was stopped because of its errors. {outcome.load_ends['max_errors']} {unsent} left unsent. "
            f"{_count_kinds(outcome)} {_ADVICE}"
        )
    if outcome.unsent and not outcome.sent:
        why = " ".join(outcome.load_ends.values()) or "No event gives the reason."
        return (
            f"Run {run_id} sent nothing: its load ended before the first of {requests} requests. {why} hint: change "
            "load so that at least one request is sent, then start a new run."
        )
    asked = requests - outcome.unsent
    if outcome.error_rows > max_error_share * asked:
        among = f"{asked} requests" if not outcome.unsent else f"{asked} sent requests"
        return (
            f"Run {run_id} has {outcome.error_rows} error rows among {among}, more than the share of "
            f"{max_error_share:g} that max_error_share allows. {_count_kinds(outcome)} {_ADVICE}"
        )
    return None


def _count_kinds(outcome: RunOutcome) -> str:
    kinds = ", ".join(f"{kind} {count}" for kind, count in outcome.errors.items())
    return f"Errors by kind: {kinds}."


@dataclass(frozen=True, slots=True)
class RunResult:
    """Result of a run, small enough to be a flow's result."""

    run_id: str
    database: str
    answered_requests: int
    metrics: list[dict[str, Any]]
    report: str | None = None
    """Path of the report page, if it was written."""
    notes: list[str] = field(default_factory=list)
    """Remarks for the user on the location of the results and on scoring."""
    headline: str = ""
    """Its figures, and the verdict on a night."""
    gate: GateReport | None = None
    """The verdict on a night; None without a baseline."""

    @property
    def message(self) -> str:
        """The headline with the notes."""
        return " ".join([self.headline.removesuffix(".") + ".", *self.notes]) if self.notes else self.headline


def read_result(run: Manifest, settings: Settings) -> RunResult:
    """Return the result of a completed run, from its parts and the database, without its report. Raises StoreError."""
    answered = run.prompts.requests if run.prompts else 0

    def read(connection: Connection) -> RunResult:
        metrics = read_metric_table(connection, run.run_id)
        return RunResult(
            run.run_id, str(settings.database_path), answered, metrics, notes=read_notes(connection, run.run_id)
        )

    return DatabaseThread(settings).run(read, is_patient=True)


@dataclass(slots=True, kw_only=True)
class Evaluation:
    """A run in progress, locked for this process. Create one with `begin_evaluation`."""

    manifest: Manifest
    spec: EvalSpec
    settings: Settings
    model: ModelIdentity
    database: DatabaseThread
    lock: RunLock
    notes: list[str] = field(default_factory=list)
    """Remarks for the user on the start of the run."""
    earlier: AnswerSurvey | None = None
    """Answers of earlier attempts."""
    dispatcher: Dispatcher = field(init=False)
    writer: PartWriter = field(init=False)
    """Writes every part of the run except those of preparation."""
    generations: dict[str, int] = field(default_factory=dict)
    """Number of the next engine, by worker."""
    _engine: Open = field(init=False)
    _is_over: bool = False
    _changing: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._engine = order_engine(self.spec, self.model, self.clock, self.run_id)
        self.writer = PartWriter(self.run_dir, "flow", self.settings.flush_rows, self.settings.flush_interval_s)
        self.dispatcher = Dispatcher(
            self.spec, self.run_dir, self.writer.add, lambda: open_renderer(self.spec, self.model)
        )

    @property
    def run_id(self) -> str:
        return self.manifest.run_id

    @property
    def clock(self) -> RunClock:
        """The run's clock: time zero is its start."""
        return self.manifest.clock

    @property
    def run_dir(self) -> Path:
        """Folder of the run's parts and logs, absolute: workers may have another working folder."""
        return self.settings.run_dir(self.run_id).absolute()

    @property
    def is_answered(self) -> bool:
        """True if earlier attempts answered every request, so that no engine is needed."""
        counts = self.manifest.prompts
        return bool(counts and self.earlier and self.earlier.answered >= counts.requests)

    def order(self, worker: str) -> WorkOrder:
        """Return the instructions for a worker that starts now."""
        earlier, progress = self.earlier, self.dispatcher.progress
        return WorkOrder(
            open=replace(
                self._engine,
                worker=worker,
                served_root=earlier.served_root if earlier else None,
                vllm_version=earlier.vllm_version if earlier else None,
            ),
            settings=self.settings,
            holder=f"run {self.run_id} ({self.spec.name})",
            attempt=self.manifest.attempt,
            first_generation=self.generations.get(worker, 0),
            load=LoadProgress(
                self.spec.load,
                settled=progress.sent + (earlier.sent if earlier else 0),
                errors=progress.sent_errors + (earlier.sent_errors if earlier else 0),
                end_before=earlier.load_end if earlier else None,
            ),
            log_folder=self.run_dir / "logs",
            workers_here=self.dispatcher.workers,
            whole_machine=self.spec.runner == "local",
        )

    def resume(self, tags: Sequence[str] = ()) -> None:
        """Resume the run, with these tags added. Raises StoreError, which leaves the run unchanged."""
        before = self.manifest
        remove_unfinished(self.run_dir)
        split_parts(self.run_dir)
        self.earlier = answers = self.database.run(self._survey)
        counts = before.prompts
        if counts and (
            answers.prepared_requests != counts.requests
            or answers.prepared_prompts != counts.prompt_rows
            or answers.prepared_errors < counts.failed_requests
            or lacks_media(self.run_dir)
        ):
            self.notes.append(
                "Some prepared prompts, requests or media are missing; reading all prompts again to compare them."
            )
            counts = None
        if counts is None and before.has_lengths and not (self.run_dir / LENGTHS_NAME).exists():
            raise StoreError(
                f"{self.run_dir} has no {LENGTHS_NAME}, which orders the run's prompts. hint: copy the complete "
                "folder, and repeat the command."
            )
        if before.assayline_version != __version__:
            self.notes.append(f"The run began with assayline {before.assayline_version}; this is {__version__}.")
        self.generations = dict(answers.first_generations)
        self.dispatcher.progress.errors = answers.sent_errors + answers.prepared_errors
        self.change(
            attempt=before.attempt if counts and self.is_answered else before.attempt + 1,
            state="running",
            finished_at=None,
            message=None,
            host_name=socket.gethostname(),
            job=read_job(os.environ),
            tags=change_tags(before.tags, tags),
            assayline_version=__version__,
            table_version=TABLE_VERSION,
            prompts=counts,
        )
        if before.template_id is not None:
            self.database.run(self._save)
        of = f"of {counts.requests} " if counts else ""
        self.notes.append(
            f"Resuming run {before.run_id}, attempt {self.manifest.attempt}: {answers.answered} {of}requests are "
            "already answered."
        )

    def change(self, **values: Any) -> None:
        """Change the manifest and write it; thread-safe, because preparation calls it from another thread.

        Raises StoreError if it cannot be written, which leaves it unchanged.
        """
        with self._changing:
            changed = replace(self.manifest, **values)
            write_manifest(self.run_dir, changed)
            self.manifest = changed

    def prepare(self, warn: Callable[[str], None] = LOG.warning) -> PromptCounts:
        """Read all prompts, render them into shards, and add the run to the database after the first valid prompt.

        `warn` receives a line about each row that takes long. Preparation that an earlier attempt completed is not
        repeated. Raises ModelError, PromptError, SpecError or
        StoreError.
        """
        if counts := self.manifest.prompts:
            self._add_prepared()
            return counts
        rows = open_answers(self.spec, self.database.run, self.run_dir)
        preparation = Preparation(self.spec, self.model, self.run_dir, rows, warn)
        try:
            if self.manifest.template_id not in (None, preparation.template_id):
                raise PromptsChangedError(
                    f"Run {self.run_id} began with another chat template: the digests differ. hint: start a new run "
                    "with --fresh; stored answers are kept."
                )
            self.change(template_id=preparation.template_id)
            with suppress(DatabaseLockedError):  # `try_load` and `finish` save it, too
                self.database.run(self._save)
            counts = preparation.run(
                self.run_dir, self.dispatcher, self.earlier, longest_first=self.manifest.is_longest_first
            )
        except PromptsChangedError as error:
            self.change(is_final=True, message=str(error))
            raise
        if counts.is_complete:
            self.change(prompts=counts)
        return counts

    def _add_prepared(self) -> None:
        """Hand the shards of earlier attempts to the dispatcher. Raises StoreError."""
        earlier = self.earlier
        assert earlier is not None, "a new run has no prompts"
        for part in list_parts(self.run_dir, "requests"):
            requests = earlier.shard_requests[part.stem]
            if part.stem in earlier.whole_shards:
                self.dispatcher.add_answered(requests)
            else:
                self.dispatcher.add_shard(part, requests, earlier.partly.get(part.stem, frozenset()))
        self.dispatcher.close()

    def stop(self) -> None:
        """Request that preparation and workers stop now."""
        self.dispatcher.stop()

    def try_load(self) -> StoreError | None:
        """Load new parts during a run, without waiting for the database; return the error if it fails.

        The parts are the results, and `finish` loads them, so an error of the database does not stop the engines.
        """
        if self.manifest.template_id is None:
            return None
        try:
            self.database.run(self._load_and_save, wait_s=0.0, checkpoint=False)
        except StoreError as error:
            return error
        return None

    def finish(self, counts: PromptCounts, *, lacks_report: bool = False) -> RunResult:
        """Load the remaining parts, check that every request was answered once, score, and compute the metrics.

        `lacks_report`: the caller writes a report, which computes the metrics, then records that; until then a repeated
        command goes on with it, and the result has no metrics.
        Raises RunFailedError, with the counts, if the check fails or too many answers are errors, and StoreError if the
        database cannot record the end of the run. The run ends in these cases, too. Another assayline command that
        holds the database is waited for.
        """
        if not counts.is_complete or self.manifest.prompts is None:
            raise RunFailedError(f"Run {self.run_id} was stopped before all its prompts were read.")
        self._record_idle_workers()
        self.writer.flush()
        task, notes = self.spec.prompts.task, []
        if task is not None and self.dispatcher.snapshot().answered >= counts.requests:
            answers = self.database.run(self._read_answers, is_patient=True)
            notes = judge_task(self.spec, task, self.run_dir, answers, open_renderer(self.spec, self.model))
        if self.spec.is_reread:
            write_tokens(self.run_dir)
        try:
            notes += self._score_by_functions()
            self.manifest = self.database.run(self._conclude, is_patient=True)
            lacks_report = lacks_report and self.manifest.state == "completed"
            found = RunResult(self.run_id, str(self.settings.database_path), counts.requests, metrics=[])
            if not lacks_report:
                found = read_result(self.manifest, self.settings)
        except StoreError as error:
            raise self._end_unrecorded("failed", error) from error
        if self.manifest.state == "completed" or self.manifest.is_final:
            try:
                merge_parts(self.run_dir)
            except StoreError as error:
                notes.append(str(error))
        self.manifest = replace(self.manifest, lacks_report=lacks_report)
        write_manifest(self.run_dir, self.manifest)
        self._is_over = True
        if not lacks_report:
            self.lock.release()
        if self.manifest.state == "failed":
            raise RunFailedError(str(self.manifest.message))
        return replace(found, notes=[*notes, *found.notes])

    def _record_idle_workers(self) -> None:
        """Record workers without a request while others had some: the run's speed does not count."""
        workers = self.dispatcher.snapshot().workers
        for idle in [worker.worker for worker in workers if not worker.answered and self.dispatcher.progress.sent]:
            generation = max(0, self.generations.get(idle, 0) - 1)
            self.writer.add(EngineEvent(idle, self.manifest.attempt, generation, "idle", self.clock.now_s()))

    def abandon(self, state: str, message: str | None = None) -> None:
        """Stop all work and store the rows so far, with the state `failed` or `cancelled`. Raises StoreError.

        A run that `finish` has ended, successfully or not, stays unchanged.
        """
        if self._is_over:
            return
        self.stop()
        try:
            self.writer.flush()
            self.change(state=state, finished_at=utc_now(), message=self.manifest.message or message)
            if self.manifest.template_id is not None:
                self.database.run(self._store_what_there_is)
        except StoreError as error:
            raise self._end_unrecorded(state, error) from error
        finally:
            self._let_go()

    def _conclude(self, connection: Connection) -> Manifest:
        """Record the run's end in the database. Return the manifest to write."""
        self._load_and_save(connection)
        self._score(connection)
        outcome = read_outcome(connection, self.run_id)
        ended = conclude_run(self.manifest, outcome, self.spec.max_error_share)
        with transaction(connection):
            save_run(connection, ended, canonical_json(self.spec))
        return ended

    def _score_by_functions(self) -> list[str]:
        """Score the answers by functions, and keep the scores in the run's folder. Return notes for the run's log.

        Without its function, a scorer has no scores; `assayline score` adds them. Raises StoreError.
        """
        functions = pick_functions(self.read_scorers())
        if not functions:
            return []
        samples = self.database.run(self._read_samples, is_patient=True)
        scores, notes = score_samples(functions, samples)
        if scores:
            write_function_scores(self.run_dir, scores)
        if len(scores) < len(functions):
            notes.append(f"`assayline score {self.run_id}` adds the scores that are missing.")
        return notes

    def _read_samples(self, connection: Connection) -> list[SampleToScore]:
        self._load_and_save(connection)
        return read_samples(connection, self.run_id)

    def read_scorers(self) -> list[Scorer]:
        """Return all scorers of the run. Raises StoreError."""
        return read_run_scorers(self.run_dir, self.spec.model_dump(mode="json"))

    def _read_answers(self, connection: Connection) -> list[StoredAnswer]:
        self._load_and_save(connection)
        return list(read_answers(connection, self.run_id))

    def _store_what_there_is(self, connection: Connection) -> None:
        self._load_and_save(connection)
        self._score(connection)

    def _score(self, connection: Connection) -> None:
        """Score all rows so far, error rows included."""
        judged, functions = read_harness_scores(self.run_dir), read_function_scores(self.run_dir)
        with transaction(connection):
            score_run(connection, self.run_id, self.read_scorers(), judged=judged, functions=functions)

    def _survey(self, connection: Connection) -> AnswerSurvey:
        """Load the parts of earlier attempts and list their answers."""
        if self.manifest.template_id is not None:
            load_parts(connection, self.run_id, self.run_dir)
        return survey_answers(connection, self.run_id, self.run_dir)

    def _load_and_save(self, connection: Connection) -> None:
        load_parts(connection, self.run_id, self.run_dir)
        self._save(connection)

    def _save(self, connection: Connection) -> None:
        with transaction(connection):
            save_run(connection, self.manifest, canonical_json(self.spec))

    def _end_unrecorded(self, state: str, error: StoreError) -> StoreError:
        """Record the end of the run in the manifest alone; return the error with a hint."""
        message = str(error)
        if "assayline db rebuild" not in message:
            message += (
                f" The results of run {self.run_id} are kept as part files; `assayline db rebuild {self.run_id}` loads "
                "them, and so does the same command, which resumes the run."
            )
        with suppress(StoreError):  # on a full disk the manifest keeps the state running, which can be resumed
            self.change(state=state, finished_at=utc_now(), message=message)
        self._let_go()
        return DatabaseLockedError(message) if isinstance(error, DatabaseLockedError) else StoreError(message)

    def _let_go(self) -> None:
        self._is_over = True
        self.lock.release()
