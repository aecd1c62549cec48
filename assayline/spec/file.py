"""From YAML and `--field value` to an EvalSpec, with errors that a person can act on.

`load_spec(path, overrides)` is the way in; `canonical_json` and `digest` give a spec its identity.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from assayline.errors import SpecError
from assayline.spec.evaluation import EvalSpec
from assayline.words import nearest


def load_spec(path: str | Path, overrides: Mapping[str, str] | None = None) -> EvalSpec:
    """Reads a YAML spec and lays `overrides` over it.

    `overrides` maps dotted fields to YAML text, as typed on a command line: {"prompts.limit": "10"}.
    Raises SpecError for a missing file, bad YAML, unknown keys (naming the nearest known) and wrong values.
    """
    data = _read_yaml(Path(path))
    for field, text in (overrides or {}).items():
        _set_field(data, field, _parse_value(text))
    return parse_spec(data, origin=str(path))


class SpecFile(BaseModel):
    """A spec in a file, with some fields set to other values."""

    model_config = ConfigDict(extra="forbid")

    file: str = Field(description="Path of a YAML file with the spec.")
    overrides: dict[str, Any] = Field(
        default_factory=dict, description='Values by dotted field, such as {"prompts.limit": 100}.'
    )

    def load(self) -> EvalSpec:
        """Reads the file and sets the fields. Raises SpecError."""
        data = _read_yaml(Path(self.file))
        for field, value in self.overrides.items():
            _set_field(data, field, value)
        return parse_spec(data, origin=self.file)


def find_lost_template(data: Mapping[str, Any], deployments: Path) -> str | None:
    """The template that a deployment's spec had in prefect.yaml and that Prefect took for a placeholder of its own.

    `prefect deploy` replaces `{{ … }}` in parameters, and drops a field whose placeholder it does not know.
    """
    prompts = data.get("prompts")
    if not isinstance(prompts, Mapping) or prompts.get("template") is not None or not deployments.is_file():
        return None
    for deployment in _read_yaml(deployments).get("deployments") or ():
        written = (deployment.get("parameters") or {}).get("spec")
        if isinstance(written, dict) and written.get("name") == data.get("name"):
            template = (written.get("prompts") or {}).get("template")
            if isinstance(template, str) and "{{" in template:
                return template
    return None


def override_spec(spec: EvalSpec, overrides: Mapping[str, str], origin: str = "spec") -> EvalSpec:
    """The spec with fields laid over it, as `load_spec` lays them over a file. Raises SpecError."""
    data = spec.model_dump(mode="json", exclude_none=True)
    for field, text in overrides.items():
        _set_field(data, field, _parse_value(text))
    return parse_spec(data, origin)


def parse_spec(data: object, origin: str = "spec") -> EvalSpec:
    """Validates a mapping. Raises SpecError with one line per problem."""
    try:
        return EvalSpec.model_validate(data)
    except ValidationError as error:
        problems = "\n".join(f"  {line}" for line in _explain(error))
        raise SpecError(f"{origin} is not a usable spec:\n{problems}") from None


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SpecError(
            f"Spec file {path} does not exist. Give the path of a YAML file, such as examples/arithmetic.yaml."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"Spec file {path} cannot be read: {error}.") from None
    except yaml.YAMLError as error:
        raise SpecError(f"Spec file {path} is not valid YAML: {error}") from None
    if not isinstance(data, dict):
        raise SpecError(
            f"Spec file {path} holds {type(data).__name__}, expected a mapping with at least `model` and `prompts`."
        )
    return data


def _parse_value(text: str) -> Any:
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text  # such as a template: {{ question }}
    is_prose = isinstance(value, (dict, list)) and text.lstrip()[0] not in "{["  # "Rule: be brief" is no mapping
    return text if is_prose else value


def _set_field(data: dict[str, Any], field: str, value: Any) -> None:
    *parents, last = field.split(".")
    here = data
    for parent in parents:
        below = here.setdefault(parent, {})
        if not isinstance(below, dict):
            raise SpecError(f"--{field} cannot be set: `{parent}` is {below!r} in the spec, expected a mapping.")
        here = below
    here[last] = value


def _explain(error: ValidationError) -> Iterator[str]:
    for problem in error.errors():
        location = [str(part) for part in problem["loc"]]
        where = ".".join(location) or "the spec"
        if problem["type"] == "extra_forbidden":
            yield f"{where}: unknown key; {nearest(location[-1], _known_keys(location[:-1]))}"
        elif problem["type"] == "missing":
            yield f"{where}: missing, but needed"
        elif problem["type"] == "secret":
            yield f"{where}: {problem['msg']}"
        else:
            yield f"{where}: given {problem['input']!r:.200}; {problem['msg']}"


def _known_keys(location: list[str]) -> list[str]:
    """Field names of the model at a location; parts that are union tags or list indexes pass through."""
    models: list[type[BaseModel]] = [EvalSpec]
    for part in location:
        below = [
            found
            for model in models
            for name, info in model.model_fields.items()
            if name == part
            for found in _models_in(info.annotation)
        ]
        tagged = [model for model in models if _tag(model) == part]
        models = below or tagged or models
    return sorted({name for model in models for name in model.model_fields})


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


def _tag(model: type[BaseModel]) -> str | None:
    kind = model.model_fields.get("kind")
    return str(kind.default) if kind else None
