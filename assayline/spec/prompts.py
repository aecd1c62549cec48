"""The parts of a spec on prompts: source, selection, media and rendering."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from assayline.records import MediaKind
from assayline.spec.part import SpecPart


class Source(SpecPart):
    """Base of all sources, with the properties that do not depend on the kind. `prompts/sources/` reads them."""

    kind: str

    @property
    def files(self) -> list[str] | None:
        """Paths and globs of its files, in order; None for remote content, which has no digest."""
        path = getattr(self, "path", None)
        return [] if path is None else [path]

    @property
    def title(self) -> str:
        """Default name of the prompt set."""
        path = getattr(self, "path", None)
        return self.kind if path is None else Path(path).stem

    @property
    def media_kinds(self) -> list[MediaKind] | None:
        """Kinds of media in its prompts; None if its rows or the spec's columns decide."""
        return None

    @property
    def counts_answers(self) -> bool:
        """True if each request's max_tokens is the length of a recorded answer."""
        return False


class RemoteSource(Source):
    """Base of sources whose content is elsewhere."""

    @property
    def files(self) -> None:
        return None


class FileSource(Source):
    """Rows of local files, which are streamed."""

    kind: Literal["file"]
    path: str = Field(
        description="JSONL, JSON, CSV or Parquet file, or glob, relative to the working folder; sorted by name."
    )


class InlineSource(Source):
    """Rows in the spec itself."""

    kind: Literal["inline"]
    rows: list[dict[str, Any]] = Field(min_length=1, description="Rows as mappings from column to value.")


class HubSource(RemoteSource):
    """A Hugging Face dataset, streamed, or with HF_HUB_OFFLINE=1 from the hub's cache. Needs the extra `hub`."""

    kind: Literal["hub"]
    dataset: str = Field(description="Dataset id on the hub, such as openai/gsm8k.")
    subset: str | None = Field(None, description="Configuration of the dataset.")
    split: str = Field("test", description="Split to read.")
    revision: str | None = Field(None, description="Branch, tag or commit.")

    @property
    def title(self) -> str:
        return self.dataset


class TokenLength(SpecPart):
    """A length in tokens: fixed, or normal with bounds."""

    mean: int = Field(ge=1, le=10_000_000, description="Mean length; a plain number in the spec is a fixed length.")
    stdev: float = Field(0.0, ge=0, description="Standard deviation, in tokens.")
    min: int | None = Field(None, ge=1, description="Minimum length.")
    max: int | None = Field(None, ge=1, le=10_000_000, description="Maximum length.")

    @model_validator(mode="before")
    @classmethod
    def _from_number(cls, value: Any) -> Any:
        return {"mean": value} if isinstance(value, int) else value

    @model_validator(mode="after")
    def _check_bounds(self) -> "TokenLength":
        if (self.min or 1) > self.mean or (self.max or self.mean) < self.mean:
            raise ValueError(
                f"min={self.min} mean={self.mean} max={self.max} are out of order. hint: set min <= mean <= max"
            )
        return self


class SyntheticImages(SpecPart):
    """Images of synthetic prompts: noise, all different, so that no cache can help."""

    count: int = Field(1, ge=1, le=10_000, description="Images per prompt.")
    width: int = Field(1024, ge=1, le=16_384, description="Width in pixels.")
    height: int = Field(1024, ge=1, le=16_384, description="Height in pixels.")


class SyntheticAudio(SpecPart):
    """Audio of synthetic prompts: quiet noise, all clips different."""

    count: int = Field(1, ge=1, le=10_000, description="Audio clips per prompt.")
    seconds: float = Field(5.0, gt=0, le=3600, description="Length of each clip, seconds.")


class PythonSource(RemoteSource):
    """Rows that a Python function of your own yields, or one of an installed package."""

    kind: Literal["python"]
    function: str = Field(
        min_length=1, description="module:function, such as data:rows; or a name that a package registers."
    )
    arguments: dict[str, Any] = Field(default_factory=dict, description="Keyword arguments of the function.")

    @property
    def title(self) -> str:
        return self.function.rpartition(":")[2]


