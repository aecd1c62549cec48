"""Targets: what a data set gives as the right answer, as one text. Several right answers are `{"one_of": [...]}`."""

import json
from typing import Any

from assayline.prompts.row import as_text, is_null

ONE_OF = "one_of"


class ObjectTarget(str):
    """A target that was an object or a list whose meaning is not known: its JSON text."""


def write_target(value: Any, where: str = "The target") -> str | None:
    """Return the text of a target. A list means one of its values; so do the objects of known data sets.

    Other objects, and lists of lists, are an ObjectTarget. Raises RowError for bytes and for text that is not Unicode.
    """
    golds = None if is_null(value) else _list_golds(value)
    if golds is None:
        text = as_text(value, where)
        return text if is_null(value) or text is None else ObjectTarget(text)
    texts = list(dict.fromkeys(text for gold in golds if (text := as_text(gold, where)) is not None))
    return json.dumps({ONE_OF: texts}, ensure_ascii=False) if len(texts) > 1 else texts[0] if texts else None


def read_golds(target: str | None) -> list[str | None]:
    """Return the right answers that a target's text means: those of `one_of`, or the text itself."""
    if target is None or not target.startswith('{"one_of"'):
        return [target]
    try:
        golds = json.loads(target)
    except ValueError:
        return [target]
    if golds.keys() != {ONE_OF} or not isinstance(golds[ONE_OF], list) or not golds[ONE_OF]:
        return [target]
    return [gold if isinstance(gold, str) else json.dumps(gold, ensure_ascii=False) for gold in golds[ONE_OF]]


def _list_golds(value: Any) -> list[Any] | None:
    """Return the right answers in a value; None if its meaning is not known."""
    if isinstance(value, list):
        golds = [gold if isinstance(gold, dict) else [gold] for gold in value if not is_null(gold)]
        found = [_list_golds(gold) if isinstance(gold, dict) else gold for gold in golds]
        if any(one is None or any(isinstance(gold, list | dict) for gold in one) for one in found):
            return None
        return [gold for one in found for gold in one or ()]
    return _list_object(value) if isinstance(value, dict) else [value]


def _list_object(value: dict[str, Any]) -> list[Any] | None:
    keys = set(value)
    if keys == {ONE_OF}:
        return _list_golds(value[ONE_OF])
    if "text" in keys and all(_is_place(value[key]) for key in keys - {"text"}):
        text = value["text"]  # SQuAD: no text means that there is no answer
        return (text or [""]) if isinstance(text, list) else [text]
    if "aliases" in keys and keys & {"value", "normalized_value", "normalized_aliases"}:  # TriviaQA
        golds = [value.get("value"), *value["aliases"], *(value.get("normalized_aliases") or ())]
        return [gold for gold in golds if gold is not None]
    if "spans" in keys and keys <= {"spans", "types"}:  # DROP on the hub: a span per annotator
        return list(value["spans"])
    if "spans" in keys and keys & {"number", "date"}:  # DROP: one of the three is filled, and all spans are the answer
        day = value.get("date") or {}
        date = " ".join(str(day.get(part) or "") for part in ("day", "month", "year")).split()
        filled = str(value.get("number") or "") or " ".join(date) or ", ".join(value["spans"] or ())
        return [filled] if filled else None
    return _list_short_answers(value) if "short_answers" in keys else None


def _is_place(value: Any) -> bool:
    values = value if isinstance(value, list) else [value]
    return all(one is None or isinstance(one, int) for one in values)


def _list_short_answers(value: dict[str, Any]) -> list[Any] | None:
    """Return the short answers of Natural Questions, with yes and no, by all annotators."""
    golds: list[Any] = []
    for answers in value["short_answers"]:
        text = answers.get("text") if isinstance(answers, dict) else answers
        golds += text if isinstance(text, list) else [text] if text is not None else []
    marks = value.get("yes_no_answer")
    for mark in marks if isinstance(marks, list) else [marks]:
        if mark in (0, 1, "NO", "YES"):
            golds.append("yes" if mark in (1, "YES") else "no")
    return golds or None
