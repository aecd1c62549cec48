"""The parts of a spec that define what is sent: where prompts come from, which of them, their media and rendering."""

import datetime
import operator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from assayline.records import MediaKind
from assayline.spec.load import Trace
from assayline.spec.part import SpecPart


class Source(SpecPart):
    """Base of all sources. What is asked of a source without knowing its kind is a property here; `prompts/sources/`
    reads it."""

    kind: str

    @property
    def files(self) -> list[str] | None:
        """Paths and globs of its files, in order; None where its content has no digest, as it is elsewhere."""
        path = getattr(self, "path", None)
        return [] if path is None else [path]

    @property
    def title(self) -> str:
        """Name of the prompt set, if none is given."""
        path = getattr(self, "path", None)
        return self.kind if path is None else Path(path).stem

    @property
    def media_kinds(self) -> list[MediaKind] | None:
        """Kinds of media that its prompts have; None: its rows, or the spec's columns, decide."""
        return None

    @property
    def counts_answers(self) -> bool:
        """Whether each request's max_tokens is the length of an answer that was recorded."""
        return False

    @property
    def arrival(self) -> Trace | None:
        """Where its rows say when requests came; None: they do not."""
        return None


class FileSource(Source):
    """Rows of local files, read by streaming."""

    kind: Literal["file"] = "file"
    path: str = Field(description="File or glob, relative to the working folder; sorted by name.")
    format: Literal["auto", "jsonl", "json", "csv", "parquet"] = Field(
        "auto", description="auto: by the file's ending; json: one array of objects."
    )


class InlineSource(Source):
    """Rows written in the spec."""

    kind: Literal["inline"] = "inline"
    rows: list[dict[str, Any]] = Field(min_length=1, description="Mappings from column to value.")


class HubSource(Source):
    """A Hugging Face dataset, streamed. Needs the extra `hub`."""

    kind: Literal["hub"] = "hub"
    dataset: str = Field(description="Id on the hub, such as openai/gsm8k.")
    subset: str | None = Field(None, description="Configuration of the dataset.")
    split: str = Field("test", description="Split to read.")
    revision: str | None = Field(None, description="Branch, tag or commit.")

    @property
    def files(self) -> None:
        return None

    @property
    def title(self) -> str:
        return self.dataset


class TokenLength(SpecPart):
    """A length in tokens: fixed, or normal with bounds."""

    mean: int = Field(
        ge=1, le=10_000_000, description="Tokens on average; a plain number in the spec is a fixed length."
    )
    stdev: float = Field(0.0, ge=0, description="Standard deviation, in tokens.")
    min: int | None = Field(None, ge=1, description="Fewest tokens.")
    max: int | None = Field(None, ge=1, le=10_000_000, description="Most tokens.")

    @model_validator(mode="before")
    @classmethod
    def _from_number(cls, value: Any) -> Any:
        return {"mean": value} if isinstance(value, int) else value

    @model_validator(mode="after")
    def _check_bounds(self) -> "TokenLength":
        if (self.min or 1) > self.mean or (self.max or self.mean) < self.mean:
            raise ValueError(f"expected min <= mean <= max, given min={self.min} mean={self.mean} max={self.max}")
        return self


class SyntheticImages(SpecPart):
    """Images of synthetic prompts, each different, so that no cache helps."""

    count: int = Field(1, ge=1, le=10_000, description="Images per prompt.")
    width: int = Field(1024, ge=1, le=16_384, description="Pixels.")
    height: int = Field(1024, ge=1, le=16_384, description="Pixels.")
    content: Literal["noise", "gradient", "solid"] = Field("noise", description="Their content.")


class SyntheticAudio(SpecPart):
    """Audio of synthetic prompts: quiet noise, each clip different."""

    count: int = Field(1, ge=1, le=10_000, description="Audio clips per prompt.")
    seconds: float = Field(5.0, gt=0, le=3600, description="Length of each.")


class PythonSource(Source):
    """Rows that a Python function of your own yields, or one of an installed package."""

    kind: Literal["python"] = "python"
    function: str = Field(
        min_length=1, description="module:function, such as data:rows; or a name that a package registers."
    )
    arguments: dict[str, Any] = Field(default_factory=dict, description="Keyword arguments of the function.")

    @property
    def files(self) -> None:
        return None

    @property
    def title(self) -> str:
        return self.function.rpartition(":")[2]


