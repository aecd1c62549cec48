"""Read an EvalSpec from YAML and `--field value` overrides, with actionable errors.

The entry point is `load_spec(path, overrides)`; `identity.py` has the digests of a spec.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from assayline.errors import EngineError, SpecError
from assayline.spec.checks import engine_argument_types, sampling_parameter_types
from assayline.spec.core_yaml import DuplicateKeyError, load_texts, load_yaml
from assayline.spec.evaluation import EvalSpec
from assayline.spec.identity import UNSET
from assayline.spec.named import list_benchmarks, list_rubrics, read_named
from assayline.words import as_sentence, nearest


def load_spec(path: str | Path, overrides: Mapping[str, str] | None = None) -> EvalSpec:
    """Read a YAML spec and merge `overrides` into it.

    `overrides` maps dotted fields to YAML text, as typed on a command line: {"prompts.limit": "10"}.
    Raises SpecError for a missing file, bad YAML, unknown keys (naming the nearest known) and wrong values.
    """
    values = {field: parse_value(field, text) for field, text in (overrides or {}).items()}
    return SpecFile(file=str(path), overrides=values).load()


class SpecFile(BaseModel):
    """A spec in a file, with overrides."""

    model_config = ConfigDict(extra="forbid")

    file: str = Field(description="Path of a YAML file with the spec, or @NAME of a named benchmark.")
    overrides: dict[str, Any] = Field(
        default_factory=dict, description='Values by dotted field, such as {"prompts.limit": 100}.'
    )

    def load(self) -> EvalSpec:
        """Read the file and apply the overrides. Raises SpecError."""
        is_named = self.file.startswith("@")
        data = read_named(self.file) if is_named else read_yaml(Path(self.file))
        _set_fields(data, self.overrides)
        return parse_spec(data, self.file, {} if is_named else load_texts(Path(self.file).read_text(encoding="utf-8")))


def as_spec(given: EvalSpec | SpecFile | Mapping[str, Any] | str | Path) -> EvalSpec:
    """Return a spec from itself, its fields, a path, or a file with overrides. Raises SpecError."""
    if isinstance(given, str | Path):
        return load_spec(given)
    if isinstance(given, Mapping):
        given = SpecFile.model_validate(given) if "file" in given else parse_spec(dict(given))
    return given.load() if isinstance(given, SpecFile) else given


def find_lost_template(data: Mapping[str, Any], deployments: Path) -> str | None:
    """Return the template in prefect.yaml that `prefect deploy` dropped from a deployment's spec, if any.

    `prefect deploy` replaces `{{ … }}` in parameters as its own placeholders, and drops a field with an unknown one.
    """
    prompts = data.get("prompts")
    if not isinstance(prompts, Mapping) or prompts.get("template") is not None or not deployments.is_file():
        return None
    for deployment in read_yaml(deployments).get("deployments") or ():
        written = (deployment.get("parameters") or {}).get("spec")
        if isinstance(written, dict) and written.get("name") == data.get("name"):
            template = (written.get("prompts") or {}).get("template")
            if isinstance(template, str) and "{{" in template:
                return template
    return None


def override_spec(spec: EvalSpec, overrides: Mapping[str, Any], origin: str = "spec") -> EvalSpec:
    """Return the spec with values by dotted field, or without those that are UNSET. Raises SpecError."""
    data = spec.model_dump(mode="json", exclude_none=True)
    _set_fields(data, overrides)
    return parse_spec(data, origin)


def parse_spec(data: object, origin: str = "spec", written: object = None) -> EvalSpec:
    """Validate a mapping. Raises SpecError with one line per problem.

    `written` has the scalars of `data` as its file has them: a field of text gets `0123456`, not the number.
    """
    if isinstance(data, dict) and "imported" in data:
        raise SpecError(
            f"{origin} describes an imported run, whose requests cannot be sent again. hint: write a spec, or judge "
            "its stored answers with `assayline score` and `assayline gate`."
        )
    try:
        return EvalSpec.model_validate(data)
    except ValidationError as error:
        if written and _restore_texts(data, written, error):
            return parse_spec(data, origin)
        problems = "\n".join(f"  {line}" for line in explain(error))
        raise SpecError(f"{origin} is not a valid spec:\n{problems}") from None


def parse_stored(spec_json: str, origin: str = "spec") -> EvalSpec:
    """Parse a stored spec. Raises SpecError."""
    return parse_spec(json.loads(spec_json), origin)


def _restore_texts(data: Any, written: Any, error: ValidationError) -> bool:
    """Put the written text where a field of text has a number or a boolean. Returns whether there was one."""
    is_restored = False
    for problem in error.errors():
        here, text, parent, last = data, written, data, None
        for part in problem["loc"]:
            with suppress(LookupError, TypeError):  # without the tag of a union, which the data does not have
                here, text, parent, last = here[part], text[part], here, part
        if problem["type"] == "string_type" and isinstance(text, str) and load_yaml(text) == here:
            parent[last] = text
            is_restored = True
    return is_restored


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds a mapping. Raises SpecError."""
    try:
        data = load_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        hint = "pass the path of a YAML file, such as examples/arithmetic.yaml"
        named = path.name.lower().replace("-", "_")
        if named in [*list_rubrics(), *(benchmark.name for benchmark in list_benchmarks())]:
            hint = f"pass @{named} for the named benchmark or rubric"
        raise SpecError(f"Spec file {path} does not exist. hint: {hint}.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(
            f"Spec file {path} cannot be read: {error}. hint: pass a readable YAML file in UTF-8."
        ) from None
    except yaml.YAMLError as error:
        raise SpecError(_explain_yaml(path, error)) from None
    if not isinstance(data, dict):
        what = "is empty" if data is None else f"holds {type(data).__name__}, not a mapping"
        raise SpecError(f"Spec file {path} {what}. hint: set at least `model` and `prompts`.")
    return data


