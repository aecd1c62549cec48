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
    """Base of all scorers."""

    name: str | None = Field(
        None, min_length=1, description="Name of its scores (default: its kind; of a function or file, that name)."
    )

    needs_target: ClassVar[bool] = True
    """True if prompts without a target are not scored."""

    @property
    def title(self) -> str:
        """The given name, or the kind."""
        return self.name or str(getattr(self, "kind", ""))
