"""Score a run's stored answers by Python functions, outside the database's transactions."""

from collections.abc import Sequence

from assayline.errors import SpecError
from assayline.scorers.process import ScorerInput, define_function, score_answers
from assayline.spec.criteria import FunctionScorer, Scorer
from assayline.store.score_files import SCORER_ERROR, FunctionScores, HarnessScore
from assayline.store.scoring import SampleToScore


def pick_functions(scorers: Sequence[Scorer]) -> list[FunctionScorer]:
    """Return the scorers that are Python functions."""
    return [scorer for scorer in scorers if isinstance(scorer, FunctionScorer)]


def score_samples(
    scorers: Sequence[FunctionScorer], samples: Sequence[SampleToScore]
) -> tuple[dict[str, FunctionScores], list[str]]:
    """Return scores by scorer, and a note for each scorer that failed on some answers or cannot be used at all."""
    scores: dict[str, FunctionScores] = {}
    notes: list[str] = []
    answers = [ScorerInput(sample.answer, sample.target, _with_id(sample)) for sample in samples]
    for scorer in scorers:
        try:
            definition = define_function(scorer)
            found = list(score_answers(scorer, answers))
        except SpecError as error:
            notes.append(f"{scorer.title} scored nothing. {error}")
            continue
        rows = [
            HarnessScore(
                scorer=scorer.title,
                prompt_id=sample.prompt_id,
                occurrence=sample.occurrence,
                value=score.value,
                extracted=score.extracted,
                explanation=score.reason or "",
                error_kind=SCORER_ERROR if score.failure else None,
                repeat_index=sample.repeat_index,
            )
            for sample, score in zip(samples, found, strict=True)
            if score is not None
        ]
        scores[scorer.title] = FunctionScores(definition, rows)
        if failures := [score.failure for score in found if score is not None and score.failure]:
            notes.append(
                f"{scorer.title} failed on {len(failures)} of {len(found)} answers, which count as errors with a score "
                f"of 0. The first error: {failures[0]}."
            )
    return scores, notes


def _with_id(sample: SampleToScore) -> dict[str, object]:
    return sample.row if sample.source_id is None else {"id": sample.source_id, **sample.row}
