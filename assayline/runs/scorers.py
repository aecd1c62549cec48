"""A run's scorers: those of its spec, then those that `assayline score` added, kept beside it in `scorers.json`.

The file makes them part of the run's folder, so that a database made anew from it has their scores too.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from assayline.errors import SpecError, StoreError
from assayline.files import MAKE_ROOM, write_json
from assayline.spec.criteria import ExactMatch, Scorer, list_kinds
from assayline.spec.file import explain

SCORERS_NAME = "scorers.json"
_ONE: TypeAdapter[Scorer] = TypeAdapter(Scorer)


def read_run_scorers(run_dir: Path, spec: dict[str, Any]) -> list[Scorer]:
    """All scorers of a run, the most important one first. `spec` is the run's, as its JSON has it.

    One that was added under the name of another takes its place. Raises StoreError for a file that cannot be read.
    """
    given = spec.get("scorers")
    if given is None and spec["prompts"]["source"]["kind"] == "lm_eval":
        given = []  # the task's own metrics say what is right
    first = [ExactMatch()] if given is None else [_ONE.validate_python(scorer) for scorer in given]
    return list({scorer.label: scorer for scorer in [*first, *_read_added(run_dir)]}.values())


def lay_over(scorers: Sequence[Scorer], more: Sequence[Scorer]) -> list[Scorer]:
    """Scorers with others behind them, or, of the same name, in their place."""
    return list({scorer.label: scorer for scorer in [*scorers, *more]}.values())


def keep_added(run_dir: Path, more: Sequence[Scorer]) -> None:
    """Adds scorers to those that the run's folder keeps. Raises StoreError."""
    kept = [scorer.model_dump(mode="json") for scorer in lay_over(_read_added(run_dir), more)]
    write_json(run_dir / SCORERS_NAME, kept, MAKE_ROOM)


def parse_scorer(text: str) -> Scorer:
    """A scorer as a command line gives it: a kind, or a mapping as in a spec. Raises SpecError."""
    try:
        return _ONE.validate_python(yaml.safe_load(text))
    except yaml.YAMLError as error:
        problem = " ".join(str(error).split())
        raise SpecError(f"--scorer {text!r} is neither a kind nor a YAML mapping: {problem}.") from None
    except ValidationError as error:
        kinds = list_kinds()
        problems = "; ".join(explain(error, list(kinds.values()), "the scorer"))
        raise SpecError(
            f"--scorer {text!r}: {problems}. hint: give a kind ({', '.join(kinds)}), or a mapping such as "
            "'{kind: regex, pattern: \"answer: (.*)\"}'."
        ) from None


def _read_added(run_dir: Path) -> list[Scorer]:
    path = run_dir / SCORERS_NAME
    try:
        return [_ONE.validate_python(scorer) for scorer in json.loads(path.read_bytes())]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise StoreError(
            f"{path}, the scorers that were added to the run, cannot be read: {reason}. Put a copy in its place, or "
            "remove it and score again."
        ) from None
