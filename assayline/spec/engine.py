"""The parts of a spec on the engine: backend, scheduling, recovery, and the form of answers.

A spec is stored, hashed and shown, so it must not hold secrets: names of secrets, and URLs with a password or a key,
are rejected anywhere in it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl, urlsplit

from pydantic import AfterValidator, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from assayline.spec.part import SpecPart


class ServerSpec(SpecPart):
    """The endpoint, and how requests are sent to it."""

    url: str | None = Field(
        None,
        description="Base URL of a running server, such as http://127.0.0.1:8000/v1; unset: `vllm serve` is started "
        "with engine.args on a device of this machine, and stopped at the end.",
    )
    endpoint: Literal["completions", "chat"] = Field(
        "completions",
        description="completions: assayline renders prompts and sends token ids; chat: messages are sent, and the "
        "server renders them.",
    )
    model: str | None = Field(
        None, description="Model name on the server (default: the spec's `model`, or the only one that the server has)."
    )
    api_key_env: str = Field(
        "OPENAI_API_KEY", description="Name of the environment variable with the API key, if the server needs one."
    )
    timeout_s: float = Field(600.0, gt=0, description="Maximum time for one request, including retries.")
    retries: int = Field(
        5,
        ge=0,
        description="Maximum retries of a request after a failed connection, 429, 502 or 503; never after a first "
        "token. In a closed loop, requests wait for an unreachable server, within timeout_s.",
    )

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str | None) -> str | None:
        if url is not None and not url.startswith(("http://", "https://")):
            raise ValueError("not a valid URL. hint: set http(s)://HOST:PORT/PATH, such as http://127.0.0.1:8000/v1")
        if url is not None and _has_secret(url):
            raise PydanticCustomError(
                "secret",
                "this URL contains a password or a key, and a spec is stored. hint: put the key into an environment "
                "variable, and set engine.server.api_key_env to its name",
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
"""Names of secrets inside an argument, in which `image_token` and `eos_token` are texts of a model."""
SECRET_PARAMETER = re.compile(
    NESTED_NAME.pattern + r"|^(CODE|KEY|PWD|SIG|SIGNATURE|X-(AMZ|GOOG)-SIGNATURE)$", re.IGNORECASE
)
"""Names of secrets in the query of a URL."""
URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S+")


def _refuse_secret(name: str) -> str:
    if SECRET_NAME.search(name):
        is_ours = name.upper() == "HF_TOKEN"
        where = "as ASSAYLINE_HF_TOKEN in .env, or as HF_TOKEN in" if is_ours else f"as {name} in"
        raise ValueError(
            "the name indicates a secret, and a spec is stored. hint: remove it from the spec and set it "
            f"{where} the environment of the flow and its workers; engines inherit it"
        )
    return name


def refuse_secrets(value: Any, where: str = "") -> None:
    """Raise PydanticCustomError if part of a spec contains a secret.

    The error has the type `secret`, for which messages omit the value. Prompts and template variables are not checked:
    they are sent and stored in any case.
    """
    if where in ("prompts.source.rows", "chat.kwargs"):
        return
    if isinstance(value, str):
        if NESTED_NAME.search(where.rpartition(".")[2]) and value:
            name = re.sub("^S3_", "AWS_", where.rpartition(".")[2].upper().replace("-", "_"))
            raise PydanticCustomError(
                "secret",
                "the name {where} indicates a secret, and a spec is stored. hint: set it in the environment of the "
                "flow and its workers instead, under the library's own name, such as {name}; engines inherit it",
                {"where": where, "name": name},
            )
        if URL.fullmatch(value) and _has_secret(value):
            raise PydanticCustomError(
                "secret",
                "{where} is a URL with a password or a key, and a spec is stored. hint: remove the secret, and set it "
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
"""A key that is checked for secrets, so that an error shows only the name, not the value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """Properties of a kind of engine. Code outside `spec` asks `EngineSpec` for them, not for the backend's name.

    To add a kind, add a row to `BACKENDS` and to `EngineSpec.backend`, an engine to `engines.open_engine` and, if it
    has its own process, a core to `engines/host`.
    """

    has_model: bool = True
    """True if a model answers."""
    is_streaming: bool = False
    """True if answers are streamed, so that requests can follow an arrival pattern."""
    is_served: bool = False
    """True if an OpenAI-compatible server answers, started by assayline or external."""


