"""Write docs/reference/spec.md and assayline/spec/spec.schema.json from the models in assayline/spec/.

`python -m scripts.spec_docs`; a test keeps them current.
"""

import ast
import json
import sys
import typing
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from assayline.spec import criteria, engine, evaluation, load, prompts, suite  # noqa: E402
from assayline.spec.part import ScorerPart  # noqa: E402

SCHEMA = ROOT / "assayline" / "spec" / "spec.schema.json"
"""In the package, so that a wheel has it."""


def _name_kinds(place: str, union: Any) -> list[tuple[str, type[BaseModel]]]:
    """Return a section for each kind of a union, in its order."""
    kinds = typing.get_args(typing.get_args(union)[0])
    return [(f"{place}, kind: {_name_kind(kind)}", kind) for kind in kinds]


def _name_kind(part: type[BaseModel]) -> str:
    return str(typing.get_args(part.model_fields["kind"].annotation)[0])


PARTS: list[tuple[str, type[BaseModel]]] = [
    ("The spec", evaluation.EvalSpec),
    ("prompts", prompts.PromptSpec),
    *_name_kinds("prompts.source", prompts.AnySource),
    ("prompts.source.prompt_tokens and output_tokens", prompts.TokenLength),
    ("prompts.source.images", prompts.SyntheticImages),
    ("prompts.source.audios", prompts.SyntheticAudio),
    ("prompts.columns", prompts.Columns),
    ("prompts.media", prompts.MediaSpec),
    ("prompts.template, as a list", prompts.MessageTemplate),
    ("prompts.few_shot", prompts.FewShotSpec),
    ("chat", prompts.ChatSpec),
    ("reasoning", engine.ReasoningSpec),
    ("scorers, every kind", ScorerPart),
    *_name_kinds("scorers", criteria.Scorer),
    ("engine", engine.EngineSpec),
    ("engine.server", engine.ServerSpec),
    ("load", load.LoadSpec),
    *_name_kinds("load.arrival", load.Arrival),
    ("slos", criteria.SloSpec),
    ("gate", criteria.GateSpec),
    ("gate.reread", criteria.RereadLimit),
    ("price", criteria.PriceSpec),
    ("A suite", suite.SuiteSpec),
    ("A suite's evaluations", suite.SuiteEvaluation),
]


def main() -> None:
    (ROOT / "docs" / "reference" / "spec.md").write_text(render(), encoding="utf-8")
    SCHEMA.write_text(render_schema(), encoding="utf-8")


def render() -> str:
    """Format the page."""
    lines = [
        "# The spec, field by field",
        "",
        "<!-- Written by `python -m scripts.spec_docs`: do not edit. -->",
        "",
        "A spec is a YAML file, a flow parameter, or both: `assayline evaluate SPEC --field value` overrides single",
        "fields of the file by their dotted names.",
        "",
        "Types are those of YAML 1.2's core schema: `1e-5` is a number, and unquoted `yes`, `no`, `on`, `off`, `1:30`",
        "and `1_000` are text. A duplicate key is an error. Prefect reads `prefect.yaml` by YAML 1.1: write `1.0e-5`",
        "there.",
        "",
        "[spec.schema.json](../../assayline/spec/spec.schema.json) is the JSON schema of a spec. The package has",
        "it, too:",
        "",
        "```bash",
        "python -c 'import assayline.spec as spec; print(spec.__path__[0] + \"/spec.schema.json\")'",
        "```",
        "",
        "An editor with a YAML language server checks and completes a spec that begins with this line. A relative path",
        "starts at the spec's folder; in a clone's `examples/` it is:",
        "",
        "```yaml",
        "# yaml-language-server: $schema=../assayline/spec/spec.schema.json",
        "```",
        "",
    ]
    for title, model in PARTS:
        shared = {"kind", *(ScorerPart.model_fields if "kind" in model.model_fields else ())}
        fields = [_row(name, model) for name in model.model_fields if name not in shared]
        head = ["| field | type | default | meaning |", "|---|---|---|---|"] if fields else []
        lines += [f"## {title}", "", (model.__doc__ or "").strip().splitlines()[0], "", *head, *fields]
        lines += [*([""] if fields else []), *_list_rules(model)]
    return "\n".join(lines)


