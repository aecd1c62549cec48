"""Scores from outside the database, in the run's folder: those of a harness, of functions and of judges.

SQL cannot recompute them, so a rebuilt database takes them from these files.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from assayline.files import MAKE_ROOM, read_kept, write_text

FOLDER_NAME = "lm_eval"
SCORES_NAME = f"{FOLDER_NAME}/scores.json"
IMPORTED_SCORERS, IMPORTED_SCORES = "imported/scorers.json", "imported/scores.parquet"
"""Scorers and scores of an imported run."""


class HarnessScore(NamedTuple):
    """A row of the table scores. A harness gives one per document, which belongs to the first repeat."""

    scorer: str
    prompt_id: str
    occurrence: int
    value: float
    extracted: str | None
    explanation: str
    error_kind: str | None = None
    repeat_index: int = 0


@dataclass(frozen=True, slots=True)
class FunctionScores:
    """Scores of a run's answers by one scoring function or judge."""

    definition: str
    """Digest of the function's code, or of the judges' specs and models."""
    scores: Sequence[HarnessScore]


FUNCTION_SCORES_NAME = "scores.json"
SCORER_ERROR = "scorer_error"
"""Kind of error of an answer that a scorer failed on."""
UNREADABLE = "unreadable"
"""Kind of error of a judge's answer without a verdict that the scorer can read."""


@dataclass(frozen=True, slots=True)
class HarnessScores:
    """Scorers and scores of an external harness."""

    scorers: dict[str, dict[str, Any]] = field(default_factory=dict)
    """`scorers.arguments_json` and `definition` by scorer name, the most important one first."""
    scores: Sequence[HarnessScore] = ()
    file: Path | None = None
    """Parquet file with more scores, a column per field."""


NO_HARNESS_SCORES: HarnessScores = HarnessScores()
"""The value for a run without an external harness."""


def write_harness_scores(run_dir: Path, judged: HarnessScores) -> None:
    """Write it to the run's folder. Raises StoreError."""
    value = {"scorers": judged.scorers, "scores": [list(score) for score in judged.scores]}
    write_text(run_dir / SCORES_NAME, json.dumps(value, ensure_ascii=False), MAKE_ROOM)


def read_harness_scores(run_dir: Path) -> HarnessScores:
    """Read it from the run's folder, if present. Raises StoreError for an unreadable file."""

    def parse(text: str) -> HarnessScores:
        value = json.loads(text)
        return HarnessScores(value["scorers"], [HarnessScore(*score) for score in value["scores"]])

    hint = "remove it; without it the run has no such scores."
    if (path := run_dir / IMPORTED_SCORERS).exists():
        scorers: dict[str, Any] = read_kept(path, json.loads, {}, "the scorers of the imported file", hint)
        return HarnessScores(scorers, file=run_dir / IMPORTED_SCORES)
    return read_kept(run_dir / SCORES_NAME, parse, NO_HARNESS_SCORES, "the scores of lm-evaluation-harness", hint)


def write_function_scores(run_dir: Path, scores: Mapping[str, FunctionScores]) -> None:
    """Keep scores of functions, by scorer, in the run's folder with those of other functions. Raises StoreError."""
    kept = {**read_function_scores(run_dir), **scores}
    value = {
        name: {"definition": one.definition, "scores": [list(s) for s in one.scores]} for name, one in kept.items()
    }
    write_text(run_dir / FUNCTION_SCORES_NAME, json.dumps(value, ensure_ascii=False), MAKE_ROOM)


def read_function_scores(run_dir: Path) -> dict[str, FunctionScores]:
    """Read the scores of functions in the run's folder, by scorer. Raises StoreError for an unreadable file."""

    def parse(text: str) -> dict[str, FunctionScores]:
        return {
            name: FunctionScores(one["definition"], [HarnessScore(*score) for score in one["scores"]])
            for name, one in json.loads(text).items()
        }

    hint = f"remove it and run `assayline score {run_dir.name}`."
    return read_kept(run_dir / FUNCTION_SCORES_NAME, parse, {}, "the scores of functions", hint)
