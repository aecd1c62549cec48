"""The part of a spec on the engine: which one answers, how it is fed, and what is done when it dies.

A spec is stored, hashed and shown. So it holds no secrets: names that say they are one are refused.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from assayline.server_spec import ServerSpec
from assayline.spec_part import SpecPart

SECRET_NAME = re.compile(
    r"(TOKEN|API_?KEY|ACCESS_KEY|PRIVATE_KEY|CREDENTIALS?)$|SECRET|PASSWORD|PASSWD|PASSPHRASE", re.IGNORECASE
)


def _refuse_secret(name: str) -> str:
    if SECRET_NAME.search(name):
        is_ours = name.upper() == "HF_TOKEN"
        where = "as ASSAYLINE_HF_TOKEN in .env, or as HF_TOKEN in" if is_ours else f"as {name} in"
        raise ValueError(
            "this is a secret by its name, and a spec is stored. Take it out of the spec and give it "
            f"{where} the environment that the flow and its workers are started in: engines inherit it"
        )
    return name


PublicName = Annotated[str, AfterValidator(_refuse_secret)]
"""A key, so that an error shows the name alone and not the value."""


class RecoverySpec(SpecPart):
    """What is done when an engine dies, above all of memory."""

    enabled: bool = Field(True, description="Rebuild a dead engine and go on; false: the run fails with the engine.")
    min_batch_size: int = Field(
        1, ge=1, description="Fewest requests in flight that a reduction may lead to. Below it the run fails."
    )
    grow: bool = Field(
        False, description="Widen a reduced window again after sustained success. Off: batching stays reproducible."
    )


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
    window: int | None = Field(
        None, ge=1, description="Most requests in flight (default: 1.25 x max_num_seqs). Mode continuous."
    )
    batch_size: int = Field(32, ge=1, description="Requests per batch. Mode barrier.")
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
    def is_streaming(self) -> bool:
        """Whether it streams, and so can follow an arrival pattern."""
        return self.backend in ("async", "server")

    @property
    def sends_messages(self) -> bool:
        """Whether a server renders the chats, and gets no token ids."""
        return self.backend == "server" and self.server.endpoint == "chat"

    @property
    def is_remote(self) -> bool:
        """Whether a server answers that is none of ours."""
        return self.backend == "server" and self.server.url is not None
