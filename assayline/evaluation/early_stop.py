"""Stop a run as soon as its accuracy passes or fails against the baseline (`gate.stop`).

Prompts are asked in a fixed random order. A look judges the first prompts in this order, once all of them are answered,
and nothing else: neither the time of the look nor an interruption changes its verdict. Engines go on meanwhile. When a
look decides, they are stopped, and requests without an answer get rows as at the end of a load, in part files of
their own, which become empty if the run is resumed to ask all its prompts.
"""

import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assayline.comparison.gate import Check, judge_look
from assayline.comparison.looks import LOOKS, list_looks
from assayline.engines.base import DecidedDetails
from assayline.engines.messages import unsent
from assayline.errors import ComparisonError, SpecError, StoreError
from assayline.evaluation.functions import pick_functions, score_samples
from assayline.records import NOT_SENT, EngineEvent
from assayline.store.database import Connection, transaction
from assayline.store.ingest import load_parts
from assayline.store.metrics import forget_metrics
from assayline.store.parts import count_rows, ledger_name, parts_dir, write_part
from assayline.store.score_files import FunctionScores
from assayline.store.scoring import LATER_PROMPTS, SampleToScore, read_samples, score_run

if TYPE_CHECKING:
    from assayline.evaluation.run import Evaluation

PART, TABLES = "decided", ("completions", "engine_events")
"""Name of the parts with the rows of an early stop, and their tables."""
NO_WAIT: dict[str, Any] = {"wait_s": 0.0, "checkpoint": False, "may_stand_in": False}
COUNT_MISSING = f"""
    select count(*) from stg_requests
    where run_id = $run_id and status = 'missing' and (prompt_id, occurrence) not in ({LATER_PROMPTS})
"""  # noqa: S608 - ours


@dataclass(slots=True)
class EarlyStop:
    """The looks of one attempt of a run."""

    run: "Evaluation"
    look: int = 1
    """The next look."""
    decided: Check | None = None
    """The verdict that ends the run: that of the look before `look`."""
    obstacle: str | None = None
    """Why all prompts are asked although the spec has looks."""
    _tried_s: float = 0.0
    _scored: dict[str, FunctionScores] = field(default_factory=dict)
    _known: set[tuple[Any, ...]] = field(default_factory=set)
    """Prompt, occurrence and repeat of the answers that functions have scored, in `_scored`."""

    def try_decide(self, *, may_wait: bool = False) -> bool:
        """Judge each look whose prompts are answered. Return whether the run is decided.

        Unless it `may_wait`, a look is put off if the database cannot be used now, for example because another program
        holds it. Raises StoreError if it may wait.
        """
        counts = self.run.manifest.prompts
        if self.run.spec.gate.stop == "all" or self.run.manifest.asks_all or counts is None:
            return False
        if not may_wait and time.monotonic() - self._tried_s < self.run.settings.flush_interval_s:
            return False
        self._tried_s = time.monotonic()
        places = list_looks(counts.prompt_rows)
        while not self.decided and not self.obstacle and self.look < LOOKS:
            first = places[self.look - 1]
            try:
                is_early = self.run.dispatcher.progress.answered < first
                check = None if is_early else self._judge(first, {} if may_wait else NO_WAIT)
            except StoreError:
                if may_wait:
                    raise
                break
            except (ComparisonError, SpecError) as error:
                self.obstacle = f"All prompts are asked, because accuracy cannot be judged before the end: {error}"
                break
            if check is None:
                break
            self.look += 1
            self.decided = check if check.verdict in ("pass", "fail") else None
        return self.decided is not None

    def record(self) -> str:
        """Write why the run ends and a row for each request without an answer; return the message."""
        run, look, counts = self.run, self.look - 1, self.run.manifest.prompts
        assert self.decided is not None and counts is not None
        rows, first = counts.prompt_rows, list_looks(counts.prompt_rows)[look - 1]
        message = f"Stopped early after {first:,} of {rows:,} prompts, as accuracy is decided: {self.decided.verdict}."
        left = [unsent(request_id, "worker-0", 0, message) for request_id in run.database.run(self._list_missing)]
        details = DecidedDetails(reason="decided", prompts=first, look=look)
        at = (run.manifest.attempt, 0, "load_ended", run.clock.now_s(), None)
        write_part(run.run_dir, TABLES[0], PART, left)
        write_part(run.run_dir, TABLES[1], PART, [EngineEvent("worker-0", *at, message, {**details})])
        return message

    def _judge(self, first: int, waiting: dict[str, Any]) -> Check | None:
        """Judge the first prompts; None if one of them has no answer yet."""
        run = self.run
        run.writer.flush()
        if (samples := run.database.run(partial(self._read, first), **waiting)) is None:
            return None
        new = [sample for sample in samples if sample[:3] not in self._known]
        found, _ = score_samples(pick_functions(run.read_scorers()), new)
        for name, scores in found.items():
            before = self._scored.get(name, FunctionScores(scores.definition, []))
            self._scored[name] = FunctionScores(scores.definition, [*before.scores, *scores.scores])
        self._known.update(sample[:3] for sample in new)
        return run.database.run(partial(self._score_and_judge, first), **waiting)

    def _read(self, first: int, connection: Connection) -> list[SampleToScore] | None:
        """Load the answers so far. Return those that functions score; None if one of the first prompts has none yet."""
        values = {"run_id": self.run.run_id, "first": first}
        load_parts(connection, self.run.run_id, self.run.run_dir)
        if connection.execute(COUNT_MISSING, values).fetchall() != [(0,)]:
            return None
        later = set(connection.execute(LATER_PROMPTS, values).fetchall())
        samples = read_samples(connection, self.run.run_id) if pick_functions(self.run.read_scorers()) else []
        return [sample for sample in samples if sample[:2] not in later]

    def _score_and_judge(self, first: int, connection: Connection) -> Check:
        with transaction(connection):
            score_run(connection, self.run.run_id, self.run.read_scorers(), functions=self._scored, first=first)
        return judge_look(connection, self.run.run_id, self.run.spec.gate, self.look)

    def _list_missing(self, connection: Connection) -> list[str]:
        load_parts(connection, self.run.run_id, self.run.run_dir)
        query = "select request_id from stg_requests where run_id = ? and status = 'missing' order by request_id"
        return [request_id for (request_id,) in connection.execute(query, [self.run.run_id]).fetchall()]


def count_stop(run_dir: Path, table: str = TABLES[-1]) -> int:
    """Return how many rows of an early stop a run has in a table."""
    part = parts_dir(run_dir, table) / f"{PART}.parquet"
    return count_rows(part) if part.exists() else 0


def remove_stop(connection: Connection, run_id: str, run_dir: Path) -> None:
    """Remove the rows of an early stop, so that the requests left can be sent. Raises StoreError.

    The parts stay, without rows: a mirror would keep parts that are removed.
    """
    for table in filter(partial(count_stop, run_dir), TABLES):
        write_part(run_dir, table, PART, [])
    parts = [ledger_name(table, f"{PART}.parquet") for table in TABLES]
    with transaction(connection):
        forget_metrics(connection, run_id)
        connection.execute("delete from completions where run_id = ? and error_kind = ?", [run_id, NOT_SENT])
        connection.execute("delete from engine_events where run_id = ? and event = 'load_ended'", [run_id])
        connection.execute("delete from loaded_parts where run_id = ? and list_contains(?, part)", [run_id, parts])
