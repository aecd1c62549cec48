"""Rows of questions about zero to two images or audio clips, including questions about a missing one."""

import json
import random
from pathlib import Path
from typing import Any

ORDINALS = (" first", " second")
Look = dict[str, str]
"""Answers about an image or a clip, by task."""


def ask_about(
    column: str, files: list[str], looks: list[Look], questions: dict[str, tuple[str, ...]], seed: int = 8
) -> list[dict[str, Any]]:
    """Make rows for these files: some without one, each file alone in both phrasings of a task, and once in a pair."""
    draw = random.Random(seed)
    tasks = list(questions)

    def ask(chosen: list[int], about: int, task: str, form: int) -> dict[str, Any]:
        which = ORDINALS[about] if len(chosen) > 1 or about else ""
        answer = looks[chosen[about]][task] if about < len(chosen) else "none"
        named = [files[number] for number in chosen]
        media = named if len(named) > 1 else named[0] if named else None
        return {column: media, "question": questions[task][form].format(which=which), "answer": answer, "task": task}

    rows = [ask([], number % 2, tasks[number // 2 % 2], number // 4 % 2) for number in range(16)]
    for number in range(len(files)):
        rows += [ask([number], 0, tasks[number % 2], form) for form in (0, 1)]
        other = draw.choice([other for other in range(len(files)) if differ(looks[number], looks[other])])
        rows.append(ask([number, other], number // 2 % 2, tasks[number % 2], draw.randrange(2)))
    draw.shuffle(rows)
    return rows


def differ(one: Look, two: Look) -> bool:
    """Return True if every answer about one is wrong about the other, so that swapped media always show."""
    return all(one[task] != two[task] for task in one)


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write a file of rows."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