class SyntheticSource(Source):
    """Random prompts of exact length, for speed: token counts hold under the model's own tokenizer."""

    kind: Literal["synthetic"] = "synthetic"
    count: int = Field(ge=1, description="Prompts to make.")
    prompt_tokens: TokenLength = Field(description="Length of the prompts.")
    output_tokens: TokenLength = Field(description="Generated exactly: sets max_tokens, min_tokens and ignore_eos.")
    shared_prefix_tokens: int = Field(
        0, ge=0, description="Leading tokens that all prompts share; 0: no two share any."
    )
    seed: int = Field(0, description="Same seed, same prompts.")
    images: SyntheticImages | None = Field(
        None, exclude_if=operator.not_, description="Images in each prompt, before its text."
    )
    audios: SyntheticAudio | None = Field(
        None, exclude_if=operator.not_, description="Audio clips in each prompt, before its text."
    )

    @property
    def media_kinds(self) -> list[MediaKind]:
        given: dict[MediaKind, Any] = {"image": self.images, "audio": self.audios}
        return [kind for kind, media in given.items() if media is not None]


class ShareGptSource(Source):
    """Conversations as ShareGPT has them: a JSON array, or JSONL, of {id, conversations: [{from, value}]}."""

    kind: Literal["sharegpt"] = "sharegpt"
    path: str = Field(description="File or glob, relative to the working folder; sorted by name.")
    max_tokens: Literal["recorded"] | None = Field(
        None,
        exclude_if=operator.not_,  # keeps digests of specs without it
        description="recorded: each request's max_tokens is the length of the recorded answer in the model's tokens; "
        "with sampling.ignore_eos exactly so many are generated (default: sampling.max_tokens).",
    )

    @property
    def counts_answers(self) -> bool:
        return self.max_tokens is not None


class TraceSource(Source):
    """Requests that a service had: their times and lengths, and which of them began alike, but no text."""

    kind: Literal["trace"] = "trace"
    path: str = Field(description="File or glob, relative to the working folder; sorted by name.")
    format: Literal["mooncake", "azure"] = Field(
        description="mooncake: timestamp (ms), input_length, output_length and, where given, hash_ids; azure: "
        "TIMESTAMP (a date), ContextTokens, GeneratedTokens."
    )
    block_tokens: int = Field(512, ge=1, description="Tokens that one of hash_ids stands for.")
    seed: int = Field(0, description="Same seed, same prompts.")

    @property
    def arrival(self) -> Trace:
        if self.format == "mooncake":
            return Trace(path=self.path, column="timestamp", unit="ms")
        return Trace(path=self.path, column="TIMESTAMP", unit="date")


class LmEvalSource(Source):
    """A task of lm-evaluation-harness: it writes the requests and judges the answers. Needs the extra `lm-eval`."""

    kind: Literal["lm_eval"] = "lm_eval"
    task: str | list[str] = Field(
        min_length=1, description="Task, group or tag, or a list of them, as `assayline tasks` lists them."
    )
    include_path: str | None = Field(None, description="Folder with YAML files of tasks of your own.")
    num_fewshot: int | None = Field(None, ge=0, description="Examples before each question (default: the task's own).")
    fewshot_seed: int = Field(1234, description="Same seed, same examples; the default is the harness's.")
    apply_chat_template: bool = Field(
        False, description="Put prompts into the chat template that `chat` names. Off, as in the harness: bare text."
    )
    fewshot_as_multiturn: bool = Field(
        True, description="With a chat template: examples are turns of the chat; off: all in one user message."
    )
    confirm_run_unsafe_code: bool = Field(
        False, description="Let tasks run code that the model writes, on this machine (HumanEval and its like)."
    )

    @property
    def files(self) -> None:
        return None

    @property
    def title(self) -> str:
        return "+".join(self.tasks)

    @property
    def tasks(self) -> list[str]:
        """The names, also of one."""
        return [self.task] if isinstance(self.task, str) else self.task


class OpenAiBatchSource(Source):
    """Lines of an OpenAI batch file for chat or text completions: prompts and their parameters."""

    kind: Literal["openai_batch"] = "openai_batch"
    path: str = Field(description="File or glob of JSON lines {custom_id, method, url, body}; sorted by name.")


AnySource = Annotated[
    FileSource
    | InlineSource
    | HubSource
    | PythonSource
    | SyntheticSource
    | ShareGptSource
    | TraceSource
    | LmEvalSource
    | OpenAiBatchSource,
    Field(discriminator="kind"),
]


Resampling = Literal["lanczos", "bicubic", "bilinear", "box", "nearest"]


