"""The parts of a spec on the engine: which one answers, how it is fed, its recovery, and the form of its answers.

A spec is stored, hashed and shown. So it holds no secrets: names that say they are one are refused, anywhere in it, and
so are URLs with a password or a key.
"""

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl, urlsplit

from pydantic import AfterValidator, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from assayline.spec.part import SpecPart


class ServerSpec(SpecPart):
    """Which endpoint answers, and how requests are sent to it."""

    url: str | None = Field(
        None,
        description="Base URL of a server that is running, such as http://127.0.0.1:8000/v1; unset: `vllm serve` is "
        "started with engine.args on a device of this machine, and stopped at the end.",
    )
    endpoint: Literal["completions", "chat"] = Field(
        "completions",
        description="completions: prompts are rendered here and sent as token ids; chat: messages are sent, and the "
        "server renders them.",
    )
    model: str | None = Field(
        None, description="The model as the server names it (default: the spec's `model`, or the only one it has)."
    )
    api_key_env: str = Field(
        "OPENAI_API_KEY", description="Name of the environment variable that holds the key, if the server wants one."
    )
    extensions: Literal["auto", "vllm", "none"] = Field(
        "auto",
        description="Whether the server takes vLLM's extra fields (token ids per event, more sampling parameters); "
        "auto: if it reports that it is vLLM.",
    )
    timeout_s: float = Field(600.0, gt=0, description="Longest time for one request, retries included.")
    retries: int = Field(
        5,
        ge=0,
        description="How often a request is sent again after a failed connection, 429, 502 or 503; never once a token "
        "came. In a closed loop a server that is away is waited for, within timeout_s.",
    )
    ca_file: str | None = Field(None, description="Certificates to trust, in PEM (default: the system's).")

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str | None) -> str | None:
        if url is not None and not url.startswith(("http://", "https://")):
            raise ValueError("expected http:// or https://, host, port and path, such as http://127.0.0.1:8000/v1")
        if url is not None and _has_secret(url):
            raise PydanticCustomError(
                "secret",
                "this URL holds a password or a key, and a spec is stored. hint: put the key into an environment "
                "variable instead, and name that in engine.server.api_key_env",
            )
        return url.rstrip("/") if url else url


SECRET_NAME = re.compile(
    r"(TOKEN|API[_-]?KEY|ACCESS_KEY|PRIVATE_KEY|CREDENTIALS?)$|SECRET|PASSWORD|PASSWD|PASSPHRASE", re.IGNORECASE
)
NESTED_NAME = re.compile(
    r"^(AUTHORIZATION|(.*(AUTH|ACCESS|API|BEARER|HF|HUB|ID|REFRESH|SECURITY|SESSION)[_-]?)?TOKEN"
    r"|(.*[_-])?(API[_-]?KEY|ACCESS_KEY|PRIVATE_KEY|CREDENTIALS?|SECRET|PASSWORD|PASSWD|PASSPHRASE)|.*SECRET[_-].*KEY)$",
    re.IGNORECASE,
)
"""Inside an argument. There `image_token` and `eos_token` are texts of a model."""
SECRET_PARAMETER = re.compile(
    NESTED_NAME.pattern + r"|^(CODE|KEY|PWD|SIG|SIGNATURE|X-(AMZ|GOOG)-SIGNATURE)$", re.IGNORECASE
)
"""Of a URL's query."""
URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S+")


def _refuse_secret(name: str) -> str:
    if SECRET_NAME.search(name):
        is_ours = name.upper() == "HF_TOKEN"
        where = "as ASSAYLINE_HF_TOKEN in .env, or as HF_TOKEN in" if is_ours else f"as {name} in"
        raise ValueError(
            "this is a secret by its name, and a spec is stored. Take it out of the spec and give it "
            f"{where} the environment that the flow and its workers are started in: engines inherit it"
        )
    return name


