"""From the harness's requests to ours: a prompt per document, a request per request, repeats and windows included.

Count in = count out, as in `requests/build.py`: a document that cannot be encoded is an error row for each repeat.
"""

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from assayline.digests import digest_text
from assayline.errors import SpecError
from assayline.harness.encode import Encoded, HarnessEncoder
from assayline.prompts import RowError
from assayline.prompts.row import check_text
from assayline.records import Completion, Prompt, Request
from assayline.requests.build import WORKER, Prepared, make_request_id, seed_repeat


def name_document(task: str, document: int) -> str:
    """What a prompt's source_id is: the task, and the document's number in it."""
    return f"{task}/{document}"


def identify_document(task: str, document: Any) -> str:
    """A prompt's id: the same question, with however many examples before it."""
    return digest_text(json.dumps([task, document], sort_keys=True, default=str))


def build_harness_requests(instances: Iterable[Any], encoder: HarnessEncoder, *, is_served: bool) -> Iterator[Prepared]:
    """One Prepared per document, in the harness's order. Raises SpecError before the first one for a task that cannot
    be asked."""
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
                f"The task {task} asks for the likelihood of given texts, which needs the engine itself. Set "
                "engine.backend to offline or async."
            )
        if len(requests) > 1 and "generate_until" in kinds:
            others = "several texts" if len(kinds) == 1 else "a text and a likelihood"
            raise SpecError(
                f"The task {task} asks for {others} of one document, and a document has either one text or likelihoods "
                "here. hint: leave the task out, or run it with lm_eval itself."
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


def _prepare(prompt: Prompt, instances: list[Any], encoder: HarnessEncoder) -> Prepared:
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
        return Prepared(prompt, requests, [_error_of(request, error) for request in requests])
    if cut := max((one.cut_tokens for one in encoded), default=0):
        prompt = replace(prompt, metadata={**prompt.metadata, "cut_tokens": cut})
    return Prepared(
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


def _error_of(request: Request, error: RowError) -> Completion:
    return Completion(
        request_id=request.request_id,
        worker=WORKER,
        engine_generation=0,
        window_requests=0,
        error_kind=error.kind,
        error_message=str(error),
    )