def _list_rules(model: type[BaseModel]) -> list[str]:
    """Return the rules of a scorer of assayline's own, from the docstrings of its function and that module's tables."""
    is_kind = issubclass(model, ScorerPart) and "kind" in model.model_fields
    kind = _name_kind(model) if is_kind else None
    if kind in (None, "python", "judge"):
        return []
    module = ast.parse((ROOT / "assayline" / "scorers" / f"{model.module}.py").read_text(encoding="utf-8"))
    (function,) = [node for node in module.body if getattr(node, "name", "") == f"score_{kind}"]
    rules = [*(ast.get_docstring(function) or "").splitlines(), ""]
    if "\n|" in (text := ast.get_docstring(module) or ""):
        rules += [*text.splitlines()[2:], ""]
    return rules


def render_schema() -> str:
    """The JSON schema of a spec's file, with the short forms that the models accept besides their own."""
    schema = evaluation.EvalSpec.model_json_schema()
    parts, fields = schema["$defs"], schema["properties"]
    for name in ("images", "audios", "videos"):
        parts["Columns"]["properties"][name] = _allow(parts["Columns"]["properties"][name], {"type": "string"})
    judge = parts["JudgeScorer"]["properties"]["spec"]
    judge["items"] = _allow(judge["items"], {"type": "string"})
    parts["JudgeScorer"]["properties"]["spec"] = _allow(judge, {"type": "string"})
    parts["TokenLength"] = _allow(parts["TokenLength"], {"type": "integer"})
    for part in (schema, *parts.values()):
        for name, field in part.get("properties", {}).items():
            if "$ref" in field and field.pop("default", None):  # a part that is null has its defaults
                part["properties"][name] = _allow(field, {"type": "null"})
    (scorers,) = [form for form in fields["scorers"]["anyOf"] if form.get("type") == "array"]
    kinds = [_name_kind(kind) for kind in typing.get_args(typing.get_args(criteria.Scorer)[0])]
    scorers["items"] = _allow(scorers["items"], {"type": "string", "enum": kinds})
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def _allow(schema: dict[str, Any], short: dict[str, Any]) -> dict[str, Any]:
    """A schema that allows a short form, too."""
    told = {key: schema[key] for key in ("title", "description") if key in schema}
    return {**told, "anyOf": [{key: value for key, value in schema.items() if key not in told}, short]}


def _row(name: str, model: type[BaseModel]) -> str:
    field = model.model_fields[name]
    default = "needed" if field.default is PydanticUndefined and field.default_factory is None else _default(field)
    return f"| `{name}` | {_type(field.annotation)} | {default} | {field.description or ''} |"


def _default(field: Any) -> str:
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        return "see below"
    return "–" if value is None else f"`{value!r}`".replace("|", "\\|")


def _type(annotation: Any) -> str:
    if typing.get_origin(annotation) is typing.Literal:
        return ", ".join(f"`{choice}`" for choice in typing.get_args(annotation))
    if typing.get_origin(annotation) is typing.Annotated:
        return _type(typing.get_args(annotation)[0])
    arguments = [argument for argument in typing.get_args(annotation) if argument is not type(None)]
    if typing.get_origin(annotation) in (list, dict):
        return f"{typing.get_origin(annotation).__name__} of {', '.join(_type(argument) for argument in arguments)}"
    if arguments:
        return " or ".join(dict.fromkeys(_type(argument) for argument in arguments))
    return (
        "object"
        if isinstance(annotation, type) and issubclass(annotation, BaseModel)
        else getattr(annotation, "__name__", "any")
    )


if __name__ == "__main__":
    main()