class SyntheticSource(Source):
    """Random prompts of exact length, for speed tests: lengths are in tokens of the model's own tokenizer."""

    kind: Literal["synthetic"]
    count: int = Field(ge=1, description="Number of prompts.")
    prompt_tokens: TokenLength = Field(description="Length of the prompts.")
    output_tokens: TokenLength = Field(
        description="Exact length of the outputs: sets max_tokens, min_tokens and ignore_eos."
    )
    shared_prefix_tokens: int = Field(
        0, ge=0, description="Number of leading tokens that all prompts share; 0: no two prompts share any."
    )
    seed: int = Field(0, description="Same seed, same prompts.")
    images: SyntheticImages | None = Field(None, description="Images in each prompt, before its text.")
    audios: SyntheticAudio | None = Field(None, description="Audio clips in each prompt, before its text.")

    @property
    def media_kinds(self) -> list[MediaKind]:
        given: dict[MediaKind, Any] = {"image": self.images, "audio": self.audios}
        return [kind for kind, media in given.items() if media is not None]


class ShareGptSource(Source):
    """Conversations in ShareGPT format: a JSON array, or JSONL, of {id, conversations: [{from, value}]}, with `system`
    and `tools` next to them if there are any; or [{role, content}]."""

    kind: Literal["sharegpt"]
    path: str = Field(description="File or glob, relative to the working folder; sorted by name.")
    max_tokens: Literal["recorded"] | None = Field(
        None,
        description="recorded: each request's max_tokens is the length of the recorded answer in the model's tokens; "
        "sampling.ignore_eos makes that length exact (default: sampling.max_tokens).",
    )

    @property
    def counts_answers(self) -> bool:
        return self.max_tokens is not None


class TraceSource(Source):
    """A recorded trace of requests: times, lengths and shared prefixes, without text."""

    kind: Literal["trace"]
    path: str = Field(
        description="File or glob, relative to the working folder; sorted by name. Columns of Mooncake: timestamp "
        "(ms), input_length, output_length and, if present, hash_ids; of Azure: TIMESTAMP (a date), ContextTokens, "
        "GeneratedTokens; of BurstGPT: Timestamp (s), Request tokens, Response tokens."
    )
    block_tokens: int = Field(512, ge=1, description="Number of tokens per entry of hash_ids.")
    seed: int = Field(0, description="Same seed, same prompts.")


class LmEvalSource(RemoteSource):
    """A task of lm-evaluation-harness, which builds the requests and scores the answers. Needs the extra `lm-eval`."""

    kind: Literal["lm_eval"]
    task: str | list[str] = Field(
        min_length=1, description="Task, group or tag, or a list of them, as `lm_eval ls tasks` lists them."
    )
    include_path: str | None = Field(None, description="Folder with YAML files of your own tasks.")
    num_fewshot: int | None = Field(None, ge=0, description="Examples before each question (default: the task's own).")
    apply_chat_template: bool = Field(
        False,
        description="Render prompts with the chat template in `chat`, examples as turns. Off, as in the harness: plain "
        "text.",
    )
    confirm_run_unsafe_code: bool = Field(
        False, description="Allow tasks such as HumanEval to run model-written code on this machine."
    )

    @property
    def title(self) -> str:
        return "+".join(self.tasks)

    @property
    def tasks(self) -> list[str]:
        """The task names as a list."""
        return [self.task] if isinstance(self.task, str) else self.task


class OpenAiBatchSource(Source):
    """Lines of an OpenAI batch file: prompts with their parameters, for chat or text completions."""

    kind: Literal["openai_batch"]
    path: str = Field(description="File or glob of JSON lines {custom_id, method, url, body}; sorted by name.")


def _where(example: str) -> Any:
    return Field(
        None,
        min_length=1,
        description=f"SQL condition over the row's columns and `metadata`, a JSON object, such as {example} (default: "
        "all rows).",
    )


class AnswersSource(Source):
    """The stored answers of a completed run, a row each, such as for a judge. Error rows are left out."""

    kind: Literal["run"]
    run: str = Field(
        min_length=1,
        description="Id of the run, baseline:NAME, or latest:NAME for the newest completed run of that spec name; the "
        "stored spec has the id.",
    )
    where: str | None = _where("scores['numeric'] = 0")
    not_judged_by: list[str] = Field(
        default_factory=list,
        description="Ids of judges' runs: leave out answers with a verdict, or an error, in one of them.",
    )
    rubric: str | None = Field(
        None, description="The question of a judge: judges of one rubric are a panel (default: the spec's name)."
    )

    @property
    def runs(self) -> list[str]:
        """The run, as a list."""
        return [self.run]

    @property
    def title(self) -> str:
        return f"answers of {self.run}"

    def name_runs(self, runs: list[str]) -> "AnswersSource":
        """Return the source with another run."""
        return self.model_copy(update={"run": runs[0]})