BACKENDS = {
    "offline": Backend(),
    "async": Backend(is_streaming=True),
    "server": Backend(is_streaming=True, is_served=True),
    "fake": Backend(has_model=False),
}


class EngineSpec(SpecPart):
    """The engine, and how requests are fed to it."""

    backend: Literal["offline", "async", "server", "fake"] = Field(
        "offline",
        description="offline: vllm.LLM, for maximum throughput; async: vLLM's async engine, a timestamp per token; "
        "server: an OpenAI-compatible endpoint; fake: echoes, for testing; the model folder needs only its tokenizer.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: what the installed vLLM was built for.")
    mode: Literal["continuous", "barrier"] = Field(
        "continuous",
        description="continuous: new requests as others finish; barrier: one batch at a time, for comparison.",
    )
    max_concurrency: int | None = Field(
        None, ge=1, description="Maximum requests in flight per engine. Mode continuous. Default: 1.25 x max_num_seqs."
    )
    batch_size: int = Field(32, ge=1, description="Requests per batch. Mode barrier.")
    order: Literal["auto", "given", "longest_first"] = Field(
        "auto",
        description="given: in the order of the prompts; longest_first: longest expected outputs first, estimated from "
        "earlier runs of the model; auto: longest_first, unless a load or mode barrier needs the given order.",
    )
    record_token_times: bool = Field(
        False,
        description="Record a timestamp per output token, for ITL. Backends async and server always do.",
    )
    warmup: bool = Field(True, description="Warm up compilation and the prompts' shared prefix before the measurement.")
    server: ServerSpec = Field(ServerSpec(), description="The endpoint. Backend server.")
    min_concurrency: int = Field(
        1,
        ge=1,
        description="Minimum requests in flight after an out-of-memory error; below it the run fails.",
    )
    args: dict[PublicName, Any] = Field(default_factory=dict, description="Any argument of vLLM's EngineArgs, by name.")
    env: dict[PublicName, str] = Field(
        default_factory=dict, description="Environment variables of the engine process (VLLM_*, ...)."
    )
    python: str | None = Field(
        None,
        min_length=1,
        description="Python of another environment, whose vLLM the engines use; the same assayline must be "
        "installed there (default: this environment).",
    )

    @field_validator("python")
    @classmethod
    def _expand_home(cls, python: str | None) -> str | None:
        return python and str(Path(python).expanduser())

    @model_validator(mode="after")
    def _check_python(self) -> "EngineSpec":
        if self.python and not self.needs_device:
            raise ValueError("python is set, but no engine is started here. hint: remove it")
        return self

    @property
    def kind(self) -> Backend:
        """Properties of the backend."""
        return BACKENDS[self.backend]

    @property
    def is_streaming(self) -> bool:
        """True if it streams, and so can follow an arrival pattern."""
        return self.kind.is_streaming

    @property
    def is_served(self) -> bool:
        """True if an OpenAI-compatible server answers."""
        return self.kind.is_served

    @property
    def is_shareable(self) -> bool:
        """True if another run can use the engine: it is vLLM's own, in a process of this machine."""
        return not (self.is_served or self.uses_ray_executor)

    @property
    def records_token_times(self) -> bool:
        """True if each output token has a timestamp."""
        return self.record_token_times or self.is_streaming

    @property
    def needs_device(self) -> bool:
        """True if it computes on this machine."""
        return self.kind.has_model and not self.is_remote

    @property
    def uses_ray_executor(self) -> bool:
        """True if vLLM distributes the engine over a Ray cluster and reserves the GPUs itself."""
        return self.args.get("distributed_executor_backend") == "ray"

    @property
    def sends_messages(self) -> bool:
        """True if the server renders the messages, and receives no token ids."""
        return self.is_served and self.server.endpoint == "chat"

    @property
    def is_remote(self) -> bool:
        """True for an external server, not started by this run."""
        return self.is_served and self.server.url is not None

    @property
    def starts_server(self) -> bool:
        """True for a server that is started by this run."""
        return self.is_served and self.server.url is None

    def with_args(self, args: Mapping[str, Any]) -> "EngineSpec":
        """Return it with more arguments of vLLM; they override its own."""
        return self.model_copy(update={"args": {**self.args, **args}})


