"""The scorer verdict: what a judge may write, and what becomes of it."""

import json

import pytest

from assayline.scorers.verdict import score_verdict

VALUES = {"correct": 1.0, "partly": 0.5, "incorrect": 0.0}


def judge(answer, *, values=VALUES, scale=(), is_swapped=False):
    """Return (value, extracted, reason) of a judge's answer."""
    row = {"other": {"run_id": "b"}, "first": "b"} if is_swapped else {"first": "a"}
    return score_verdict(answer, None, row, values, list(scale))[:3]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ('{"reason": "The same.", "verdict": "correct"}', (1, "correct", "The same.")),
        ('\n{"verdict": " Partly ", "reason": "Half."} ', (0.5, "partly", "Half.")),
        ('```json\n{"verdict": "incorrect",\n"reason": null}\n```', (0, "incorrect", None)),
        ('{"verdict": "correct"}', (1, "correct", None)),
        ('{"verdict": "maybe", "reason": "?"}', (0, None, "an unknown verdict: maybe")),
        ('{"verdict": ["correct"]}', (0, None, 'an unknown verdict: ["correct"]')),
        ('{"verdict": ""}', (0, None, "an unknown verdict: ")),
        ('{"verdict": null}', (0, None, "no verdict in the JSON object")),
        ('{"reason": "correct"}', (0, None, "no verdict in the JSON object")),
        ('{"reason": "It is cor', (0, None, "not a JSON object")),
        ('{"verdict": "correct"} and more', (0, None, "not a JSON object")),
        ('"correct"', (0, None, "not a JSON object")),
        ("correct", (0, None, "not a JSON object")),
        ("", (0, None, "not a JSON object")),
    ],
)
def test_score_verdict_reads_the_values(answer, expected):
    assert judge(answer) == expected


@pytest.mark.parametrize(
    ("verdict", "value", "extracted"),
    [
        (1, 0, "1"), (4, 0.75, "4"), (4.0, 0.75, "4"), (2.5, 0.375, "2.5"), (5, 1, "5"), ("3", 0.5, "3"),
        (0.9, 0, None), (6, 0, None), ("four", 0, None), ("NaN", 0, None), (True, 0, None),
    ],
)  # fmt: skip
def test_score_verdict_reads_a_scale(verdict, value, extracted):
    answer = json.dumps({"verdict": verdict, "reason": "So."})
    explanation = (
        "So." if extracted else f"an unknown verdict: {verdict if isinstance(verdict, str) else json.dumps(verdict)}"
    )
    assert judge(answer, values={}, scale=(1, 5)) == (value, extracted, explanation)


def test_score_verdict_is_the_first_answers_if_the_second_was_shown_first():
    values = {"first": 1.0, "tie": 0.5, "second": 0.0}
    shown = [judge(json.dumps({"verdict": word}), values=values, is_swapped=True)[:2] for word in values]
    assert shown == [(0, "first"), (0.5, "tie"), (1, "second")]
    assert judge("neither", values=values, is_swapped=True) == (0, None, "not a JSON object")
