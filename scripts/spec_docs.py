"""Writes docs/spec.md from the models in assayline/spec/: `python scripts/spec_docs.py`. A test keeps it current."""

import sys
import typing
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from assayline.spec import criteria, engine, evaluation, load, prompts, sources  # noqa: E402

PARTS: list[tuple[str, type[BaseModel]]] = [
    ("The spec", evaluation.EvalSpec),
    ("prompts", prompts.PromptSpec),
    ("prompts.source, kind: file", sources.FileSource),
    ("prompts.source, kind: inline", sources.InlineSource),
    ("prompts.source, kind: hub", sources.HubSource),
    ("prompts.source, kind: synthetic", sources.SyntheticSource),
    ("prompts.source, kind: sharegpt", sources.ShareGptSource),
    ("prompts.source, kind: trace", sources.TraceSource),
    ("prompts.source, kind: lm_eval", sources.LmEvalSource),
    ("prompts.source, kind: openai_batch", sources.OpenAiBatchSource),
    ("prompts.source.prompt_tokens and output_tokens", sources.TokenLength),
    ("prompts.source.images", sources.SyntheticImages),
    ("prompts.source.audios", sources.SyntheticAudio),
    ("prompts.columns", prompts.Columns),
    ("prompts.media", prompts.MediaSpec),
    ("prompts.template, as a list", prompts.MessageTemplate),
    ("prompts.few_shot", prompts.FewShotSpec),
    ("chat", prompts.ChatSpec),
    ("output", engine.OutputSpec),
    ("reasoning", engine.ReasoningSpec),
    ("scorers, kind: exact_match", criteria.ExactMatch),
    ("scorers, kind: contains", criteria.Contains),
    ("scorers, kind: regex", criteria.RegexMatch),
    ("scorers, kind: numeric", criteria.Numeric),
    ("scorers, kind: choice", criteria.ChoiceLetter),
    ("scorers, kind: token_f1", criteria.TokenF1),
    ("scorers, kind: json", criteria.JsonMatch),
    ("scorers, kind: loglikelihood", criteria.Loglikelihood),
    ("engine", engine.EngineSpec),
    ("engine.server", engine.ServerSpec),
    ("engine.recovery", engine.RecoverySpec),
    ("load", load.LoadSpec),
    ("load.arrival, kind: all_at_once", load.AllAtOnce),
    ("load.arrival, kind: concurrency", load.Concurrency),
    ("load.arrival, kind: constant", load.ConstantRate),
    ("load.arrival, kind: poisson", load.Poisson),
    ("load.arrival, kind: gamma", load.Gamma),
    ("load.arrival, kind: trace", load.Trace),
    ("slos", criteria.SloSpec),
    ("gate", criteria.GateSpec),
    ("price", criteria.PriceSpec),
]


def main() -> None:
    (ROOT / "docs" / "spec.md").write_text(render(), encoding="utf-8")


def render() -> str:
    """The whole page."""
    lines = [
        "# The spec, field by field",
        "",
        "Written by `scripts/spec_docs.py` from `assayline/spec/`. A spec is a YAML file, a flow parameter, or",
        "both: `assayline evaluate SPEC --field value` overrides single fields of the file by their dotted names.",
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
