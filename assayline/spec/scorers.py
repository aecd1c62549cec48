"""Scorers as a spec names them: what counts as a right answer. What each does to an answer is in `sql/scorers/`."""

from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal, get_args

from pydantic import BeforeValidator, Field, field_validator

from assayline.spec.answers import JsonSchema
from assayline.spec.part import SpecPart


class ScorerPart(SpecPart):
    """What all scorers have."""

    name: str | None = Field(None, min_length=1, description="What its scores are filed under (default: its kind).")

    needs_target: ClassVar[bool] = True
    """Whether there is nothing to score without a target."""

    @property
    def label(self) -> str:
        """The name given, or the kind."""
        return self.name or str(getattr(self, "kind", ""))


class ExactMatch(ScorerPart):
    """1 where answer and target are the same text, white space around them apart."""

    kind: Literal["exact_match"] = "exact_match"
    ignore_case: bool = Field(False, description="A is a.")
    ignore_punctuation: bool = Field(False, description="ASCII punctuation does not count.")


class Contains(ScorerPart):
    """1 where the target is somewhere in the answer."""

    kind: Literal["contains"] = "contains"
    ignore_case: bool = Field(True, description="A is a.")


class RegexMatch(ScorerPart):
    """1 where what a regular expression finds in the answer is the target."""

    kind: Literal["regex"] = "regex"
    pattern: str = Field(min_length=1, description="RE2 syntax: linear in time, without backreferences.")
    group: int = Field(1, ge=0, description="Which group is the answer; 0: the whole match.")
    take: Literal["first", "last"] = Field("first", description="Which match counts.")
    ignore_case: bool = Field(False, description="Compare, and match, without regard to case.")


class Numeric(ScorerPart):
    """1 where the number in the answer is that of the target."""

    kind: Literal["numeric"] = "numeric"
    tolerance: float = Field(0.0, ge=0, description="Largest difference.")
    relative_tolerance: float = Field(0.0, ge=0, description="Largest difference, as a share of the target.")
    take: Literal["first", "last"] = Field("last", description="Which number of the answer counts.")


class ChoiceLetter(ScorerPart):
    """1 where the letter that the answer settles on is the target's."""

    kind: Literal["choice"] = "choice"
    letters: str = Field("ABCD", min_length=2, description="The letters (or digits) that there are.")

    @field_validator("letters")
    @classmethod
    def _check_letters(cls, letters: str) -> str:
        letters = letters.upper()
        if not (letters.isascii() and letters.isalnum() and len(set(letters)) == len(letters)):
            raise ValueError("expected different letters or digits, such as ABCDE")
        return letters


class TokenF1(ScorerPart):
    """Words that answer and target share: the harmonic mean of precision and recall."""

    kind: Literal["token_f1"] = "token_f1"


class JsonMatch(ScorerPart):
    """1 where the answer is JSON, and valid under a schema if one is given."""

    kind: Literal["json"] = "json"
    json_schema: JsonSchema | None = Field(None, description="JSON schema that the answer must satisfy.")

    needs_target: ClassVar[bool] = False


class Loglikelihood(ScorerPart):
    """1 where the likeliest of the options is the target's: one request per option, nothing is generated."""

    kind: Literal["loglikelihood"] = "loglikelihood"
    normalize: Literal["none", "bytes", "tokens"] = Field(
        "none", description="What the sum of log-probabilities is divided by: nothing, or the option's length."
    )


Scorer = Annotated[
    ExactMatch | Contains | RegexMatch | Numeric | ChoiceLetter | TokenF1 | JsonMatch | Loglikelihood,
    Field(discriminator="kind"),
    BeforeValidator(lambda value: {"kind": value} if isinstance(value, str) else value),
]
"""A mapping with a kind, or the kind alone as a word."""


def list_kinds() -> dict[str, type[ScorerPart]]:
    """Every scorer's class by its kind."""
    classes = get_args(get_args(Scorer)[0])
    return {str(part.model_fields["kind"].default): part for part in classes}


def name_scorers(scorers: Iterable[ScorerPart]) -> list[str]:
    """Their names, in order. Raises ValueError where two are the same."""
    names = [scorer.label for scorer in scorers]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"two scorers are called {', '.join(twice)}: give each a `name` of its own")
    return names