def _check_schema(schema: dict[str, Any]) -> dict[str, Any]:
    import jsonschema  # here: most specs have no schema, and it takes a tenth of a second

    validator = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        validator.check_schema(schema)
    except jsonschema.SchemaError as error:
        where = "/".join(str(part) for part in error.absolute_path) or "its top"
        raise ValueError(f"not a valid JSON schema: at {where}, {error.message:.300}") from None
    return schema


JsonSchema = Annotated[dict[str, Any], AfterValidator(_check_schema)]
"""A JSON schema; its `$schema` selects the draft."""


TYPED = frozenset(
    {
        "contains", "dependentRequired", "exclusiveMaximum", "exclusiveMinimum", "format", "maxItems", "maxLength",
        "maxProperties", "maximum", "minItems", "minLength", "minProperties", "minimum", "multipleOf", "pattern",
        "patternProperties", "propertyNames", "uniqueItems",
    }
)  # fmt: skip
"""Keywords that xgrammar, the default backend of vLLM's structured outputs, ignores in a schema without `type`."""

NEVER = frozenset({"if", "not"})
"""Keywords that it always ignores."""


def list_ignored(schema: Any, where: str = "") -> list[str]:
    """List the keywords of a JSON schema that vLLM does not enforce, with their places."""
    if not isinstance(schema, dict):
        return []
    ignored = set(schema) & (NEVER if "type" in schema else TYPED | NEVER)
    found = [f"{where}{keyword}" for keyword in sorted(ignored)]
    for keyword, part in schema.items():
        named = keyword in ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
        parts = part if named else dict(enumerate(part)) if isinstance(part, list) else {"": part}
        if keyword not in ("enum", "const", "default", "examples") and isinstance(parts, dict):
            for name, below in parts.items():
                found += list_ignored(below, f"{where}{keyword}{'.' if name != '' else ''}{name}.")
    return found


class ReasoningSpec(SpecPart):
    """A model that reasons before it answers: text up to the closing tag is stored separately and not scored."""

    close: str = Field("</think>", min_length=1, description="Tag that ends the reasoning.")
    open: str = Field("<think>", min_length=1, description="Tag that starts the reasoning, if the model writes one.")


FORMS: dict[str, type | tuple[type, ...]] = {
    "json": (dict, str), "regex": str, "choice": list, "grammar": str, "json_object": bool, "structural_tag": str,
}  # fmt: skip
"""Forms of `structured_outputs` in vLLM's SamplingParams, which takes one of them, and their types."""


def check_form(form: Mapping[str, Any]) -> None:
    """Raise ValueError for structured outputs that vLLM would refuse with each request."""
    given = [name for name in FORMS if form.get(name) is not None]
    if len(given) != 1:
        named = ", ".join(given or form) or "none"
        raise ValueError(f"structured_outputs: expected exactly one of {', '.join(FORMS)}, given {named}")
    (name,), value = given, form[given[0]]
    if not isinstance(value, FORMS[name]):
        raise ValueError(f"structured_outputs.{name} is {value!r:.80}, of another type")
    if name == "json" and isinstance(value, dict):
        _check_schema(value)
    if name == "choice" and ("" in value or len(set(map(str, value))) < len(value)):
        raise ValueError("structured_outputs: choices must be distinct and not empty")
    try:
        re.compile(value if name == "regex" else "")
    except re.error as error:
        if not error.msg.startswith("bad escape"):  # the engine decides: its dialect has escapes that Python lacks
            raise ValueError(f"structured_outputs: not a valid regular expression: {error}") from None
