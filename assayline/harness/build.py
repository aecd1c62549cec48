"""Convert the harness's requests to assayline's: a prompt per document, with its requests, repeats and windows.

No document is dropped, as in `requests/build.py`: one that cannot be encoded is an error row for each repeat. The
harness's `TemplateLM` splits context and continuation and chooses the prefix of an empty context. A context that is
too long is truncated on the left, as in the harness, so that scores of tasks with long prompts agree.
"""

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from assayline.digests import digest_text
from assayline.errors import SpecError
from assayline.prompts import RowError
from assayline.prompts.row import check_text
from assayline.records import Prompt, Request
from assayline.requests.build import PreparedPrompt, error_of, make_request_id, seed_repeat

DEFAULT_MAX_TOKENS = 256
"""The harness's default if a task sets none."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """One encoded request for the engine."""

    text: str
    token_ids: list[int]
    sampling: dict[str, Any]
    option: str | None = None
    option_tokens: int | None = None
    """Token ids of the option; None for generated text."""
    cut_tokens: int = 0
    """Number of tokens truncated on the left to fit the context."""


class HarnessEncoder:
    """Encodes requests of the harness with one tokenizer."""

    def __init__(self, tokenizer: Any, max_model_len: int | None, sampling: Mapping[str, Any]) -> None:
        """`sampling`: the spec's sampling, which overrides a task's own."""
        self._tokenizer = tokenizer
        self._max_model_len = max_model_len
        self._sampling = dict(sampling)
        self._template = _make_template(tokenizer)
        self._eos = tokenizer.decode(tokenizer.eos_token_id) if tokenizer.eos_token_id is not None else None

    def encode(self, instance: Any) -> list[Encoded]:
        """Encode a request of the harness: one request, or one per window of a long text. Raises RowError."""
        if len(instance.args) > 2:
            raise RowError("The task has images or audio, which are not supported for lm-evaluation-harness tasks.")
        match instance.request_type:
            case "generate_until":
                return [self._encode_generation(*instance.args)]
            case "loglikelihood":
                return [self._encode_pair(instance)]
            case "loglikelihood_rolling":
                return self._encode_windows(instance.args[0])
        raise RowError(f"The task has requests of the unsupported kind {instance.request_type}.")

    def check_room(self, instance: Any) -> None:
        """Raise SpecError if the harness's maximum output length leaves no room for a prompt."""
        most = self._plan_sampling(instance.args[1])["max_tokens"] or 1
        if self._max_model_len is not None and most >= self._max_model_len:
            raise SpecError(
                f"Task {instance.task_name} generates up to {most} tokens, but the context has only "
                f"{self._max_model_len}: no room for a prompt. hint: raise engine.args.max_model_len, or lower "
                "sampling.max_tokens."
            )

    def _plan_sampling(self, arguments: dict[str, Any]) -> dict[str, Any]:
        from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs

        wanted = dict(normalize_gen_kwargs(arguments, default_max_gen_toks=DEFAULT_MAX_TOKENS))
        until = handle_stop_sequences(wanted.pop("until", None), eos=self._eos)
        most = int(wanted.pop("max_gen_toks", DEFAULT_MAX_TOKENS))
        wanted.pop("do_sample", None)
        return {
            "skip_special_tokens": False, "spaces_between_special_tokens": False, **wanted,
            "max_tokens": most, "stop": until, **self._sampling,
        }  # fmt: skip

    def _encode_generation(self, context: str, arguments: dict[str, Any]) -> Encoded:
        sampling = self._plan_sampling(arguments)
        ids = self._template.tok_encode(context)
        if not ids:
            raise RowError("The prompt has no tokens, expected at least one. hint: is its text empty?", "empty_prompt")
        most = int(sampling["max_tokens"] or 1)
        kept = self._keep_right(ids, None if self._max_model_len is None else self._max_model_len - most)
        return Encoded(context, kept, sampling, cut_tokens=len(ids) - len(kept))

    def _keep_right(self, ids: list[int], room: int | None) -> list[int]:
        if room is None or len(ids) <= room:
            return ids
        if room < 1:
            raise RowError(
                f"The answer may take all {self._max_model_len} tokens of the context (max_model_len), leaving no "
                "room for a prompt. hint: raise engine.args.max_model_len, or lower sampling.max_tokens.",
                "prompt_too_long",
            )
        return ids[-room:]

    def _encode_pair(self, instance: Any) -> Encoded:
        context, continuation = instance.args
        ((_, context_ids, continuation_ids),) = self._template.loglikelihood([instance], disable_tqdm=True)
        return self._score(context + continuation, continuation, context_ids, continuation_ids, top_tokens=1)

    def _encode_windows(self, text: str) -> list[Encoded]:
        from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

        ids = self._template.tok_encode(text)
        windows = get_rolling_token_windows(
            token_list=ids,
            prefix_token=self._template.prefix_token_id,
            max_seq_len=(self._max_model_len or len(ids) + 4) - 2,
            context_len=1,
        )
        pairs = [make_disjoint_window(window) for window in windows]
        texts = [text] if len(pairs) == 1 else [self._tokenizer.decode(window) for _, window in pairs]
        return [self._score(part, part, *pair, top_tokens=0) for part, pair in zip(texts, pairs, strict=True)]

    def _score(
        self, text: str, option: str, context_ids: list[int], option_ids: list[int], *, top_tokens: int
    ) -> Encoded:
        """`top_tokens`: number of likeliest tokens returned at each position, to find out if the option is greedy."""
        everything = [*context_ids, *option_ids]
        ids = self._keep_right(everything, None if self._max_model_len is None else self._max_model_len - 1)
        sampling = {"temperature": 0, "max_tokens": 1, "prompt_logprobs": top_tokens, "detokenize": False}
        cut = len(everything) - len(ids)
        return Encoded(text, ids, sampling, option, min(len(option_ids), len(ids) - 1), cut)


