"""A suite: evaluations that decide together whether models are as good as their baselines."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from assayline.errors import SpecError
from assayline.spec.evaluation import EvalSpec
from assayline.spec.file import SpecFile, explain, read_yaml
from assayline.spec.part import SpecPart

Tier = Literal["critical", "supporting", "advisory"]


class SuiteEvaluation(SpecPart):
    """One evaluation of a suite."""

    spec: str = Field(min_length=1, description="Path of a spec, or @NAME of a named benchmark.")
    tier: Tier = Field(
        "critical",
        description="critical: every limit of the spec's gate counts; supporting: counts by its accuracy in the "
        "weighted mean of all supporting evaluations; advisory: shown only.",
    )
    weight: float = Field(1.0, gt=0, allow_inf_nan=False, description="Weight of a supporting evaluation.")
    name: str | None = Field(None, min_length=1, description="Its name in the suite (default: that of the spec).")
    baseline: str | None = Field(
        None, min_length=1, description="Name of a pinned baseline, or a run id (default: gate.baseline of the spec)."
    )
    repeats: int = Field(
        1, ge=1, le=100, description="Runs per model. Limits on speed need at least five; a dry run names the number."
    )
    overrides: dict[str, Any] = Field(
        default_factory=dict, description='Values of the spec by dotted field, such as {"prompts.limit": 100}.'
    )

    @model_validator(mode="after")
    def _check_weight(self) -> "SuiteEvaluation":
        if self.tier != "supporting" and self.weight != 1:
            raise ValueError(
                f"weight is for supporting evaluations, and the tier is {self.tier}. hint: remove weight, or set "
                "tier: supporting"
            )
        return self

    def load(self, model: str | None) -> EvalSpec:
        """Read the spec, with the overrides and the model, if one is given. Raises SpecError."""
        values = self.overrides if model is None else {**self.overrides, "model": model}
        return SpecFile(file=self.spec, overrides=values).load()


class SuiteSpec(SpecPart):
    """Evaluations by models, and how they count for the decision."""

    name: str = Field("suite", min_length=1, description="Name of the suite.")
    models: list[str] = Field(
        default_factory=list, description="Models that each evaluation runs with (default: that of its spec)."
    )
    evaluations: list[SuiteEvaluation] = Field(min_length=1, description="The evaluations.")

    @model_validator(mode="after")
    def _check_tiers(self) -> "SuiteSpec":
        if all(one.tier == "advisory" for one in self.evaluations):
            raise ValueError("no evaluation counts. hint: set the tier of one to critical or supporting")
        return self


def load_suite(path: str | Path) -> SuiteSpec:
    """Read a suite from a YAML file. Raises SpecError with one line per problem."""
    return parse_suite(read_yaml(Path(path)), str(path))


def parse_suite(data: object, origin: str = "suite") -> SuiteSpec:
    """Validate a mapping. Raises SpecError with one line per problem."""
    try:
        return SuiteSpec.model_validate(data)
    except ValidationError as error:
        problems = "\n".join(f"  {line}" for line in explain(error, (SuiteSpec,), "the suite"))
        raise SpecError(f"{origin} is not a valid suite:\n{problems}") from None
