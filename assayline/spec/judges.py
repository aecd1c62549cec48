"""Scorers for judges: the judge of a run's answers, and the verdict in a judge's own answer."""

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import yaml
from pydantic import Field, field_validator, model_validator

from assayline.spec.core_yaml import load_yaml
from assayline.spec.named import read_named
from assayline.spec.part import ScorerPart


class VerdictScorer(ScorerPart):
    """The verdict of a judge, whose answer is a JSON object {reason, verdict}, as a number from 0 to 1. Set `values` or
    `scale`."""

    kind: Literal["verdict"]
    module: ClassVar[str] = "verdict"
    values: dict[str, Annotated[float, Field(ge=0, le=1)]] | None = Field(
        None, min_length=2, description="Score of each verdict, such as {correct: 1, incorrect: 0}."
    )
    scale: list[Annotated[float, Field(allow_inf_nan=False)]] | None = Field(
        None, min_length=2, max_length=2, description="Lowest and highest verdict, which score 0 and 1, such as [1, 5]."
    )
    label: str | None = Field(
        None,
        min_length=1,
        description="Metadata column of the judged prompts with a person's verdict: a key of `values`, or a number of "
        "`scale`; for pairs, `a`, `b`, or the word of a tie.",
    )

    needs_target: ClassVar[bool] = False

    @property
    def call_arguments(self) -> dict[str, Any]:
        return {"values": self.values, "scale": self.scale}

    @field_validator("values", mode="before")
    @classmethod
    def _name_verdicts(cls, values: Any) -> Any:
        """Convert numbers to text. Raises ValueError for a boolean, which YAML makes of a bare true or false."""
        if not isinstance(values, dict):
            return values
        if any(isinstance(key, bool) for key in values):
            raise ValueError('YAML reads true and false as booleans. hint: write "true" in quotes')
        return {str(key) if isinstance(key, int) else key: value for key, value in values.items()}

    @model_validator(mode="after")
    def _check_values(self) -> "VerdictScorer":
        if (self.values is None) == (self.scale is None):
            raise ValueError("set either values or scale, such as values: {correct: 1, incorrect: 0}")
        if self.scale is not None and self.scale[0] >= self.scale[1]:
            raise ValueError(f"scale is {self.scale}, expected the lowest verdict and then the highest, such as [1, 5]")
        names = [name.strip().lower() for name in self.values or ()]
        if "" in names or len(set(names)) < len(names):
            raise ValueError(f"values has the verdicts {list(self.values or ())}, which differ by case or space only")
        return self


class JudgeScorer(ScorerPart):
    """A score from 0 to 1 by another model, which judges the answers in a run of its own."""

    kind: Literal["judge"]
    spec: list[dict[str, Any]] = Field(
        min_length=1,
        description="The judge's spec, its file, or @NAME of a rubric; a list is a panel of judges. The stored spec "
        "has the contents of files.",
    )
    model: str | None = Field(None, description="The judge's model (default: that of its spec).")
    combine: Literal["mean", "majority"] = Field(
        "mean",
        description="Score of an answer with several verdicts, by repeats or a panel; a tied majority is a mean.",
    )
    retries: int = Field(
        1, ge=0, le=10, description="How often to ask again, with another seed, for verdicts that cannot be read."
    )
    label: str | None = Field(
        None, description="Metadata column of the judged prompts with a person's verdict, to audit the judge."
    )
    min_kappa: float | None = Field(
        None,
        ge=-1,
        le=1,
        description="Smallest Cohen's kappa of verdicts and labels; below, the run fails as “judge not trusted”.",
    )

    needs_target: ClassVar[bool] = False

    @field_validator("spec", mode="before")
    @classmethod
    def _read_specs(cls, given: Any) -> Any:
        """Embed the judges' specs, so that a later change of a file does not change the run."""
        return [
            _read_judge(one) if isinstance(one, str) else one for one in (given if isinstance(given, list) else [given])
        ]

    @model_validator(mode="after")
    def _check_label(self) -> "JudgeScorer":
        if self.min_kappa is not None and self.label is None:
            raise ValueError("min_kappa needs label, the column with a person's verdicts")
        return self


def _read_judge(path: str) -> dict[str, Any]:
    """Return a judge's spec as its file has it. Raises SpecError for an unknown rubric, ValueError for a bad file."""
    if path.startswith("@"):
        return read_named(path)
    try:
        data = load_yaml(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise ValueError(f"the judge's spec {path} cannot be read: {reason}") from None
    if not isinstance(data, dict):
        raise ValueError(f"the judge's spec {path} holds {type(data).__name__}, not a mapping")
    return data
