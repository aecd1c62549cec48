"""The parts of a spec that say what is asked: where prompts come from, which of them, and how they are rendered."""

import datetime
import operator
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from assayline.records import MediaKind
from assayline.spec.media import MediaSpec
from assayline.spec.part import SpecPart
from assayline.spec.sources import (
    AnySource,
    FileSource,
    HubSource,
    InlineSource,
    LmEvalSource,
    OpenAiBatchSource,
    ShareGptSource,
    SyntheticSource,
    TraceSource,
)

MOST_REPEATS = 100_000
"""Of a prompt: its requests are in memory together, and take about 5 kB each."""


def _media_columns(what: str, values: str) -> Any:
    return Field(
        default_factory=list,
        exclude_if=operator.not_,  # so that a spec without them is the same spec as ever
        description=f"Column, or list of columns, with {what}: one or a list of them per row ({values}).",
    )


class Columns(SpecPart):
    """Which columns mean what. A column named here must exist; unnamed defaults are used if present."""

    messages: str | None = Field(None, description="Column with chat messages (default: `messages`, if present).")
    prompt: str | None = Field(None, description="Column with one user message (default: `prompt`, if present).")
    target: str | None = Field(None, description="Column with the expected answer (default: `target`, if present).")
    id: str | None = Field(None, description="Column with the row's id (default: `id`, if present).")
    metadata: list[str] = Field(default_factory=list, description="Columns to keep beside the prompt.")
    sampling: str | None = Field(None, description="Column with an object of sampling overrides.")
    output_tokens: str | None = Field(
        None,
        exclude_if=operator.not_,  # so that a spec without it is the same spec as ever
        description="Column with the tokens to generate, exactly: sets max_tokens, min_tokens and ignore_eos.",
    )
    options: str | None = Field(
        None, description="Column with a list of answers to choose from, for the scorer loglikelihood."
    )
    images: list[str] = _media_columns("images", "a path relative to the data file, a data: URI, base64, bytes, a URL")
    audios: list[str] = _media_columns("sounds", "as for images")
    videos: list[str] = _media_columns("videos", "as for images")

    @field_validator("images", "audios", "videos", mode="before")
    @classmethod
    def _list_columns(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @property
    def media(self) -> dict[MediaKind, list[str]]:
        """Columns of each kind that is named, in their order."""
        named: dict[MediaKind, list[str]] = {"image": self.images, "audio": self.audios, "video": self.videos}
        return {kind: columns for kind, columns in named.items() if columns}


class MessageTemplate(SpecPart):
    """One chat message whose content is a Jinja2 template over the row's columns."""

    role: str = Field(description="system, user or assistant; what the chat template knows.")
    content: str = Field(description="Jinja2 over the row's columns.")


class FewShotSpec(SpecPart):
    """Examples before the question: turns of the chat, drawn from a file, a split or the prompt set itself."""

    count: int = Field(ge=1, le=10_000, description="Examples per prompt.")
    source: Annotated[FileSource | InlineSource | HubSource, Field(discriminator="kind")] | None = Field(
        None, description="Rows to draw from (default: the prompt set itself). The prompt itself is never drawn."
    )
    answer: str | None = Field(
        None, description="Jinja2 over the example's columns: what the assistant says (default: its target)."
    )
    seed: int = Field(0, description="Same seed, same examples.")
    per_prompt: bool = Field(
        False, description="Draw anew for each prompt. Off: the same examples for all, which the prefix cache likes."
    )


class PromptSpec(SpecPart):
    """Where prompts come from and which of them are asked, how often."""

    name: str | None = Field(None, description="Name of the prompt set (default: from the source).")
    source: AnySource = Field(description="Rows: one of the kinds below.")
    columns: Columns = Field(Columns(), description="Which columns mean what.")
    template: str | list[MessageTemplate] | None = Field(
        None,
        description="Jinja2 over the row's columns: text for one user message, or a list of messages. A null that it "
        "would write is an error row; {{ column or '' }} writes nothing instead.",
    )
    turns: Literal["given", "first", "each"] = Field(
        "given",
        exclude_if=lambda chosen: chosen == "given",  # so that a spec without it is the same spec as ever
        description="Of a row's messages, given: all are asked as they are; first: those up to the first user message; "
        "each: every user's turn is asked, one after another, with the model's own answers before it.",
    )
    few_shot: FewShotSpec | None = Field(None, description="Examples before each question.")
    limit: int | None = Field(
        None, ge=1, description="At most this many rows, after shuffling; of source lm_eval, documents of each task."
    )
    shuffle_seed: int | None = Field(None, description="Shuffle with this seed; unset: the source's order.")
    repeats: int = Field(1, ge=1, le=MOST_REPEATS, description="How often each prompt is asked.")
    on_bad_row: Literal["error_row", "stop"] = Field(
        "error_row",
        exclude_if=lambda chosen: chosen == "error_row",  # so that a spec without it is the same spec as ever
        description="error_row: a row that cannot become a request is an error row, and the others are asked "
        "(max_error_fraction says how many may be); stop: the first one ends the run.",
    )
    media: MediaSpec = Field(
        MediaSpec(), exclude_if=lambda media: media == MediaSpec(), description="Images, sounds and videos of prompts."
    )

    @model_validator(mode="after")
    def _check_task(self) -> "PromptSpec":
        if isinstance(self.source, LmEvalSource):
            usual = {"columns": Columns(), "template": None, "few_shot": None, "shuffle_seed": None, "repeats": 1}
            if changed := [f"prompts.{name}" for name, value in usual.items() if getattr(self, name) != value]:
                raise ValueError(
                    f"{' and '.join(changed)}: with source lm_eval, the task decides that. Remove it; "
                    "prompts.source.num_fewshot sets the number of examples"
                )
        if isinstance(self.source, OpenAiBatchSource):
            usual = {"columns": Columns(), "template": None, "few_shot": None, "repeats": 1}
            if changed := [f"prompts.{name}" for name, value in usual.items() if getattr(self, name) != value]:
                raise ValueError(
                    f"{' and '.join(changed)}: with source openai_batch, each line's body says what is asked, and its "
                    "n how often. Remove it"
                )
        return self

    @model_validator(mode="after")
    def _check_turns(self) -> "PromptSpec":
        if not self.asks_each_turn:
            return self
        if isinstance(self.source, LmEvalSource | OpenAiBatchSource | SyntheticSource | TraceSource):
            raise ValueError(
                f"prompts.turns each: rows of source {self.source.kind} are whole prompts, no conversations. Remove "
                "it, or give a source of kind sharegpt, or one with a column of messages"
            )
        if isinstance(self.source, ShareGptSource) and self.source.max_tokens is not None:
            raise ValueError(
                "prompts.source.max_tokens recorded: with prompts.turns each, every turn is answered, and that would "
                "be the length of one of the answers. Remove one of the two; sampling.max_tokens is for all turns"
            )
        if self.few_shot is not None:
            raise ValueError(
                "prompts.few_shot: with prompts.turns each, what stands before a question is what the model said "
                "itself. Remove one of the two"
            )
        return self

    @property
    def asks_each_turn(self) -> bool:
        """Whether conversations are asked turn by turn."""
        return self.turns == "each"

    @property
    def set_name(self) -> str:
        """The name given, or one made from the source."""
        return self.name or self.source.title

    @property
    def task(self) -> LmEvalSource | None:
        """The task of lm-evaluation-harness that writes the requests itself; None: they come from rows."""
        return self.source if isinstance(self.source, LmEvalSource) else None


USUAL_DATE = datetime.date(2024, 7, 26)
"""The date that templates of Llama 3 fall back on where nobody gives them one."""


class ChatSpec(SpecPart):
    """How messages become the text that the model reads."""

    template: str = Field(
        "default",
        description="default (the tokenizer's), plain (contents joined by a space), a Jinja2 file, or inline Jinja2.",
    )
    system: str | None = Field(None, description="System message put before each conversation without one.")
    prefill: str | None = Field(None, description="Beginning of the assistant's answer, which the model continues.")
    add_generation_prompt: bool = Field(True, description="End with the opening of the assistant's turn.")
    kwargs: dict[str, Any] = Field(default_factory=dict, description="More variables for the template.")
    date: datetime.date = Field(
        USUAL_DATE,
        exclude_if=lambda date: date == USUAL_DATE,  # so that a spec without it is the same spec as ever
        description="Today, for templates that ask (strftime_now): runs of different days have the same prompts.",
    )
    special_tokens: Literal["control", "text", "error"] = Field(
        "control",
        exclude_if=lambda chosen: chosen == "control",  # so that a spec without it is the same spec as ever
        description="Special tokens in a row's text, such as <|im_start|>, are control tokens, as transformers "
        "and vLLM read them; text, the template's own alone being control; or error, an error row.",
    )
    placeholders: dict[MediaKind, str] = Field(
        default_factory=dict,
        exclude_if=operator.not_,
        description='What stands for an image, audio or video in the rendered prompt, such as {image: "<image>"}; {i} '
        "is its number (default: as the model's config.json says).",
    )
