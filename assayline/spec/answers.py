"""What an answer must look like: the parts of a spec that say so, and the checks that need no engine."""

import re
from typing import Annotated, Any

from pydantic import AfterValidator, Field, field_validator, model_validator

from assayline.spec.part import SpecPart


def _check_schema(schema: dict[str, Any]) -> dict[str, Any]:
    import jsonschema  # here: most specs have no schema, and it takes a tenth of a second

    validator = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        validator.check_schema(schema)
    except jsonschema.SchemaError as error:
        where = "/".join(str(part) for part in error.absolute_path) or "its top"
        raise ValueError(f"this is no JSON schema: at {where}, {error.message:.300}") from None
    return schema


JsonSchema = Annotated[dict[str, Any], AfterValidator(_check_schema)]
"""A JSON schema, which says of itself by which draft."""


class ReasoningSpec(SpecPart):
    """A model that thinks before it answers: what comes before the closing tag is kept apart and not scored."""

    close: str = Field("</think>", min_length=1, description="What ends the thinking.")
    open: str = Field("<think>", min_length=1, description="What begins it, where the model writes it itself.")


class OutputSpec(SpecPart):
    """A form that every answer must have: vLLM's structured output. Exactly one of the fields."""

    json_schema: JsonSchema | None = Field(None, description="JSON schema of the answer.")
    regex: str | None = Field(None, min_length=1, description="Regular expression that the whole answer matches.")
    choice: list[str] | None = Field(None, min_length=1, description="The answer is one of these.")
    grammar: str | None = Field(None, min_length=1, description="Context-free grammar, in EBNF.")

    @field_validator("regex")
    @classmethod
    def _check_regex(cls, pattern: str | None) -> str | None:
        """A first look: the engine's dialect has escapes that Python's lacks, such as \\p{L}, and is the authority."""
        try:
            re.compile(pattern or "")
        except re.error as error:
            if not error.msg.startswith("bad escape"):
                raise ValueError(f"this is no regular expression: {error}") from None
        return pattern

    @field_validator("choice")
    @classmethod
    def _check_choice(cls, choice: list[str] | None) -> list[str] | None:
        if choice is not None and ("" in choice or len(set(choice)) < len(choice)):
            raise ValueError("expected different texts, none of them empty")
        return choice

    @model_validator(mode="after")
    def _check_one(self) -> "OutputSpec":
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"expected exactly one of json_schema, regex, choice, grammar, given {given or 'none'}")
        return self

    @property
    def structured_outputs(self) -> dict[str, Any]:
        """The same for `structured_outputs` of vLLM's SamplingParams, as plain JSON."""
        named = {"json": self.json_schema, "regex": self.regex, "choice": self.choice, "grammar": self.grammar}
        return {name: value for name, value in named.items() if value is not None}
