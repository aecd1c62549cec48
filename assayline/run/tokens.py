"""Stored answers that an engine reads: requests of prompt and answer, and the tokens with their log-probabilities.

An answer is read as token ids, never as text, behind the ids of its prompt: each of its tokens gets the probability
that the engine gives it after those before (teacher forcing). The engine generates one token, which is ignored. Both
sides of a comparison are readings, as log-probabilities of generation differ with temperature and sampling.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from assayline.errors import RowError
from assayline.prompts.read import select_rows
from assayline.records import Prompt, Request, Token
from assayline.requests.build import PreparedPrompt, check_length, error_of
from assayline.spec.evaluation import EvalSpec
from assayline.store.parts import list_parts, write_part

LEAST_LOGPROB = math.log(0.004)
"""Tokens below it are not stored one by one: of the 20 likeliest ones they are a third, and 2% of a divergence."""


def build_readings(
    spec: EvalSpec, answers: Iterable[Mapping[str, Any]], max_model_len: int | None
) -> Iterator[PreparedPrompt]:
    """Yield a request per stored answer, with the id of the request that gave it, in the order of shuffle_seed.

    An answer that does not fit into the context becomes an error row: nothing is cut.
    """
    for number, row in select_rows(answers, None, spec.prompts.shuffle_seed):
        prompt = Prompt(
            prompt_id=row["prompt_id"],
            occurrence=row["occurrence"],
            source_row=number,
            source_id=row["source_id"],
            messages=json.loads(row["messages_json"]),
        )
        request = Request(
            request_id=row["request_id"],
            prompt_id=prompt.prompt_id,
            occurrence=prompt.occurrence,
            repeat_index=row["repeat_index"],
            prompt_token_ids=[*row["prompt_token_ids"], *row["output_token_ids"]],
            sampling=spec.sampling_defaults,
            rendered=f"{row['rendered'] or ''}{row['text'] or ''}" or None,
            option_tokens=len(row["output_token_ids"]),
        )
        try:
            check_length(len(request.prompt_token_ids), max_model_len)
        except RowError as error:
            yield PreparedPrompt(prompt, [request], [error_of(request, error, len(request.prompt_token_ids))])
        else:
            yield PreparedPrompt(prompt, [request])


def write_tokens(run_dir: Path) -> None:
    """Write the tokens of all readings of a run as parts, one for each part of answers. Raises StoreError."""
    answers: dict[str, list[int]] = {}
    for part in list_parts(run_dir, "requests"):
        rows = pq.read_table(part, columns=["request_id", "prompt_token_ids", "option_tokens"]).to_pylist()
        answers |= {row["request_id"]: row["prompt_token_ids"][-row["option_tokens"] :] for row in rows}
    for part in list_parts(run_dir, "completions"):
        rows = pq.read_table(part, columns=["request_id", "prompt_logprobs_json"]).to_pylist()
        tokens = [
            token
            for row in rows
            if row["prompt_logprobs_json"] and (ids := answers.pop(row["request_id"], None))
            for token in read_tokens(row["request_id"], ids, json.loads(row["prompt_logprobs_json"]))
        ]
        if tokens:
            write_part(run_dir, "tokens", part.stem, tokens)


def read_tokens(request_id: str, ids: list[int], places: list[dict[str, float]]) -> Iterator[Token]:
    """Yield the tokens of an answer; a place has the log-probabilities of the likeliest tokens and of its own."""
    for position, (token_id, place) in enumerate(zip(ids, places, strict=True)):
        found = sorted(place.items(), key=lambda one: -one[1])
        top = [(int(token), one) for n, (token, one) in enumerate(found[:20]) if n == 0 or one >= LEAST_LOGPROB]
        ranks = {int(token): rank for rank, (token, _) in enumerate(found[:20], 1)}
        yield Token(
            request_id=request_id,
            position=position,
            token_id=token_id,
            logprob=place[str(token_id)],
            rank=ranks.get(token_id),
            top_token_ids=[token for token, _ in top],
            top_logprobs=[round(logprob, 3) for _, logprob in top],
            rest_share=max(0.0, round(1 - sum(math.exp(logprob) for _, logprob in top), 7)),
        )
