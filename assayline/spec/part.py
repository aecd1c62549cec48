"""The base classes of all parts of a spec and of its scorers."""

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator


class SpecPart(BaseModel):
    """Base of all parts: immutable, without unknown keys; a part that is null has its defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)  # Prefect logs such errors

    @model_validator(mode="before")
    @classmethod
    def _take_null_for_defaults(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        parts = {name for name, field in cls.model_fields.items() if isinstance(field.default, SpecPart)}
        return {name: value for name, value in data.items() if value is not None or name not in parts}


class ScorerPart(SpecPart):
    """Fields of every scorer."""

    name: str | None = Field(
        None, min_length=1, description="Name of its scores (default: its kind; of a function or file, that name)."
    )

    needs_target: ClassVar[bool] = True
    """True if prompts without a target are not scored."""
    joins_targets: ClassVar[bool] = False
    """True if several targets are all meant, a line each; else the best score of them counts."""
    module: ClassVar[str] = "text"
    """Module of `assayline/scorers/` that has the function `score_KIND`."""

    @property
    def title(self) -> str:
        """The given name, or the kind."""
        return self.name or str(getattr(self, "kind", ""))

    @property
    def reference(self) -> str:
        """The function that scores one answer: `module:function`, or the name that a package registers."""
        return f"assayline.scorers.{self.module}:score_{getattr(self, 'kind', '')}"

    @property
    def call_arguments(self) -> dict[str, Any]:
        """Keyword arguments of the function, besides answer, target and row."""
        return {name: getattr(self, name) for name in type(self).model_fields if name not in ("name", "kind")}

    @property
    def answers_per_call(self) -> int:
        """Above 1, the function takes lists."""
        return 1

    @property
    def answers_per_message(self) -> int:
        """Answers that a process of the function scores at once."""
        return 1000

    @property
    def call_timeout_s(self) -> float:
        """When a message to a process is given up, in seconds."""
        return 60.0
