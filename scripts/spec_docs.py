"""Writes docs/spec.md from the models in assayline/spec.py: `python scripts/spec_docs.py`. A test keeps it current."""

import sys
import typing
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from assayline import answer_spec, engine_spec, gate_spec, load_spec, scorer_spec, server_spec, slo_spec, spec  # noqa: E402

PARTS: list[tuple[str, type[BaseModel]]] = [
    ("The spec", spec.EvalSpec),
    ("prompts", spec.PromptSpec),
    ("prompts.source, kind: file", spec.FileSource),
    ("prompts.source, kind: inline", spec.InlineSource),
    ("prompts.source, kind: hub", spec.HubSource),
    ("prompts.source, kind: synthetic", spec.SyntheticSource),
    ("prompts.source.prompt_tokens and output_tokens", spec.TokenLength),
    ("prompts.columns", spec.Columns),
    ("prompts.template, as a list", spec.MessageTemplate),
    ("prompts.few_shot", spec.FewShotSpec),
    ("chat", spec.ChatSpec),
    ("output", answer_spec.OutputSpec),
    ("reasoning", answer_spec.ReasoningSpec),
    ("scorers, kind: exact_match", scorer_spec.ExactMatch),
    ("scorers, kind: contains", scorer_spec.Contains),
    ("scorers, kind: regex", scorer_spec.RegexMatch),
    ("scorers, kind: numeric", scorer_spec.Numeric),
    ("scorers, kind: choice", scorer_spec.ChoiceLetter),
    ("scorers, kind: token_f1", scorer_spec.TokenF1),
    ("scorers, kind: json", scorer_spec.JsonMatch),
    ("scorers, kind: loglikelihood", scorer_spec.Loglikelihood),
    ("engine", engine_spec.EngineSpec),
    ("engine.server", server_spec.ServerSpec),
    ("engine.recovery", engine_spec.RecoverySpec),
    ("load", load_spec.LoadSpec),
    ("load.arrival, kind: all_at_once", load_spec.AllAtOnce),
    ("load.arrival, kind: concurrency", load_spec.Concurrency),
    ("load.arrival, kind: constant", load_spec.ConstantRate),
    ("load.arrival, kind: poisson", load_spec.Poisson),
    ("load.arrival, kind: gamma", load_spec.Gamma),
    ("load.arrival, kind: trace", load_spec.Trace),
    ("slos", slo_spec.SloSpec),
    ("gate", gate_spec.GateSpec),
]


def main() -> None:
    (ROOT / "docs" / "spec.md").write_text(render(), encoding="utf-8")


def render() -> str:
    """The whole page."""
    lines = [
        "# The spec, field by field",
        "",
        "Written by `scripts/spec_docs.py` from `assayline/spec.py`. A spec is a YAML file, a flow parameter, or",
        "both: `python -m flows.evaluate SPEC --field value` lays single fields over the file, by their dotted names.",
        "",
    ]
    for title, model in PARTS:
        lines += [
            f"## {title}",
            "",
            (model.__doc__ or "").strip().splitlines()[0],
            "",
            "| field | type | default | meaning |",
            "|---|---|---|---|",
        ]
        lines += [_row(name, model) for name in model.model_fields]
        lines.append("")
    return "\n".join(lines)


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