class MediaSpec(SpecPart):
    """The processing of media before the model's own."""

    marks: dict[MediaKind, str] = Field(
        default_factory=dict,
        description="Text in prompts and messages in place of the row's next image, audio or video, such as "
        '{image: "<image>"} (default: media stand before the text, or where a template prints them).',
    )
    max_pixels: int | None = Field(
        None, ge=1, description="Downscale larger images to at most this many pixels, keeping the aspect ratio."
    )
    resampling: Resampling = Field("lanczos", description="The filter for downscaling.")
    cut_audio: bool = Field(
        False, description="Truncate audio that is longer than the model takes; off: such a row is an error row."
    )
    video_frames: int = Field(8, ge=1, description="Frames taken from a video, evenly spaced; all of a shorter one.")
    allowed_domains: list[str] = Field(
        default_factory=list,
        description='Hosts from which http(s) URLs may be fetched, such as images.example.com; ["*"]: any public one. '
        "Empty: a row with a URL is an error row.",
    )
    fetch_timeout_s: float = Field(10.0, gt=0, description="Longest time for fetching one URL.")
    fetch_bytes: int = Field(50_000_000, ge=1, description="Largest content of a URL.")

    @field_validator("marks")
    @classmethod
    def _check_marks(cls, marks: dict[MediaKind, str]) -> dict[MediaKind, str]:
        texts = list(marks.values())
        if not all(texts) or any(a in b for i, a in enumerate(texts) for j, b in enumerate(texts) if i != j):
            raise ValueError(f"expected texts that are not empty and not part of each other, given {texts}")
        return marks


MOST_REPEATS = 100_000
"""Of a prompt: its requests are in memory together, and take about 5 kB each."""


def _media_columns(what: str, values: str) -> Any:
    return Field(
        default_factory=list,
        exclude_if=operator.not_,  # keeps digests of specs without them
        description=f"Column, or list of columns, with {what}: one or a list of them per row ({values}).",
    )


class Columns(SpecPart):
    """Which columns mean what. A column named here must exist; unnamed defaults are used if present."""

    messages: str | None = Field(None, description="Column with chat messages (default: `messages`, if present).")
    prompt: str | None = Field(None, description="Column with one user message (default: `prompt`, if present).")
    target: str | None = Field(None, description="Column with the expected answer (default: `target`, if present).")
    id: str | None = Field(None, description="Column with the row's id (default: `id`, if present).")
    metadata: list[str] = Field(default_factory=list, description="Columns to keep with the prompt.")
    sampling: str | None = Field(None, description="Column with an object of sampling overrides.")
    output_tokens: str | None = Field(
        None,
        exclude_if=operator.not_,  # keeps digests of specs without it
        description="Column with the tokens to generate, exactly: sets max_tokens, min_tokens and ignore_eos.",
    )
    options: str | None = Field(
        None, description="Column with a list of answers to choose from, for the scorer loglikelihood."
    )
    images: list[str] = _media_columns("images", "a path relative to the data file, a data: URI, base64, bytes, a URL")
    audios: list[str] = _media_columns("audio", "as for images")
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
        None, description="Jinja2 over the example's columns: the assistant's answer (default: its target)."
    )
    seed: int = Field(0, description="Same seed, same examples.")
    per_prompt: bool = Field(
        False,
        description="Draw new examples for each prompt. Off: the same for all, which the prefix cache can share.",
    )


class PromptSpec(SpecPart):
    """Where prompts come from, and which of them are sent how often."""

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
        exclude_if=lambda chosen: chosen == "given",  # keeps digests of specs without it
        description="Of a row's messages, given: all are sent as they are; first: those up to the first user message; "
        "each: the user's turns are sent one after another, each after the model's own earlier answers.",
    )
    few_shot: FewShotSpec | None = Field(None, description="Examples before each question.")
    limit: int | None = Field(
        None, ge=1, description="At most this many rows, after shuffling; of source lm_eval, documents of each task."
    )
    shuffle_seed: int | None = Field(None, description="Shuffle with this seed; unset: the source's order.")
    repeats: int = Field(1, ge=1, le=MOST_REPEATS, description="How often each prompt is sent.")
    on_bad_row: Literal["error_row", "stop"] = Field(
        "error_row",
        exclude_if=lambda chosen: chosen == "error_row",  # keeps digests of specs without it
        description="error_row: a row that cannot become a request is an error row, and the others are sent "
        "(max_error_fraction limits their share); stop: the first one ends the run.",
    )
    media: MediaSpec = Field(
        MediaSpec(), exclude_if=lambda media: media == MediaSpec(), description="Images, audio and video of prompts."
    )

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
"""The date that templates of Llama 3 use by default."""


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
        exclude_if=lambda date: date == USUAL_DATE,  # keeps digests of specs without it
        description="Today, for templates that ask (strftime_now): runs of different days have the same prompts.",
    )
    special_tokens: Literal["control", "text", "error"] = Field(
        "control",
        exclude_if=lambda chosen: chosen == "control",  # keeps digests of specs without it
        description="Special tokens in a row's text, such as <|im_start|>, are control tokens, as transformers "
        "and vLLM read them; text, the template's own alone being control; or error, an error row.",
    )
    placeholders: dict[MediaKind, str] = Field(
        default_factory=dict,
        exclude_if=operator.not_,
        description='Placeholder of an image, audio or video in the rendered prompt, such as {image: "<image>"}; {i} '
        "is its number (default: as the model's config.json says).",
    )