def _make_template(tokenizer: Any) -> Any:
    from lm_eval.api.model import TemplateLM
    from lm_eval.models.utils import has_bos_prefix

    class Template(TemplateLM):  # type: ignore[misc]
        """The methods of a tokenizer that the harness calls; its own code does the rest."""

        @property
        def eot_token_id(self) -> int:
            return int(tokenizer.eos_token_id)

        @property
        def prefix_token_id(self) -> int:
            bos = tokenizer.bos_token_id
            return int(tokenizer.eos_token_id if bos is None else bos)

        def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
            if not string:
                return []
            if add_special_tokens is None and has_bos_prefix(string, tokenizer.decode(self.prefix_token_id)):
                add_special_tokens = False
            given = {} if add_special_tokens is None else {"add_special_tokens": add_special_tokens}
            ids: list[int] = tokenizer(string, verbose=False, **given)["input_ids"]
            return ids

        def _loglikelihood_tokens(self, requests: list[Any], **_: Any) -> list[Any]:
            return requests

        def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> Any:
            raise _asked("loglikelihood_rolling")

        def generate_until(self, requests: Any, disable_tqdm: bool = False) -> Any:
            raise _asked("generate_until")

    return Template()


def _asked(method: str) -> RowError:
    """Implement abstract methods of the harness's class. Its encoding calls none of them in known versions."""
    return RowError(
        f"lm-evaluation-harness called {method} to encode a text, which the supported version (0.4.13) does not. "
        "hint: pip install 'lm_eval==0.4.13'."
    )


def name_document(task: str, document: int) -> str:
    """Return a prompt's source_id: the task and the document's number in it."""
    return f"{task}/{document}"


def identify_document(task: str, document: Any) -> str:
    """Return a prompt's id: a digest of the document, independent of few-shot examples."""
    return digest_text(json.dumps([task, document], sort_keys=True, default=str))