def _explain_yaml(path: Path, error: yaml.YAMLError) -> str:
    """Explain where a file is not valid YAML, with a hint for a template without quotes."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return f"Spec file {path} is not valid YAML: {as_sentence(' '.join(str(error).split()))}"
    problem = getattr(error, "problem", None) or "it cannot be read"
    start = getattr(error, "context_mark", None) or mark
    lines = path.read_text(encoding="utf-8").splitlines()
    unquoted = next((line for line in lines[start.line : mark.line + 1] if re.search(r"[:-]\s+\{\{", line)), None)
    hint = ""
    if path.suffix in (".jsonl", ".csv", ".parquet"):
        hint = " hint: this is a file of prompts; pass a spec, which names it in prompts.source.path."
    elif "'\\t'" in problem:
        problem, hint = "a tab stands at its beginning", " hint: YAML is indented with blanks."
    elif unquoted is not None:
        value = unquoted[unquoted.index("{{") :].strip()
        quote = "'" if '"' in value else '"'
        hint = f" hint: put the template in quotes: {quote}{value}{quote}."
    return f"Spec file {path}, line {mark.line + 1}, is not valid YAML: {problem}.{hint}"


def parse_value(field: str, text: str) -> Any:
    """Return the value of a dotted field from YAML text. A field of text takes it as it is.

    Raises SpecError for a duplicate key.
    """
    try:
        value = load_yaml(text)
    except DuplicateKeyError as error:
        raise SpecError(f"--{field} is not valid YAML: {error.problem}.") from None
    except yaml.YAMLError:
        return text  # such as a template: {{ question }}
    if isinstance(value, dict | list):
        return value if text.lstrip()[0] in "{[" else text  # "Rule: be brief" is not a mapping
    kinds = _list_kinds(field)
    is_text = str in kinds and not {int, float, bool, Any} & {*kinds}
    return text if is_text and isinstance(value, int | float) else value


def _list_kinds(field: str) -> list[Any]:
    """Return the types that a field takes, those of a union one by one."""
    kinds: list[Any] = [EvalSpec]
    for name in field.split("."):
        models = [model for kind in kinds for model in _models_in(kind)]
        values = [get_args(kind)[1] for kind in kinds if get_origin(kind) is dict]
        kinds = values + [model.model_fields[name].annotation for model in models if name in model.model_fields]
    for kind in kinds:
        if get_origin(kind) in (Annotated, Union, UnionType):
            kinds += get_args(kind)  # visited by this loop, too
    return kinds


def _set_fields(data: dict[str, Any], overrides: Mapping[str, Any]) -> None:
    """Set values by dotted field. Another model has no adapter, unless it names one."""
    if "model" in overrides:
        data.pop("adapter", None)
    for field, value in overrides.items():
        _set_field(data, field, value)


def _set_field(data: dict[str, Any], field: str, value: Any) -> None:
    *parents, last = field.split(".")
    here = data
    for parent in parents:
        below = here.setdefault(parent, {})
        if not isinstance(below, dict):
            raise SpecError(
                f"--{field} cannot be set: `{parent}` is {below!r} in the spec, not a mapping. hint: change it there."
            )
        here = below
    if value is UNSET:
        here.pop(last, None)
    else:
        here[last] = value


def explain(
    error: ValidationError, models: Sequence[type[BaseModel]] = (EvalSpec,), whole: str = "the spec"
) -> Iterator[str]:
    """Yield one line per validation problem of `whole`, an instance of one of `models`."""
    for problem in error.errors():
        names, here = _follow([str(part) for part in problem["loc"]], models)
        where = ".".join(names) or whole
        if problem["type"] == "extra_forbidden":
            yield f"{where}: unknown key; {_find_field(names, here)}"
        elif problem["type"] == "union_tag_invalid":
            kinds = [kind.strip("' ") for kind in problem["ctx"]["expected_tags"].split(",")]
            yield f"{where}: there is no kind {problem['ctx']['tag']!r}; {nearest(problem['ctx']['tag'], kinds)}"
        elif problem["type"] == "union_tag_not_found":
            fields = [model.model_fields[names[-1]] for model in here if names and names[-1] in model.model_fields]
            below = [model for field in fields for model in _models_in(field.annotation)] or here  # of a list
            kinds = [kind for model in below if (kind := _tag(model))]
            yield f"{where}: given {problem['input']!r:.200}, without a kind. hint: add `kind`: {', '.join(kinds)}"
        elif problem["type"] in ("model_type", "model_attributes_type"):
            yield f"{where}: given {problem['input']!r:.200}; expected a mapping"
        elif problem["type"] == "missing":
            option = f". hint: set it, or pass --{where} VALUE" * (where == "model")
            yield f"{where}: missing, but required{option}"
        elif problem["type"] == "list_type":
            yield f"{where}: given {problem['input']!r:.200}, not a list. hint: write [{problem['input']!s:.200}]"
        elif problem["type"] == "literal_error":
            hint = ". hint: vLLM in a process of assayline's is offline" * (problem["input"] == "vllm")
            yield f"{where}: given {problem['input']!r:.200}; expected {problem['ctx']['expected']}{hint}"
        elif problem["type"] == "less_than_equal" and problem["ctx"]["le"] == 1:
            yield f"{where}: given {problem['input']!r:.200}; {problem['msg']}. hint: 5% is written 0.05"
        elif problem["type"] == "secret":
            yield f"{where}: {problem['msg']}"
        elif problem["type"] == "conflict":
            yield from problem["msg"].splitlines()
        else:
            yield f"{where}: given {problem['input']!r:.200}; {problem['msg'].removeprefix('Value error, ')}"


def _follow(location: list[str], models: Sequence[type[BaseModel]]) -> tuple[list[str], Sequence[type[BaseModel]]]:
    """Return a location without the tags of unions, and the models that may have its last part."""
    names, here = [], models
    for part in location:
        if len(models) > 1 and (tagged := [model for model in models if _tag(model) == part]):
            models = here = tagged
            continue
        names.append(part)
        here = models
        fields = [model.model_fields[part] for model in models if part in model.model_fields]
        models = [below for field in fields for below in _models_in(field.annotation)] or models
    return names, here


def _find_field(names: list[str], models: Sequence[type[BaseModel]]) -> str:
    """Suggest a field for an unknown key: one of the models at the same place, or one elsewhere in the spec."""
    close = nearest(names[-1], sorted({name for model in models for name in model.model_fields}))
    where, place = ".".join(names), ".".join(names[:-1])
    there = _list_fields(names[-1]) if close.startswith("known") else []
    if where in there:  # of another kind
        return f"{close}. hint: set {place}.kind, as another kind has it"
    below = [field for field in there if field.startswith(f"{place}.")] if place else there
    return f"did you mean {' or '.join(map(repr, below[:3]))}?" if below else close


def _list_fields(name: str) -> list[str]:
    """Return the dotted fields of this name in a spec, including sampling and engine arguments if vLLM is installed."""
    found: list[str] = []
    left: list[tuple[str, type[BaseModel]]] = [("", EvalSpec)]
    while left:
        prefix, model = left.pop(0)
        found += [prefix + name] if name in model.model_fields else []
        for field, info in model.model_fields.items():
            left += [(f"{prefix}{field}.", below) for below in _models_in(info.annotation)]
    with suppress(EngineError):
        found += ["sampling." + name] if name in sampling_parameter_types() else []
        found += ["engine.args." + name] if name in engine_argument_types() else []
    return list(dict.fromkeys(found))


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


def _tag(model: type[BaseModel]) -> str | None:
    kind = model.model_fields.get("kind")
    return str(get_args(kind.annotation)[0]) if kind else None
