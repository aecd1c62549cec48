"""The sources of a spec's prompts: one kind each."""

import operator
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from assayline.records import MediaKind
from assayline.spec.part import SpecPart


class FileSource(SpecPart):
    """Rows of local files, read by streaming."""

    kind: Literal["file"] = "file"
    path: str = Field(description="File or glob, relative to the working folder; sorted by name.")
    format: Literal["auto", "jsonl", "json", "csv", "parquet"] = Field(
        "auto", description="auto: by the file's ending; json: one array of objects."
    )


class InlineSource(SpecPart):
    """Rows written in the spec."""

    kind: Literal["inline"] = "inline"
    rows: list[dict[str, Any]] = Field(min_length=1, description="Mappings from column to value.")


class HubSource(SpecPart):
    """A Hugging Face dataset, streamed. Needs the extra `hub`."""

    kind: Literal["hub"] = "hub"
    dataset: str = Field(description="Id on the hub, such as openai/gsm8k.")
    subset: str | None = Field(None, description="Configuration of the dataset.")
    split: str = Field("test", description="Split to read.")
    revision: str | None = Field(None, description="Branch, tag or commit.")


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


class SyntheticSource(SpecPart):
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
        """Kinds of media that its prompts have."""
        given: dict[MediaKind, Any] = {"image": self.images, "audio": self.audios}
        return [kind for kind, media in given.items() if media is not None]


class ShareGptSource(SpecPart):
    """Conversations as ShareGPT has them: a JSON array, or JSONL, of {id, conversations: [{from, value}]}."""

    kind: Literal["sharegpt"] = "sharegpt"
    path: str = Field(description="File or glob, relative to the working folder; sorted by name.")
    max_tokens: Literal["recorded"] | None = Field(
        None,
        exclude_if=operator.not_,  # keeps digests of specs without it
        description="recorded: each request's max_tokens is the length of the recorded answer in the model's tokens; "
        "with sampling.ignore_eos exactly so many are generated (default: sampling.max_tokens).",
    )


class TraceSource(SpecPart):
    """Requests that a service had: their times and lengths, and which of them began alike, but no text."""

    kind: Literal["trace"] = "trace"
    path: str = Field(description="File or glob, relative to the working folder; sorted by name.")
    format: Literal["mooncake", "azure"] = Field(
        description="mooncake: timestamp (ms), input_length, output_length and, where given, hash_ids; azure: "
        "TIMESTAMP (a date), ContextTokens, GeneratedTokens."
    )
    block_tokens: int = Field(512, ge=1, description="Tokens that one of hash_ids stands for.")
    seed: int = Field(0, description="Same seed, same prompts.")


class LmEvalSource(SpecPart):
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
    def tasks(self) -> list[str]:
        """The names, also of one."""
        return [self.task] if isinstance(self.task, str) else self.task


class OpenAiBatchSource(SpecPart):
    """Lines of an OpenAI batch file for chat or text completions: prompts and their parameters."""

    kind: Literal["openai_batch"] = "openai_batch"
    path: str = Field(description="File or glob of JSON lines {custom_id, method, url, body}; sorted by name.")


AnySource = Annotated[
    FileSource
    | InlineSource
    | HubSource
    | SyntheticSource
    | ShareGptSource
    | TraceSource
    | LmEvalSource
    | OpenAiBatchSource,
    Field(discriminator="kind"),
]