class PairsSource(Source):
    """Answers of two completed runs to the same prompts, two rows a pair: each answer is shown first once."""

    kind: Literal["pairs"]
    runs: list[str] = Field(min_length=2, max_length=2, description="The two runs, each as in a source of kind run.")
    where: str | None = _where("first <> second")

    @property
    def title(self) -> str:
        return f"answers of {' and '.join(self.runs)}"

    def name_runs(self, runs: list[str]) -> "PairsSource":
        """Return the source with other runs."""
        return self.model_copy(update={"runs": runs})


class RereadSource(Source):
    """Answers of a completed run, which the engine reads token by token. `assayline reread` writes it."""

    kind: Literal["reread"]
    run: str = Field(min_length=1, description="Id of the run whose answers are read.")
    reads: list[str] = Field(
        default_factory=list, max_length=2, description="Ids of the runs in which that run's own engine read them."
    )


AnySource = Annotated[
    FileSource
    | InlineSource
    | HubSource
    | PythonSource
    | SyntheticSource
    | ShareGptSource
    | TraceSource
    | LmEvalSource
    | OpenAiBatchSource
    | AnswersSource
    | PairsSource
    | RereadSource,
    Field(discriminator="kind"),
]


class MediaSpec(SpecPart):
    """The processing of media before the model's own."""

    marks: dict[MediaKind, str] = Field(
        default_factory=dict,
        description="Text that marks the place of the row's next image, audio or video in prompts and messages, "
        'such as {image: "<image>"} (default: media come before the text, or where a template prints them).',
    )
    max_pixels: int | None = Field(
        None, ge=1, description="Downscale larger images to at most this many pixels, keeping the aspect ratio."
    )
    cut_audio: bool = Field(
        False, description="Truncate audio that is longer than the model accepts; off: such a row is an error row."
    )
    video_frames: int = Field(
        8, ge=1, description="Number of frames per video, evenly spaced; shorter videos use all frames."
    )
    allowed_domains: list[str] = Field(
        default_factory=list,
        description='Hosts from which http(s) URLs may be fetched, such as images.example.com; ["*"]: any public host. '
        "Empty: a row with a URL is an error row.",
    )

    @field_validator("marks")
    @classmethod
    def _check_marks(cls, marks: dict[MediaKind, str]) -> dict[MediaKind, str]:
        texts = list(marks.values())
        if not all(texts) or any(a in b for i, a in enumerate(texts) for j, b in enumerate(texts) if i != j):
            raise ValueError(f"{texts} overlap or are empty. hint: use non-empty texts, none of which contains another")
        return marks


MOST_REPEATS = 100_000
"""Maximum repeats of a prompt, whose requests are in memory together at about 5 kB each."""


def _media_columns(what: str, values: str) -> Any:
    return Field(
        default_factory=list,
        description=f"Column, or list of columns, with {what}: one or a list of them per row ({values}).",
    )


