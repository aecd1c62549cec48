"""Preparation: convert a prompt set to shards of rendered requests, while engines already generate.

Rows are read, templated and rendered one by one, and written as part files of `shard_requests` requests each, fewer if
they are long, so memory does not grow with the prompt set. A row that cannot become a request becomes an error row
immediately, so every row is counted.

A run that was killed during preparation starts again at its first row: existing parts are not written again, but must
be equal to the parts that would be written now.
"""

import itertools
import json
import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from assayline.engines.reasoning import thinks
from assayline.errors import PromptError, PromptsChangedError, SpecError
from assayline.files import MAKE_ROOM, write_text
from assayline.harness.build import HarnessEncoder, build_harness_requests
from assayline.harness.judge import judge_answers
from assayline.harness.tasks import ApplyTemplate, write_requests
from assayline.media.references import MediaStore
from assayline.model import ModelIdentity, identify_model
from assayline.prompts import load_prompts
from assayline.prompts.row import AnswerRow
from assayline.records import Completion, Prompt, Request
from assayline.requests.build import PreparedPrompt, build_requests
from assayline.requests.chat import ChatRenderer, Renderer, ServedChat
from assayline.requests.model_config import find_placeholders, max_model_len_of
from assayline.requests.tokenizer import load_tokenizer
from assayline.run.dispatcher import Dispatcher
from assayline.run.order import can_order, expected_tokens, measure_request, name_shard, order_rows, read_lengths
from assayline.run.tokens import build_readings
from assayline.scorers.process import check_objects
from assayline.spec.evaluation import EvalSpec
from assayline.spec.prompts import LmEvalSource
from assayline.store.answers import AnswerSurvey
from assayline.store.database import Row
from assayline.store.manifest import PromptCounts
from assayline.store.parts import Record, list_part_names, open_part, parts_dir, to_arrow, write_part
from assayline.store.score_files import FOLDER_NAME, write_harness_scores
from assayline.store.scoring import StoredAnswer

RESULTS_NAME = "results.json"


def write_task_requests(spec: EvalSpec, source: LmEvalSource, renderer: Renderer) -> Iterator[PreparedPrompt]:
    """Yield one PreparedPrompt per document. Raises SpecError or PromptError at the first if the task cannot run."""
    encoder = HarnessEncoder(renderer.tokenizer, renderer.max_model_len, spec.sampling)
    instances = write_requests(spec, source, _choose_template(source, renderer))
    yield from build_harness_requests(instances, encoder, is_served=spec.engine.is_served)


def judge_task(
    spec: EvalSpec, source: LmEvalSource, run_dir: Path, answers: Iterable[StoredAnswer], renderer: Renderer
) -> list[str]:
    """Score a run's answers by the harness and return notes for the run's log.

    Keeps in the run's folder the scores for the database, and results and samples as `lm_eval --log_samples` writes
    them. Raises PromptError or StoreError, which leave the answers unchanged.
    """
    verdict = judge_answers(spec, source, _choose_template(source, renderer), answers)
    results, folder = dict(verdict.results), run_dir / FOLDER_NAME
    for task, samples in results.pop("samples").items():
        lines = "".join(json.dumps(sample, ensure_ascii=False, default=str) + "\n" for sample in samples)
        name = re.sub(r"[^\w.-]", "_", task)
        write_text(folder / f"samples_{name}.jsonl", lines, MAKE_ROOM)
    text = json.dumps(results, indent=2, ensure_ascii=False, default=str)
    write_text(folder / RESULTS_NAME, text + "\n", MAKE_ROOM)
    write_harness_scores(run_dir, verdict.judged)
    return verdict.notes


def _choose_template(source: LmEvalSource, renderer: Renderer) -> ApplyTemplate | None:
    assert isinstance(renderer, ChatRenderer), "the spec refuses a server that renders"
    return renderer.apply if source.apply_chat_template else None


