"""The base of every part of a spec."""

from pydantic import BaseModel, ConfigDict


class SpecPart(BaseModel):
    """Base of all parts: unknown keys are errors, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)  # Prefect logs such errors