class Columns(SpecPart):
    """The meaning of columns. A column named here must exist; defaults are used if present."""

    messages: str | None = Field(None, description="Column with chat messages (default: `messages`, if present).")
    prompt: str | None = Field(None, description="Column with one user message (default: `prompt`, if present).")
    target: str | None = Field(None, description="Column with the expected answer (default: `target`, if present).")
    id: str | None = Field(None, description="Column with the row's id (default: `id`, if present).")
    metadata: list[str] = Field(default_factory=list, description="Columns to store with the prompt.")
    cluster: str | None = Field(
        None,
        description="Metadata column that is equal for questions over one passage or document, which are not "
        "independent: standard errors, intervals and tests of scores count them as one cluster.",
    )
    sampling: str | None = Field(None, description="Column with sampling overrides, an object per row.")
    output_tokens: str | None = Field(
        None,
        description="Column with the exact number of tokens to generate: sets max_tokens, min_tokens and ignore_eos.",
    )
    options: str | None = Field(None, description="Column with a list of answer choices, for the scorer loglikelihood.")
    images: list[str] = _media_columns("images", "a path relative to the data file, a data: URI, base64, bytes, a URL")
    audios: list[str] = _media_columns("audio", "as for images")
    videos: list[str] = _media_columns("videos", "as for images")

    @field_validator("images", "audios", "videos", mode="before")
    @classmethod
    def _list_columns(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @property
    def media(self) -> dict[MediaKind, list[str]]:
        """The named columns of each kind of media, in order."""
        named: dict[MediaKind, list[str]] = {"image": self.images, "audio": self.audios, "video": self.videos}
        return {kind: columns for kind, columns in named.items() if columns}


class MessageTemplate(SpecPart):
    """A chat message whose content is a Jinja2 template over the row's columns."""

    role: str = Field(description="system, user or assistant, or another role of the chat template.")
    content: str = Field(description="Jinja2 template over the row's columns.")


class FewShotSpec(SpecPart):
    """Few-shot examples: chat turns before the question, drawn from a file, a split or the prompt set itself.

    They are the same for all prompts, so that the prefix cache can reuse them.
    """

    count: int = Field(ge=1, le=10_000, description="Examples per prompt.")
    source: Annotated[FileSource | InlineSource | HubSource, Field(discriminator="kind")] | None = Field(
        None, description="Rows to draw from (default: the prompt set). A prompt is never its own example."
    )
    answer: str | None = Field(
        None, description="Jinja2 template over the example's columns for the assistant's answer (default: its target)."
    )
    seed: int = Field(0, description="Same seed, same examples.")


class PromptSpec(SpecPart):
    """The source of prompts, their selection and repeats."""

    name: str | None = Field(None, description="Name of the prompt set (default: from the source).")
    source: AnySource = Field(description="Source of the rows: one of the kinds below.")
    columns: Columns = Field(Columns(), description="The meaning of columns.")
    template: str | list[MessageTemplate] | None = Field(
        None,
        description="Jinja2 template over the row's columns: text of one user message, or a list of messages. A row "
        "whose template prints a null is an error row; {{ column or '' }} prints nothing instead.",
    )
    turns: Literal["given", "first", "each"] = Field(
        "given",
        description="Which messages of a row to send. given: all, unchanged; first: up to the first user message; "
        "each: the user's turns one after another, each following the model's own earlier answers.",
    )
    few_shot: FewShotSpec | None = Field(None, description="Few-shot examples before each question.")
    limit: int | None = Field(
        None, ge=1, description="Maximum number of rows, after shuffling; for source lm_eval, of documents per task."
    )
    shuffle_seed: int | None = Field(None, description="Shuffle with this seed; unset: the source's order.")
    repeats: int = Field(1, ge=1, le=MOST_REPEATS, description="How many times each prompt is sent.")
    media: MediaSpec = Field(MediaSpec(), description="Images, audio and video of prompts.")

    @property
    def asks_each_turn(self) -> bool:
        """True if conversations are sent turn by turn."""
        return self.turns == "each"

    @property
    def set_name(self) -> str:
        """The given name, or the default from the source."""
        return self.name or self.source.title

    @property
    def task(self) -> LmEvalSource | None:
        """The source if lm-evaluation-harness builds the requests; None if they come from rows."""
        return self.source if isinstance(self.source, LmEvalSource) else None


class ChatSpec(SpecPart):
    """Rendering of messages to the text that the model reads."""

    template: str = Field(
        "default",
        description="default (the tokenizer's), plain (contents joined by a space), a Jinja2 file, or inline Jinja2.",
    )
    system: str | None = Field(None, description="System message for conversations without one.")
    prefill: str | None = Field(None, description="Start of the assistant's answer, which the model continues.")
    kwargs: dict[str, Any] = Field(
        default_factory=dict,
        description="Additional variables for the template; add_generation_prompt: false omits the header of the "
        "assistant's turn. A template that asks for the time gets midnight of 2024-07-26, unless a variable has its "
        "date, such as Llama's date_string.",
    )
    special_tokens: Literal["control", "text", "error"] = Field(
        "control",
        description="Special tokens in a row's text, such as <|im_start|>. control: control tokens, as in transformers "
        "and vLLM; text: plain text, only the template's own are control tokens; error: such a row is an error row.",
    )
    placeholders: dict[MediaKind, str] = Field(
        default_factory=dict,
        description='Placeholder of an image, audio or video in the rendered prompt, such as {image: "<image>"}; {i} '
        "is its number (default: from the model's config.json).",
    )
