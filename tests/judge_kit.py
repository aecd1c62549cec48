"""Runs of judges, written into the raw tables as an evaluation writes them."""

import json
from typing import Any

import pyarrow
from row_kit import Store

from assayline.comparison.judges import audit_judges

WORDS = {"correct": 1, "incorrect": 0}
PLACES = {"first": 1, "tie": 0.5, "second": 0}


def vote(item: str, word: str | None, label: str | None = None, **columns: Any) -> dict[str, Any]:
    """A verdict on one answer. `error` is the error_kind of a score without a verdict."""
    return {"judge": "judge", "item": item, "word": word, "label": label, **columns}


def give_judge(
    store: Store,
    votes: list[dict[str, Any]],
    *,
    values: dict[str, float] = WORDS,
    scale: list[float] | None = None,
    scorer: str = "verdict",
) -> None:
    """Judges with these votes, and the labels of the run that they judge.

    A vote has judge, item, word and label; for pairs `first` ("a" or "b"), `run` and `other`, the runs of a and b.
    """
    filled = [{"first": None, "run": "judged", "other": None, "repeat": 0, "error": None, **row} for row in votes]
    for row in filled:
        value = value_word(row["word"], values, scale)
        row["value"] = 0.0 if value is None else 1 - value if row["first"] == "b" else value
    given = pyarrow.Table.from_pylist(filled)
    texts = ("label", "first", "other", "error", "word")
    kinds = {name: pyarrow.string() for name in texts}
    given = given.cast(
        pyarrow.schema([(name, kinds.get(name, given.schema.field(name).type)) for name in given.column_names])
    )
    arguments = {"kind": "verdict", "values": None if scale else values, "scale": scale, "label": "human"}
    store.connection.register("given_votes", given)
    for statement in INSERTS:
        filled_in = {"arguments": json.dumps(arguments), "scorer": scorer}
        store.connection.execute(statement, {k: v for k, v in filled_in.items() if f"${k}" in statement})
    store.connection.unregister("given_votes")


def value_word(word: str | None, values: dict[str, float], scale: list[float] | None) -> float | None:
    if word is None:
        return None
    return (float(word) - scale[0]) / (scale[1] - scale[0]) if scale else float(values[word])


INSERTS = (
    """
    insert into raw.scorers
    select distinct judge, $scorer, 'verdict', 0, $arguments, '0', timestamp '2026-01-01', 'digest' from given_votes
    """,
    """
    insert into raw.prompts (run_id, prompt_id, occurrence, source_row, messages_json, target, metadata_json)
    select distinct
        judge, item || coalesce(' ' || first, ''), 0, 0, '[]', null,
        case
            when other is null
            then json_object(
                'source', {'run_id': run, 'prompt_id': item, 'occurrence': 0, 'repeat_index': 0}
            )
            else json_object(
                'source', {'run_id': run, 'prompt_id': item, 'occurrence': 0, 'repeat_index': 0},
                'other', {'run_id': other, 'prompt_id': item, 'occurrence': 0, 'repeat_index': 0},
                'first', first
            )
        end
    from given_votes
    """,
    """
    insert into raw.prompts (run_id, prompt_id, occurrence, source_row, messages_json, target, metadata_json)
    select run, item, 0, 0, '[]', null, json_object('human', any_value(label))
    from given_votes
    where run not in (select run_id from raw.prompts)
    group by run, item
    """,
    """
    insert into raw.requests (run_id, request_id, prompt_id, occurrence, repeat_index, sampling_json)
    select judge, concat_ws(' ', item, first, repeat), item || coalesce(' ' || first, ''), 0, repeat, '{}'
    from given_votes
    """,
    """
    insert into raw.scores by name
    select
        judge as run_id, $scorer as scorer, item || coalesce(' ' || first, '') as prompt_id, 0 as occurrence,
        repeat as repeat_index, value, word as extracted, case when error is null then 'because' end as explanation,
        error as error_kind
    from given_votes
    where word is not null or error is not null
    """,
)


def audit(store: Store, *judges: str) -> list[dict[str, Any]]:
    return audit_judges(store.connection, judges or ("judge",))


def give_judge_run(
    store: Store, judge: str, *judged: str, name: str = "rubric", rubric: str | None = None, **columns: Any
) -> None:
    """The row of a judge's run: of one judged run, or of two for pairs."""
    one = {"kind": "run", "run": judged[0], "rubric": rubric}
    source = one if len(judged) == 1 else {"kind": "pairs", "runs": list(judged)}
    spec = {"sampling": {}, "engine": {"args": {}}, "workers": 1, "prompts": {"source": source}}
    store.given(
        "runs", {"run_id": judge, "name": name, "spec_json": json.dumps(spec), "model": f"of {judge}", **columns}
    )


def give_texts(store: Store, run: str, items: list[str]) -> None:
    """The answers of a judged run whose prompts `give_judge` has given."""
    keys = [{"run_id": run, "request_id": f"{run} {item}"} for item in items]
    store.given("requests", *({**key, "prompt_id": item} for key, item in zip(keys, items, strict=True)))
    times = {"arrived_at_s": 1.0, "finished_at_s": 2.0, "output_tokens": 5, "prompt_tokens": 4}
    store.given(
        "completions",
        *({**key, **times, "text": f"{run:12} answers {item}"} for key, item in zip(keys, items, strict=True)),
    )
    messages = "json_array(json_object('role', 'user', 'content', 'question ' || prompt_id))"
    store.connection.execute(f"update raw.prompts set messages_json = {messages} where run_id = ?", [run])
