"""Engine: answer an iterable of prompts lazily, with recovery from engine crashes.

A thin layer over a worker of a run: the same rendering, max concurrency, recovery and devices, without a run, a
database or Prefect. Unanswered prompts are kept in memory; only the engine's log is written to disk.
"""

import contextlib
import itertools
import logging
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from assayline.clock import RunClock
from assayline.engines.base import EngineFacts, EngineHooks
from assayline.errors import EngineError
from assayline.media.references import MediaStore
from assayline.model import identify_spec_model
from assayline.prompts import BadRow, RowError
from assayline.prompts.columns import RowReader
from assayline.prompts.media import separate_media
from assayline.records import Completion, EngineEvent, Json, Prompt, Request
from assayline.requests.build import PreparedPrompt, build_requests, write_warm_up
from assayline.run.prepare import open_renderer
from assayline.run.worker import WorkOrder, claim_device, open_adaptive_engine, order_engine
from assayline.settings import Settings, load_settings
from assayline.spec.checks import check_arguments
from assayline.spec.evaluation import EvalSpec
from assayline.spec.file import parse_spec

Message = Mapping[str, Any]
"""An OpenAI chat message: {"role": "user", "content": "..."}. Content may have parts with images, audio and video."""

Content = str | Sequence[Message] | Sequence[int]
"""A prompt: a text, a chat, or token ids that are sent unchanged."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A prompt with its own sampling or a tag."""

    content: Content
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Sampling of this prompt, overriding that of `generate`: any argument of vllm.SamplingParams except n."""
    tag: Any = None
    """Any value of the caller's, returned with each answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer to a prompt, or an error: then `error` is set, and `text` and `token_ids` are None."""

    index: int
    """Number of the prompt, from 0."""
    sample: int
    """0 to n - 1."""
    content: Content
    """The prompt."""
    tag: Any
    prompt_token_ids: list[int]
    """Token ids sent to the engine; empty if a server renders the chat, or if the prompt is invalid."""
    text: str | None
    reasoning: str | None
    """The model's reasoning before its answer, if the spec configures reasoning."""
    token_ids: list[int] | None
    logprobs: list[float] | None
    """Natural log-probability of each of `token_ids`; None unless `logprobs` was requested."""
    finish_reason: str | None
    """`stop` or `length`, as in vLLM."""
    error: str | None
    """The error message; None for an answer."""
    completion: Completion
    """The complete row: times, cached tokens, engine generation, all log-probabilities, the kind of error."""


IDLE_S = 0.02


class Asking:
    """Requests in flight of one `generate`, with their prompts and samples."""

    def __init__(self, spec: EvalSpec, prepare: Callable[[EvalSpec, int, Ask], PreparedPrompt]) -> None:
        """`prepare` makes the requests, or error rows, of a numbered prompt."""
        self.spec = spec
        self._prepare = prepare
        self._waiting: dict[str, tuple[int, int, Ask, list[int]]] = {}
        self._refused: deque[Completion] = deque()

    def read(self, prompts: Iterable[Ask | Content | None]) -> Iterator[Request | None]:
        """Yield the prompts as requests, one by one; None if there is nothing now."""
        index = 0
        for prompt in prompts:
            if prompt is None:
                yield None
                continue
            ask = prompt if isinstance(prompt, Ask) else Ask(prompt)
            prepared = self._prepare(self.spec, index, ask)
            for request in prepared.requests:
                self._waiting[request.request_id] = (index, request.repeat_index, ask, request.prompt_token_ids)
            index += 1
            self._refused.extend(prepared.errors)
            if prepared.ready:
                yield from prepared.ready
            else:
                yield None  # so that errors are returned before more prompts are read

    def answer(self, completion: Completion) -> Answer:
        """Convert a row to an answer."""
        index, sample, ask, prompt_token_ids = self._waiting.pop(completion.request_id)
        logprobs = None
        if completion.logprobs and completion.output_token_ids:  # the row has other tokens' values, too
            pairs = zip(completion.logprobs, completion.output_token_ids, strict=True)
            logprobs = [by_token[str(token)] for by_token, token in pairs]
        return Answer(
            index=index,
            sample=sample,
            content=ask.content,
            tag=ask.tag,
            prompt_token_ids=prompt_token_ids,
            text=completion.text,
            reasoning=completion.reasoning,
            token_ids=completion.output_token_ids,
            logprobs=logprobs,
            finish_reason=completion.finish_reason,
            error=completion.error_message if completion.error_kind else None,
            completion=completion,
        )

    def take_refused(self) -> Iterator[Answer]:
        """Yield the errors of prompts that cannot be sent."""
        while self._refused:
            yield self.answer(self._refused.popleft())


