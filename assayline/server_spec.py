"""The part of a spec for engine.backend: server. An OpenAI-compatible endpoint answers: a running one, or our own."""

from typing import Literal

from pydantic import Field, field_validator

from assayline.spec_part import SpecPart


class ServerSpec(SpecPart):
    """Which endpoint answers, and how it is asked."""

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
        "auto: if it says that it is vLLM.",
    )
    timeout_s: float = Field(600.0, gt=0, description="Longest time for one request, retries included.")
    retries: int = Field(
        5,
        ge=0,
        description="How often a request is sent again after a failed connection, 429 or 503; never once a token came.",
    )
    ca_file: str | None = Field(None, description="Certificates to trust, in PEM (default: the system's).")

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str | None) -> str | None:
        if url is not None and not url.startswith(("http://", "https://")):
            raise ValueError("expected http:// or https://, host, port and path, such as http://127.0.0.1:8000/v1")
        if url is not None and "@" in url.partition("//")[2].partition("/")[0]:
            raise ValueError("this URL holds a password, and a spec is stored. Use api_key_env")
        return url.rstrip("/") if url else url
