"""Preparing: from a prompt set to shards of rendered requests, while workers already generate.

Rows are read, templated and rendered one by one and leave as part files of `shard_requests` requests each, fewer if
they are long, so memory does not grow with the prompt set. A row that cannot become a request is an error row at once:
count in = count out.

A run that was killed while it prepared begins anew with its first row: parts that are there are not written again, but
compared, and what they hold must be what would be written now.
"""

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from assayline.errors import PromptError, PromptsChangedError, SpecError
from assayline.evaluation.order import can_order, expected_tokens, measure_request, order_rows, read_lengths
from assayline.evaluation.shards.queue import ShardQueue
from assayline.evaluation.shards.rows import name_shard
from assayline.evaluation.shards.throttle import throttle
from assayline.evaluation.task import plan_chat, write_task_requests
from assayline.media.shelf import Shelf
from assayline.model import ModelIdentity, identify_model
from assayline.prompts import load_prompts
from assayline.records import Completion, Prompt, Request
from assayline.requests.build import Prepared, build_requests
from assayline.requests.chat import ChatRenderer, load_tokenizer
from assayline.requests.context import max_model_len_of
from assayline.requests.placeholders import find_placeholders
from assayline.requests.served_chat import ServedChat
from assayline.runs.manifest import PromptCounts
from assayline.spec.evaluation import EvalSpec
from assayline.spec.sources import LmEvalSource
from assayline.store.parts import fetch_parts, list_part_names, part_unreadable, write_part
from assayline.store.tables import Record, to_arrow

IDENTITY = {
    "prompts": ("prompt_id", "occurrence"),
    "completions": ("request_id",),
    "requests": ("request_id", "rendered", "messages_json"),
}
"""Columns that say what a part holds. What was rendered is among them: examples of a prompt are not in its id."""

SHARDS_PER_WORKER = 50
"""Whoever begins the last shard keeps the others waiting for a fiftieth of the run at the most."""
SMALLEST_SHARD = 16
"""Requests; fewer are not worth the two files that a shard is, unless `shard_requests` says so."""
LARGEST_SHARD = 2**25
"""Characters and tokens of its requests, beyond which a shard has fewer than `shard_requests`."""


class Preparation:
    """One run's preparation: opening it checks tokenizer, template and the first prompts; `run` writes the shards."""

    def __init__(self, spec: EvalSpec, model: ModelIdentity, run_dir: Path | None = None) -> None:
        """`run_dir` takes media that come inside rows (None: a dry run, which keeps nothing)."""
        self._spec = spec
        self._renderer, tokenizer, max_model_len = open_renderer(spec, model)
        if isinstance(spec.prompts.source, LmEvalSource):
            prepared = write_task_requests(spec, spec.prompts.source, self._renderer, tokenizer, max_model_len)
        else:
            prompts = load_prompts(spec.prompts, tokenizer, Shelf(run_dir))
            prepared = build_requests(spec, prompts, self._renderer, max_model_len)
        if spec.prompts.on_bad_row == "stop":
            prepared = _refuse_errors(prepared)
        first = next(prepared)  # it shows most mistakes
        _check_target(spec, first)
        self._prepared = itertools.chain([first], prepared)

    @property
    def template_id(self) -> str:
        """Digest of the template that renders the prompts."""
        return self._renderer.template_id

    def __iter__(self) -> Iterator[Prepared]:
        """Each prompt row with its requests; only once."""
        return self._prepared

    def run(
        self, run_dir: Path, answered: frozenset[str] = frozenset(), *, longest_first: bool = False, workers: int = 1
    ) -> PromptCounts:
        """Writes every shard, then closes the queue; asked to stop, it leaves the shard that is not full.

        `answered` are requests that have an answer though their shard is not there; `longest_first`: the order is by
        the lengths that answers are expected to have, where they are known; `workers` will share the shards. Raises
        PromptError for a source that cannot be read on, PromptsChangedError for one that is not what it was when the
        run began.
        """
        queue = ShardQueue(run_dir)
        lengths = read_lengths(run_dir)
        has_order = longest_first and can_order(self._spec, lengths)
        shard = _Shard(run_dir, self._spec.shard_requests, answered, has_order, workers)
        is_stopped = throttle(queue.is_stopped)  # in a store it takes a while, and there are millions of rows
        rows = itertools.takewhile(lambda _: not is_stopped(), self)
        horizons = order_rows(self._spec, lengths, rows) if has_order else ([row] for row in rows)
        for horizon in horizons:
            if has_order and queue.is_stopped():
                break  # the horizon may be cut off
            for prepared in horizon:
                shard.add(prepared)
            if has_order:
                shard.write()
        if queue.is_stopped():
            return shard.count(is_complete=False)
        shard.write()
        if len(list_part_names(run_dir, "requests")) > shard.written:
            raise _changed(run_dir, f"it has {shard.written} shards of prompts now, and had more")
        queue.close(shard.written)
        return shard.count(is_complete=True)