def wait_for(requests: Iterator[Request | None]) -> Iterator[Request]:
    """Yield requests only, sleeping while there are none."""
    for request in requests:
        if request is None:
            time.sleep(IDLE_S)
        else:
            yield request


LOG = logging.getLogger("assayline")
WORKER = "engine"
TROUBLE = frozenset({"failed", "reduced", "isolated"})
"""Events that are logged as warnings; others are logged as info."""


class Engine:
    """An open engine. Use it as a context manager: `with Engine(...) as engine:`.

        with Engine("Qwen/Qwen3-0.6B", args={"max_model_len": 4096}) as engine:
            for answer in engine.generate(["What is 1 + 1?"], n=4, temperature=1.0, logprobs=0):
                print(answer.index, answer.sample, answer.text, answer.logprobs)

    Not thread-safe: use it from one thread at a time.
    """

    def __init__(
        self,
        model: str,
        *,
        args: Mapping[str, Any] | None = None,
        sampling: Mapping[str, Any] | None = None,
        chat: Mapping[str, Any] | None = None,
        reasoning: Mapping[str, Any] | None = None,
        engine: Mapping[str, Any] | None = None,
        revision: str | None = None,
        settings: Settings | None = None,
        on_event: Callable[[EngineEvent], None] | None = None,
        log_folder: Path | None = None,
    ) -> None:
        """Open the engine, which takes seconds to minutes.

        Args:
            model: Hugging Face id, or the path of a folder.
            args: arguments of vLLM's EngineArgs.
            sampling: defaults of `generate`: arguments of vllm.SamplingParams.
            chat, reasoning: as in a spec (docs/reference/spec.md).
            engine: other fields of a spec's `engine`: backend, device, max_concurrency, recovery, env, server.
            revision: hub branch, tag or commit.
            settings: settings of the machine (default: ASSAYLINE_* environment variables).
            on_event: called for each engine that opened, failed, was reduced or closed.
            log_folder: folder for engine logs (default: a temporary folder, deleted by `close`).

        Raises SpecError, ModelError, DeviceError or EngineError.
        """
        self._settings = settings or load_settings()
        self._settings.pass_on_token()
        self._on_event = on_event
        self._asked = 0
        self._is_warm = self._is_busy = False
        self._clock = RunClock.start()
        fields = {"chat": chat, "reasoning": reasoning, "revision": revision}
        self._spec = parse_spec(
            {
                "model": model,
                "prompts": {"source": {"kind": "inline", "rows": [{"prompt": ""}]}},
                "sampling": dict(sampling or {}),
                "engine": {**(engine or {}), "args": {**(engine or {}).get("args", {}), **(args or {})}},
                **{name: value for name, value in fields.items() if value is not None},
            },
            origin="Engine(...)",
        )
        check_arguments(self._spec)
        identity = identify_spec_model(self._spec)
        self.model_id = identity.model_id
        """Identity of the model's content: digest of its files, or hub id and commit."""
        self._renderer = open_renderer(self._spec, identity)
        with contextlib.ExitStack() as stack:
            self._folder = stack.enter_context(_hold_folder(log_folder))
            self._reader = RowReader(
                self._spec.prompts.columns, None, self._spec.prompts.media, MediaStore(self._folder.absolute())
            )
            order = WorkOrder(
                open=order_engine(self._spec, identity, self._clock, worker=WORKER),
                settings=self._settings,
                holder=f"an Engine of {model}",
                log_folder=self._folder / "logs",
            )
            device, hooks = claim_device(order, stack), EngineHooks(on_note=LOG.info)
            self._engine = open_adaptive_engine(order, device, hooks, self._record, may_isolate=self._may_isolate)
            stack.callback(self._engine.close)
            self._stack = stack.pop_all()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the engine's processes and free their memory. Idempotent."""
        self._stack.close()

    @property
    def facts(self) -> EngineFacts:
        """Facts of the current engine: max concurrency, context length, versions, device."""
        return self._engine.facts

    def generate(self, prompts: Iterable[Ask | Content | None], *, n: int = 1, **sampling: Any) -> Iterator[Answer]:
        """Answer every prompt `n` times. Answers are yielded in the order in which they finish.

        Prompts are read one by one while fewer than max concurrency requests are in flight. So `prompts` may be
        infinite, and may yield None for "nothing now" to wait for answers. An invalid prompt becomes an answer with
        `error`. Closing the iterator early cancels the requests in flight; the engine stays usable.

        Args:
            prompts: texts, chats, token ids, or `Ask` with its own sampling or a tag.
            n: answers per prompt.
            sampling: other arguments of vllm.SamplingParams, overriding the defaults. logprobs=0 returns the
                log-probabilities of the chosen tokens.

        Raises SpecError for sampling arguments unknown to vLLM, EngineError if the engine is closed or busy, and
        EngineDiedError, which lists all attempts, if no engine can be recovered.
        """
        spec = parse_spec(
            {**self._spec.model_dump(exclude_unset=True), "sampling": {**self._spec.sampling, **sampling, "n": n}},
            origin="generate(...)",
        )
        check_arguments(spec)
        return self._generate(Asking(spec, self._prepare), prompts)

    def _generate(self, asking: Asking, prompts: Iterable[Ask | Content | None]) -> Iterator[Answer]:
        if self._is_busy:
            raise EngineError(
                "The engine is busy with another iterable. hint: finish or close it, or open another Engine."
            )
        self._is_busy = True
        try:
            requests = asking.read(prompts)
            first = [] if self._is_warm else list(itertools.islice(wait_for(requests), 1))
            every: Iterator[Request | None] = itertools.chain(first, requests)
            if first:
                self._warm_up(first, asking.spec)
            for completion in self._engine.generate(every):
                yield from asking.take_refused()
                yield asking.answer(completion)
            yield from asking.take_refused()
        finally:
            self._is_busy = False

    def _prepare(self, spec: EvalSpec, index: int, ask: Ask) -> PreparedPrompt:
        """Make a prompt's requests, or its errors."""
        build = build_requests(spec, [self._read(index, ask)], self._renderer)
        prepared = next(build)
        self._asked += len(prepared.requests)
        return prepared

    def _read(self, index: int, ask: Ask) -> Prompt | BadRow:
        def make(messages: list[dict[str, Json]], **values: Any) -> Prompt:
            return Prompt(
                prompt_id=str(index),
                occurrence=0,
                source_row=index,
                source_id=None,
                messages=messages,
                sampling=dict(ask.sampling),
                **values,
            )

        content: Any = ask.content
        if isinstance(content, str):
            row: dict[str, Any] = {"prompt": content}
        elif all(isinstance(token, int) for token in content):
            return make([], prompt_token_ids=list(content))
        else:
            row = {"messages": [dict(message) for message in content]}
        try:
            messages, media = separate_media(self._reader.read(row).messages)
        except RowError as error:
            return BadRow(make([]), error.kind, str(error))
        return make(messages, media=media)

    def _warm_up(self, first: list[Request], spec: EvalSpec) -> None:
        """Warm up the engine, so that the first prompts do not wait for lazy compilation."""
        request, _ = write_warm_up(first, spec.sampling_defaults, WORKER, self._engine.facts.max_model_len)
        self._engine.warm_up(request)
        self._is_warm = True

    def _may_isolate(self, isolated: int) -> bool:
        return isolated <= max(1.0, self._spec.max_error_share * self._asked)

    def _record(self, row: EngineEvent) -> None:
        level = logging.WARNING if row.event in TROUBLE else logging.INFO
        LOG.log(level, "engine %d %s%s", row.engine_generation, row.event, f": {row.message}" if row.message else "")
        if self._on_event is not None:
            self._on_event(row)


@contextlib.contextmanager
def _hold_folder(folder: Path | None) -> Iterator[Path]:
    """Yield the folder, or a temporary one that is deleted afterwards."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="assayline-", ignore_cleanup_errors=True) as made:
        yield Path(made)
