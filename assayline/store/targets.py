"""Try scorers on targets before a run: a target that a scorer cannot read scores 0, whatever the answer is."""

from collections.abc import Sequence

import duckdb

from assayline.errors import PromptError
from assayline.spec.criteria import Scorer
from assayline.store.database import find_in_schemas, list_models
from assayline.store.metrics import UNREAD_TARGET
from assayline.store.scoring import write_call

READERS = ("numeric", "choice", "loglikelihood")
"""Kinds of scorers that read a target, and score 0 if they cannot."""


def check_targets(scorers: Sequence[Scorer], targets: Sequence[tuple[str, list[str] | None]]) -> None:
    """Raise PromptError if one of the scorers reads none of these targets, each with the options of its prompt."""
    asked = [scorer for scorer in scorers if scorer.kind in READERS and targets]
    if not asked:
        return
    with duckdb.connect() as connection:
        connection.execute("create schema internal; create schema raw")
        for model in list_models().values():
            if model.folder == "scorers":
                connection.execute(model.statement)
        find_in_schemas(connection)
        for scorer in asked:
            call, values = write_call(scorer)
            given = {"targets": [target for target, _ in targets], "options": [options for _, options in targets]}
            [(unread,)] = connection.execute(_UNREAD.format(call=call), {**given, **values}).fetchall()
            if unread == len(targets):
                raise PromptError(
                    f"{scorer.title} reads none of the first {unread:,} targets, such as {targets[0][0]!r:.100}. hint: "
                    "check prompts.columns.target, or use another scorer."
                )


_UNREAD = f"""
    select count(*)
    from (
        select ({{call}}).explanation as explanation
        from (
            select
                '' as answer,
                unnest($targets) as target,
                unnest($options::varchar[][]) as options,
                list_transform(options, lambda option: 0.0) as option_logprobs,
                list_transform(options, lambda option: 1) as option_tokens
        )
    )
    where {UNREAD_TARGET}
"""  # noqa: S608 - the condition is ours