def _refuse_errors(rows: Iterator[Prepared]) -> Iterator[Prepared]:
    for prepared in rows:
        for error in prepared.errors[:1]:
            raise PromptError(
                f"Row {prepared.prompt.source_row} cannot become a request ({error.error_kind}): {error.error_message} "
                "prompts.on_bad_row is stop; error_row asks the others."
            )
        yield prepared


def _check_target(spec: EvalSpec, first: Prepared) -> None:
    """Raises PromptError where scorers need targets that no column was named for, and the first row has none."""
    needy = [scorer.label for scorer in spec.scorers or [] if scorer.needs_target]
    if needy and spec.prompts.columns.target is None and first.prompt.target is None and not first.errors:
        raise PromptError(
            f"The scorer {needy[0]} holds answers against a target, and the first row of {spec.prompts.set_name} has "
            "no column `target`. Name the column with the expected answers in prompts.columns.target, or take a scorer "
            "that needs none: json."
        )


class _Shard:
    """Rows of the shard that is being filled, and totals over all shards."""

    def __init__(
        self, run_dir: Path, most_requests: int, answered: frozenset[str], has_order: bool, workers: int
    ) -> None:
        self._run_dir = run_dir
        self._queue = ShardQueue(run_dir)
        self._most = most_requests
        self._answered = answered
        self._has_order = has_order
        self._workers = workers
        self._prompts: list[Prompt] = []
        self._requests: list[Request] = []
        self._errors: list[Completion] = []
        self._cut: Counter[str] = Counter()
        self._size = self._rows = self._duplicates = self._total_requests = self._total_errors = self._expected = 0
        self.written = 0
        self._there = {table: set(list_part_names(run_dir, table)) for table in IDENTITY}
        """Parts of an earlier attempt: nobody else writes such."""

    def add(self, prepared: Prepared) -> None:
        """Takes one prompt with all its requests; writes the shard when it is full."""
        self._rows += 1
        self._duplicates += prepared.prompt.occurrence > 0
        self._cut.update([prepared.cut_in] if prepared.cut_in else [])
        self._prompts.append(prepared.prompt)
        self._requests.extend(prepared.requests)
        self._errors.extend(prepared.errors)
        self._size += sum(map(measure_request, prepared.requests))
        most = choose_size(self._total_requests, self._most, self._workers)
        if len(self._requests) >= most or self._size >= LARGEST_SHARD:
            self.write()

    def count(self, *, is_complete: bool) -> PromptCounts:
        """Totals over the shards that are written."""
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
        """Writes what there is. Prompts and errors go first: a worker may claim the requests at once."""
        if not self._prompts:
            return
        weight = None if self._workers == 1 else len(self._requests)
        if self._has_order:
            weight = max(map(expected_tokens, self._requests), default=0)
        name = name_shard(self.written, weight)
        self._put("prompts", name, self._prompts)
        self._put("completions", f"prepare-{self.written:06d}", self._errors)
        if self._answered and (known := [r.request_id for r in self._requests if r.request_id in self._answered]):
            self._queue.mark_partly_answered(name, known)
        self._put("requests", name, self._requests)
        self._total_requests += len(self._requests)
        self._total_errors += len(self._errors)
        self._expected += sum(request.expected_output_tokens is not None for request in self._requests)
        self.written += 1
        self._prompts, self._requests, self._errors, self._size = [], [], [], 0

    def _put(self, table: str, name: str, records: list[Any]) -> None:
        """Writes a part, or compares it with the one that an earlier attempt wrote."""
        if f"{name}.parquet" in self._there[table]:
            [part] = fetch_parts(self._run_dir, table, [f"{name}.parquet"])
            if _read_identities(table, part) != [_identity_of(table, record) for record in records]:
                raise _changed(self._run_dir, f"{table} part {name} holds other rows")
        elif records:
            write_part(self._run_dir, table, name, records)