def refuse_secrets(value: Any, where: str = "") -> None:
    """Raises PydanticCustomError if a part of a spec has a secret in it; by its type, `secret`, messages leave the
    value out. Prompts and variables of templates are left alone: they are sent and stored in any case."""
    if where in ("prompts.source.rows", "chat.kwargs"):
        return
    if isinstance(value, str):
        if NESTED_NAME.search(where.rpartition(".")[2]) and value:
            name = re.sub("^S3_", "AWS_", where.rpartition(".")[2].upper().replace("-", "_"))
            raise PydanticCustomError(
                "secret",
                "{where} is a secret by its name, and a spec is stored. hint: set it in the environment of the flow "
                "and its workers instead, under the name that the library reads, such as {name}; engines inherit it",
                {"where": where, "name": name},
            )
        if URL.fullmatch(value) and _has_secret(value):
            raise PydanticCustomError(
                "secret",
                "{where} is a URL with a password or a key, and a spec is stored. hint: remove that part, and set it "
                "in the environment of the flow and its workers",
                {"where": where},
            )
    elif isinstance(value, dict | list):
        items = value if isinstance(value, dict) else dict(enumerate(value))
        for key, item in items.items():
            refuse_secrets(item, f"{where}.{key}" if where else str(key))


def _has_secret(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return "@" in parts.netloc or any(SECRET_PARAMETER.search(name) for name, _ in parse_qsl(parts.query))
    except ValueError:
        return False


PublicName = Annotated[str, AfterValidator(_refuse_secret)]
"""A key, so that an error shows the name alone and not the value."""


class RecoverySpec(SpecPart):
    """What is done when an engine dies, above all of memory."""

    enabled: bool = Field(True, description="Rebuild a dead engine and continue; false: the run fails with the engine.")
    min_batch_size: int = Field(
        1, ge=1, description="Fewest requests in flight that a reduction may lead to. Below it the run fails."
    )
    grow: bool = Field(
        False, description="Raise a reduced max_concurrency after sustained success. Off: batching stays reproducible."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """What sets one kind of engine apart from the others. Nothing outside `spec` asks for its name.

    To add a kind: a row in `BACKENDS` and in `EngineSpec.backend`, an engine in `engines.open_engine` and, unless it
    has no process of its own, a core in `engines/host`.
    """

    has_model: bool = True
    """Whether a model answers."""
    is_streaming: bool = False
    """Whether answers come token by token, so that requests can follow an arrival pattern."""
    is_served: bool = False
    """Whether an OpenAI-compatible server answers, be it ours or not."""


BACKENDS = {
    "offline": Backend(),
    "async": Backend(is_streaming=True),
    "server": Backend(is_streaming=True, is_served=True),
    "fake": Backend(has_model=False),
}


class EngineSpec(SpecPart):
    """Which engine answers and how it is fed."""

    backend: Literal["offline", "async", "server", "fake"] = Field(
        "offline",
        description="offline: vllm.LLM, for most throughput; async: vLLM's async engine, every token stamped; server: "
        "an OpenAI-compatible endpoint; fake: no model, for trials.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: what the installed vLLM was built for.")
    mode: Literal["continuous", "barrier"] = Field(
        "continuous", description="continuous: fed as requests finish; barrier: a batch at a time, for comparison."
    )
    max_concurrency: int | None = Field(
        None, ge=1, description="Maximum requests in flight per engine. Mode continuous. Default: 1.25 x max_num_seqs."
    )
    batch_size: int = Field(32, ge=1, description="Requests per batch. Mode barrier.")
    order: Literal["auto", "given", "longest_first"] = Field(
        "auto",
        exclude_if=lambda order: order == "auto",  # keeps digests of specs without it
        description="given: in the order of the prompts; longest_first: longest expected answers first, by earlier "
        "runs of the model; auto: longest_first, unless a load or mode barrier needs the given order.",
    )
    record_token_times: bool = Field(
        False,
        description="Keep a stamp per output token, for inter-token latency. Backends async and server always do.",
    )
    warm_up: bool = Field(True, description="Prime compilation and the prompts' shared prefix before the clock starts.")
    server: ServerSpec = Field(ServerSpec(), description="Which endpoint answers. Backend server.")
    recovery: RecoverySpec = Field(RecoverySpec(), description="What is done when an engine dies.")
    args: dict[PublicName, Any] = Field(
        default_factory=dict, description="Any argument of vLLM's EngineArgs, by its name."
    )
    env: dict[PublicName, str] = Field(
        default_factory=dict, description="Environment of the engine's process (VLLM_*, ...)."
    )

    @property
    def kind(self) -> Backend:
        """What sets this backend apart."""
        return BACKENDS[self.backend]

    @property
    def is_streaming(self) -> bool:
        """Whether it streams, and so can follow an arrival pattern."""
        return self.kind.is_streaming

    @property
    def needs_device(self) -> bool:
        """Whether it computes on this machine."""
        return self.kind.has_model and not self.is_remote

    @property
    def uses_ray_executor(self) -> bool:
        """Whether vLLM spreads the engine over a Ray cluster, and reserves the GPUs there itself."""
        return self.args.get("distributed_executor_backend") == "ray"

    @property
    def sends_messages(self) -> bool:
        """Whether a server renders the chats, and gets no token ids."""
        return self.kind.is_served and self.server.endpoint == "chat"

    @property
    def is_remote(self) -> bool:
        """Whether the server is external: not started by this run."""
        return self.kind.is_served and self.server.url is not None


def _check_schema(schema: dict[str, Any]) -> dict[str, Any]:
    import jsonschema  # here: most specs have no schema, and it takes a tenth of a second

    validator = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        validator.check_schema(schema)
    except jsonschema.SchemaError as error:
        where = "/".join(str(part) for part in error.absolute_path) or "its top"
        raise ValueError(f"this is not a valid JSON schema: at {where}, {error.message:.300}") from None
    return schema


JsonSchema = Annotated[dict[str, Any], AfterValidator(_check_schema)]
"""A JSON schema; its `$schema` selects the draft."""


class ReasoningSpec(SpecPart):
    """A model that reasons before it answers: text before the closing tag is stored separately and not scored."""

    close: str = Field("</think>", min_length=1, description="The tag that ends the reasoning.")
    open: str = Field("<think>", min_length=1, description="The tag that begins it, if the model writes one.")


class OutputSpec(SpecPart):
    """A form that every answer must have: vLLM's structured output. Exactly one of the fields."""

    json_schema: JsonSchema | None = Field(None, description="JSON schema of the answer.")
    regex: str | None = Field(None, min_length=1, description="Regular expression that the complete answer matches.")
    choice: list[str] | None = Field(None, min_length=1, description="The answer is one of these.")
    grammar: str | None = Field(None, min_length=1, description="Context-free grammar, in EBNF.")

    @field_validator("regex")
    @classmethod
    def _check_regex(cls, pattern: str | None) -> str | None:
        """A first look: the engine's dialect has escapes that Python's lacks, such as \\p{L}, and is the authority."""
        try:
            re.compile(pattern or "")
        except re.error as error:
            if not error.msg.startswith("bad escape"):
                raise ValueError(f"this is not a valid regular expression: {error}") from None
        return pattern

    @field_validator("choice")
    @classmethod
    def _check_choice(cls, choice: list[str] | None) -> list[str] | None:
        if choice is not None and ("" in choice or len(set(choice)) < len(choice)):
            raise ValueError("expected different texts, none of them empty")
        return choice

    @model_validator(mode="after")
    def _check_one(self) -> "OutputSpec":
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"expected exactly one of json_schema, regex, choice, grammar, given {given or 'none'}")
        return self

    @property
    def structured_outputs(self) -> dict[str, Any]:
        """The same for `structured_outputs` of vLLM's SamplingParams, as plain JSON."""
        named = {"json": self.json_schema, "regex": self.regex, "choice": self.choice, "grammar": self.grammar}
        return {name: value for name, value in named.items() if value is not None}
