"""The base classes of all parts of a spec and of its scorers."""

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema


class SpecPart(BaseModel):
    """Base of all parts: immutable, without unknown keys; a part that is null has its defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)  # Prefect logs such errors

    @model_validator(mode="before")
    @classmethod
    def _take_null_for_defaults(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {name: value for name, value in data.items() if value is not None or name not in cls._list_folded()}

    @classmethod
    def _list_folded(cls) -> list[str]:
        return [name for name, field in cls.model_fields.items() if isinstance(field.default, SpecPart)]

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the JSON schema for the form in Prefect's UI.

        The form renders anyOf but not oneOf. Required fields come first. A part with defaults starts as null, which
        takes one line of the form.
        """
        schema = handler(core_schema)
        own = handler.resolve_ref_schema(schema)
        fields: dict[str, Any] = _as_any_of(own.get("properties", {}))
        for name in cls._list_folded():
            told = {key: fields[name].pop(key) for key in ("title", "description") if key in fields[name]}
            fields[name].pop("default", None)
            fields[name] = {**told, "anyOf": [fields[name], {"type": "null"}], "default": None}
        for field in fields.values():
            if "anyOf" in field:
                field["anyOf"] = _list_kinds(field["anyOf"], handler)
        first = own.get("required", [])
        if "const" in fields.get("kind", {}):
            for name in first:  # the form tells kinds apart by the fields that have a value
                fields[name].setdefault("default", {"string": "", "array": []}.get(fields[name].get("type", "")))
            own |= {"title": fields["kind"]["const"], "required": ["kind", *first]}
        own["properties"] = {name: fields[name] for name in sorted(fields, key=lambda name: name not in first)}
        return schema


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


def _list_kinds(choices: list[JsonSchemaValue], handler: GetJsonSchemaHandler) -> list[JsonSchemaValue]:
    """Sort kinds by number of fields, before lists of kinds, because the form takes the first that fits."""
    offered: list[JsonSchemaValue] = []
    for choice in choices:
        kinds = choice.get("items", {}).get("anyOf", [])
        offered += [*kinds, {**choice, "title": "several"} if kinds else choice]

    def count_fields(choice: JsonSchemaValue) -> float:
        fields = handler.resolve_ref_schema(choice).get("properties", {})
        return len(fields) if "kind" in fields else float("inf")

    return sorted(offered, key=count_fields)


def _as_any_of(schema: Any) -> Any:
    """Replace oneOf with anyOf throughout a schema."""
    if isinstance(schema, list):
        return [_as_any_of(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    changed = {"anyOf" if key == "oneOf" else key: _as_any_of(value) for key, value in schema.items()}
    return {key: value for key, value in changed.items() if key != "discriminator"}