def choose_size(written: int, most: int, workers: int) -> int:
    """Requests of the next shard, when so many are written.

    For several workers it grows with what is written, so that no shard is more than a fiftieth of a worker's share,
    however long the prompt set turns out to be.
    """
    return most if workers == 1 else min(most, max(SMALLEST_SHARD, written // (SHARDS_PER_WORKER * workers)))


OpenedRenderer = tuple[ServedChat | ChatRenderer, Any, int | None]


def open_renderer(spec: EvalSpec, model: ModelIdentity) -> OpenedRenderer:
    """What renders a spec's chats, the tokenizer, and the context's length in tokens, where they are known here.

    Raises ModelError for a tokenizer or template that is not there, and SpecError.
    """
    if spec.engine.sends_messages:
        return ServedChat(spec.chat), None, None
    tokenizer, max_model_len = open_tokenizer(spec, model)
    placeholders = find_placeholders(model.folder or Path(), tokenizer, spec.chat.placeholders)
    return ChatRenderer(plan_chat(spec), tokenizer, max_model_len, placeholders), tokenizer, max_model_len


def open_tokenizer(spec: EvalSpec, model: ModelIdentity) -> tuple[Any, int | None]:
    """The tokenizer that renders, and the context's length in tokens where it is known."""
    args, folder = spec.engine.args, model.folder
    assert folder is not None, "a model without files is for servers that render"
    tokenizer_folder = folder
    if "tokenizer" in args:
        tokenizer_folder = identify_model(args["tokenizer"], args.get("tokenizer_revision")).folder or folder
    tokenizer = load_tokenizer(tokenizer_folder, trust_remote_code=bool(args.get("trust_remote_code")))
    _check_tag(spec, tokenizer)
    return tokenizer, max_model_len_of(folder, args)


def _check_tag(spec: EvalSpec, tokenizer: Any) -> None:
    """Raises SpecError for a closing tag that would never be seen."""
    close = None if spec.reasoning is None else spec.reasoning.close
    if close in tokenizer.all_special_tokens and spec.sampling.get("skip_special_tokens", True):
        raise SpecError(
            f"reasoning.close: {close} is a special token of this model, which is left out of its text. Set "
            "sampling.skip_special_tokens to false."
        )


def _identity_of(table: str, record: Record) -> tuple[Any, ...]:
    row = to_arrow(table, [record]).to_pylist()[0]
    return tuple(row[column] for column in IDENTITY[table])


def _read_identities(table: str, part: Path) -> list[tuple[Any, ...]]:
    columns = IDENTITY[table]
    try:
        with pq.ParquetFile(part) as file:
            rows = file.read(columns=list(columns)).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise part_unreadable(part, error) from error
    return [tuple(row[column] for column in columns) for row in rows]


def _changed(run_dir: Path, what: str) -> PromptsChangedError:
    return PromptsChangedError(
        f"The prompt set changed since run {run_dir.name} began: {what}. A run can only be resumed with the prompts "
        "that it began with. Start a new one with --fresh; what was answered is kept."
    )