IDENTITY = {
    "prompts": ("prompt_id", "occurrence"),
    "completions": ("request_id",),
    "requests": ("request_id", "rendered", "messages_json"),
}
"""Columns that identify the rows of a part; rendered text included, because a prompt's id excludes its examples."""

LARGEST_SHARD = 2**25
"""Characters and tokens of its requests at which a shard ends before `shard_requests`."""


LOG = logging.getLogger("assayline")
SLOW_ROW_S = 10.0
"""Seconds after which a row that is still being rendered is named in the log: a template may loop for hours."""


class _SlowRows:
    """Warns once about each row that takes longer than SLOW_ROW_S, while it does; one timer watches all rows."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._lock = threading.Lock()
        self._row: int | None = None
        self._began_s = 0.0
        self._is_watched = False

    def begin(self, source_row: int) -> None:
        """Note that a row is being read and rendered."""
        with self._lock:
            if source_row != self._row:
                self._row, self._began_s = source_row, time.monotonic()
                if not self._is_watched:
                    self._start_timer(SLOW_ROW_S)

    def watch(self, prepared: Iterable[PreparedPrompt]) -> Iterator[PreparedPrompt]:
        """Yield the same rows, and note that each is rendered."""
        for one in prepared:
            self._row = None
            yield one

    def _start_timer(self, seconds: float) -> None:
        timer = threading.Timer(seconds, self._check)
        timer.daemon = self._is_watched = True
        timer.start()

    def _check(self) -> None:
        with self._lock:
            row, left_s = self._row, self._began_s + SLOW_ROW_S - time.monotonic()
            self._is_watched = False
            if row is not None and left_s > 0:
                self._start_timer(left_s)
        if row is not None and left_s <= 0:
            self._warn(
                f"Row {row} has been rendering for {SLOW_ROW_S:g} s. hint: if it does not end, stop the run and look "
                "for a loop in prompts.template and the chat template."
            )


class Preparation:
    """Preparation of one run: creating it checks tokenizer, template and the first prompts; `run` writes the shards."""

    def __init__(
        self,
        spec: EvalSpec,
        model: ModelIdentity,
        run_dir: Path | None = None,
        rows: Iterator[AnswerRow] | Iterator[Row] | None = None,
        warn: Callable[[str], None] = LOG.warning,
    ) -> None:
        """Open the prompt set and read its first row.

        `run_dir` receives media from inside rows; None in a dry run. `rows` are those of a source of stored answers.
        `warn` receives a line about each row that takes long.
        """
        self._spec = spec
        self._renderer = open_renderer(spec, model)
        if (task := spec.prompts.task) is not None:
            prepared = write_task_requests(spec, task, self._renderer)
        elif spec.is_reread:
            prepared = build_readings(spec, rows or (), self._renderer.max_model_len)
        else:
            slow = _SlowRows(warn)
            prompts = load_prompts(spec.prompts, self._renderer.tokenizer, MediaStore(run_dir), rows, slow.begin)
            prepared = slow.watch(build_requests(spec, prompts, self._renderer))
        if not spec.max_error_share:
            prepared = _refuse_errors(prepared)
        first = next(prepared)  # reveals most errors
        _check_target(spec, first)
        self._prepared = itertools.chain([first], prepared)

    @property
    def template_id(self) -> str:
        """Digest of the template that renders the prompts."""
        return self._renderer.template_id

    def __iter__(self) -> Iterator[PreparedPrompt]:
        """Iterate over the prompt rows with their requests, once."""
        return self._prepared

    def run(
        self, run_dir: Path, dispatcher: Dispatcher, earlier: AnswerSurvey | None = None, *, longest_first: bool = False
    ) -> PromptCounts:
        """Write each shard and hand it to the dispatcher; if that is stopped, drop the unfinished shard.

        `earlier` has the answers of earlier attempts; `longest_first`: order by the expected lengths of answers, if
        known. Raises PromptError if the source becomes unreadable, PromptsChangedError if it differs from the run's
        start.
        """
        lengths = read_lengths(run_dir)
        has_order = longest_first and can_order(self._spec, lengths)
        shard = _ShardWriter(run_dir, self._spec.shard_requests, dispatcher, earlier, has_order)
        rows = itertools.takewhile(lambda _: not dispatcher.is_stopped, self)
        horizons = order_rows(self._spec, lengths, rows) if has_order else ([row] for row in rows)
        for horizon in horizons:
            if has_order and dispatcher.is_stopped:
                break  # the horizon may be cut off
            for prepared in horizon:
                shard.add(prepared)
            if has_order:
                shard.write()
        if dispatcher.is_stopped:
            return shard.count(is_complete=False)
        shard.write()
        if len(list_part_names(run_dir, "requests")) > shard.written:
            raise _changed(run_dir, f"it has {shard.written} shards now, and had more")
        dispatcher.close()
        return shard.count(is_complete=True)


def _refuse_errors(rows: Iterator[PreparedPrompt]) -> Iterator[PreparedPrompt]:
    for prepared in rows:
        for error in prepared.errors[:1]:
            raise PromptError(
                f"Row {prepared.prompt.source_row} cannot become a request ({error.error_kind}): {error.error_message} "
                "hint: correct the row, or raise max_error_share above 0, which runs the other rows."
            )
        yield prepared


def _check_target(spec: EvalSpec, first: PreparedPrompt) -> None:
    """Raise PromptError if a scorer needs targets, no column is set for them, and the first row has none."""
    check_objects(spec.scorers or [], [first.prompt.target])
    needy = [scorer.title for scorer in spec.scorers or [] if scorer.needs_target]
    if needy and spec.prompts.columns.target is None and first.prompt.target is None and not first.errors:
        raise PromptError(
            f"The scorer {needy[0]} compares answers with a target, and the first row of {spec.prompts.set_name} has "
            "no column `target`. hint: set prompts.columns.target to the column with the expected answers, or use a "
            "scorer without targets: json."
        )


class _ShardWriter:
    """Rows of the unfinished shard, and totals over all shards."""

    def __init__(
        self, run_dir: Path, most_requests: int, dispatcher: Dispatcher, earlier: AnswerSurvey | None, has_order: bool
    ) -> None:
        self._run_dir = run_dir
        self._most = most_requests
        self._dispatcher = dispatcher
        self._earlier = earlier
        self._has_order = has_order
        self._prompts: list[Prompt] = []
        self._requests: list[Request] = []
        self._errors: list[Completion] = []
        self._cut: Counter[str] = Counter()
        self._size = self._rows = self._duplicates = self._total_requests = self._total_errors = self._expected = 0
        self.written = 0
        self._there = {table: set(list_part_names(run_dir, table)) for table in IDENTITY}
        """Parts of an earlier attempt; only preparation writes these."""

    def add(self, prepared: PreparedPrompt) -> None:
        """Add one prompt with its requests; write the shard when it is full."""
        self._rows += 1
        self._duplicates += prepared.prompt.occurrence > 0
        self._cut.update([prepared.cut_in] if prepared.cut_in else [])
        self._prompts.append(prepared.prompt)
        self._requests.extend(prepared.requests)
        self._errors.extend(prepared.errors)
        self._size += sum(map(measure_request, prepared.requests))
        if len(self._requests) >= self._most or self._size >= LARGEST_SHARD:
            self.write()

    def count(self, *, is_complete: bool) -> PromptCounts:
        """Return the totals over the written shards."""
        return PromptCounts(
            prompt_rows=self._rows,
            duplicate_prompts=self._duplicates,
            requests=self._total_requests,
            failed_requests=self._total_errors,
            shards=self.written,
            is_complete=is_complete,
            expected_requests=self._expected,
            cut_prompts=dict(self._cut),
        )

    def write(self) -> None:
        """Write the shard. Prompts and errors come first, because requests may be sent as soon as they are written."""
        if not self._prompts:
            return
        weight = max(map(expected_tokens, self._requests), default=0) if self._has_order else None
        name = name_shard(self.written, weight)
        is_new = f"{name}.parquet" not in self._there["requests"]
        self._put("prompts", name, self._prompts)
        self._put("completions", f"prepare-{self.written:06d}", self._errors)
        self._put("requests", name, self._requests)
        answered = {error.request_id for error in self._errors}
        if self._earlier is not None:
            answered |= self._earlier.find_answered(name, [request.request_id for request in self._requests])
        path = parts_dir(self._run_dir, "requests") / f"{name}.parquet"
        self._dispatcher.add_shard(path, len(self._requests), frozenset(answered), len(self._errors) if is_new else 0)
        self._total_requests += len(self._requests)
        self._total_errors += len(self._errors)
        self._expected += sum(request.expected_output_tokens is not None for request in self._requests)
        self.written += 1
        self._prompts, self._requests, self._errors, self._size = [], [], [], 0

    def _put(self, table: str, name: str, records: list[Any]) -> None:
        """Write a part, or compare it with that of an earlier attempt."""
        if f"{name}.parquet" in self._there[table]:
            part = parts_dir(self._run_dir, table) / f"{name}.parquet"
            if _read_identities(table, part) != [_identity_of(table, record) for record in records]:
                raise _changed(self._run_dir, f"{table} part {name} has other rows")
        elif records:
            write_part(self._run_dir, table, name, records)


def open_renderer(spec: EvalSpec, model: ModelIdentity) -> Renderer:
    """Return the renderer of a spec's chats. A task that writes plain text has no chat template.

    Raises ModelError for a missing tokenizer or template, and SpecError.
    """
    if spec.engine.sends_messages:
        return ServedChat(spec.chat)
    args, folder, chat = spec.engine.args, model.folder, spec.chat
    assert folder is not None, "a model without files is for servers that render"
    own = identify_model(args["tokenizer"], args.get("tokenizer_revision")).folder if "tokenizer" in args else None
    tokenizer = load_tokenizer(own or folder, trust_remote_code=bool(args.get("trust_remote_code")))
    _check_tag(spec, tokenizer)
    if spec.prompts.task is not None and not spec.prompts.task.apply_chat_template:
        chat = chat.model_copy(update={"template": "plain"})
    placeholders = find_placeholders(folder, tokenizer, chat.placeholders)
    return ChatRenderer(chat, tokenizer, max_model_len_of(folder, args), placeholders, partial(thinks, spec.reasoning))


def _check_tag(spec: EvalSpec, tokenizer: Any) -> None:
    """Raise SpecError if the closing tag would be missing from every answer."""
    close = None if spec.reasoning is None else spec.reasoning.close
    if close in tokenizer.all_special_tokens and spec.sampling.get("skip_special_tokens", True):
        raise SpecError(
            f"reasoning.close: {close} is a special token of this model, which its text omits. hint: set "
            "sampling.skip_special_tokens to false."
        )


def _identity_of(table: str, record: Record) -> tuple[Any, ...]:
    row = to_arrow(table, [record]).to_pylist()[0]
    return tuple(row[column] for column in IDENTITY[table])


def _read_identities(table: str, part: Path) -> list[tuple[Any, ...]]:
    columns = IDENTITY[table]
    with open_part(part) as file:
        rows = file.read(columns=list(columns)).to_pylist()
    return [tuple(row[column] for column in columns) for row in rows]


def _changed(run_dir: Path, what: str) -> PromptsChangedError:
    return PromptsChangedError(
        f"The prompt set changed since run {run_dir.name} began: {what}. A run can only be resumed with its original "
        "prompts. hint: start a new run with --fresh; stored answers are kept."
    )