def build_harness_requests(
    instances: Iterable[Any], encoder: HarnessEncoder, *, is_served: bool
) -> Iterator[PreparedPrompt]:
    """Yield one PreparedPrompt per document, in the harness's order. Raises SpecError before the first one for an
    unsupported task."""
    documents = [
        (task, document, list(group))
        for (task, document), group in itertools.groupby(instances, key=lambda one: (one.task_name, one.doc_id))
    ]
    _check_tasks(documents, encoder, is_served)
    seen: Counter[str] = Counter()
    for source_row, (task, document, requests) in enumerate(documents):
        prompt_id = identify_document(task, requests[0].doc)
        prompt = _make_prompt(requests, prompt_id, seen[prompt_id], source_row, name_document(task, document))
        seen[prompt_id] += 1
        yield _prepare(prompt, requests, encoder)


def _check_tasks(documents: list[tuple[str, int, list[Any]]], encoder: HarnessEncoder, is_served: bool) -> None:
    checked: set[str] = set()
    for task, _, requests in documents:
        kinds = {request.request_type for request in requests}
        if is_served and kinds != {"generate_until"}:
            raise SpecError(
                f"Task {task} needs the likelihood of given texts, which engine.backend server does not support. hint: "
                "set it to offline or async."
            )
        if len(requests) > 1 and "generate_until" in kinds:
            others = "several texts" if len(kinds) == 1 else "a text and a likelihood"
            raise SpecError(
                f"Task {task} asks for {others} per document; assayline supports either one text or likelihoods. "
                "hint: leave the task out, or run it with lm_eval itself."
            )
        if task not in checked and "generate_until" in kinds:
            encoder.check_room(requests[0])
        checked.add(task)


def _make_prompt(requests: list[Any], prompt_id: str, occurrence: int, source_row: int, source_id: str) -> Prompt:
    first = requests[0]
    is_choice = first.request_type == "loglikelihood"
    return Prompt(
        prompt_id=prompt_id,
        occurrence=occurrence,
        source_row=source_row,
        source_id=source_id,
        messages=[{"role": "user", "content": first.args[0]}],
        metadata={"task": first.task_name, "document": first.doc_id, "asks_for": first.request_type},
        options=[request.args[1] for request in requests] if is_choice else None,
    )


def _prepare(prompt: Prompt, instances: list[Any], encoder: HarnessEncoder) -> PreparedPrompt:
    repeats = int(instances[0].repeats or 1)
    encoded: list[Encoded] = []
    try:
        for instance in instances:
            for text in instance.args[:1] if instance.request_type == "generate_until" else instance.args:
                check_text(text, "The task's request")
            encoded += encoder.encode(instance)
    except RowError as error:
        blank = Encoded(str(instances[0].args[0]), [], {})
        requests = [_make_request(prompt, repeat, 0, blank) for repeat in range(repeats)]
        return PreparedPrompt(prompt, requests, [error_of(request, error) for request in requests])
    if cut := max((one.cut_tokens for one in encoded), default=0):
        prompt = replace(prompt, metadata={**prompt.metadata, "cut_tokens": cut})
    return PreparedPrompt(
        prompt,
        [_make_request(prompt, repeat, number, one) for repeat in range(repeats) for number, one in enumerate(encoded)],
        cut_in=prompt.metadata["task"] if cut else None,
    )


def _make_request(prompt: Prompt, repeat_index: int, number: int, encoded: Encoded) -> Request:
    option_index = None if encoded.option_tokens is None else number
    return Request(
        request_id=make_request_id(prompt.prompt_id, prompt.occurrence, repeat_index, option_index),
        prompt_id=prompt.prompt_id,
        occurrence=prompt.occurrence,
        repeat_index=repeat_index,
        prompt_token_ids=encoded.token_ids,
        sampling=seed_repeat(encoded.sampling, repeat_index),
        rendered=encoded.text or None,
        option_index=option_index,
        option=encoded.option,
        option_tokens=encoded.option_tokens,
    )
