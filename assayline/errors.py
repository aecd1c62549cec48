"""The one exception tree: every error a person can cause or must act on.

A message says what was given, what was expected and what to do. The command line prints the message alone
(no traceback) and exits with the class's `exit_code`; anything outside this tree is a defect of ours. Exit code 1 is
the gate's alone: a limit is broken.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

UNEXPECTED_EXIT_CODE = 11
"""Exit code of a command that ends with an exception outside this tree."""


class AssaylineError(Exception):
    """Base of every error that assayline raises on purpose."""

    exit_code = UNEXPECTED_EXIT_CODE


class SpecError(AssaylineError):
    """The spec or a setting is not usable: unknown key, wrong type, contradicting values."""

    exit_code = 2


class PromptError(AssaylineError):
    """The prompt set cannot be read: missing file, unknown column, no rows, unrenderable template."""

    exit_code = 3


class RowError(AssaylineError):
    """One row cannot become a request, or cannot be asked. The run continues: `kind` and the message become that row's
    error. No PromptError, which ends the run."""

    exit_code = 3

    def __init__(self, message: str, kind: str = "row_error") -> None:
        # Messages quote the row, and must be storable whatever the row holds.
        super().__init__(message.encode("utf-8", "backslashreplace").decode())
        self.kind = kind


class MediaError(RowError):
    """A picture, sound or video cannot be used."""

    def __init__(self, message: str, kind: str = "media_error") -> None:
        super().__init__(message, kind)


class PromptsChangedError(PromptError):
    """The prompt set is not the one that the run began with."""


class NothingToAskError(PromptError):
    """Every row is an error row."""

    exit_code = 9


class ModelError(AssaylineError):
    """The model, its tokenizer or its chat template cannot be read."""

    exit_code = 4


class EngineError(AssaylineError):
    """The engine did not start, or died."""

    exit_code = 5


class EngineDiedError(EngineError):
    """The engine's process is gone, hangs, or never became ready. `death` is the evidence of why."""

    def __init__(self, message: str, death: "Death") -> None:
        super().__init__(message)
        self.death = death

    def __reduce__(self) -> tuple[type["EngineDiedError"], tuple[str, "Death"]]:
        """How it is pickled: it may come from another machine."""
        return type(self), (str(self), self.death)


class DeviceError(EngineError):
    """The device that the spec asks for is not here, or is taken."""


class ServerError(EngineError):
    """The server that the spec names cannot be used as it is: unreachable, not trusted, or failing."""


class EngineInterruptedError(EngineError):
    """Generation was stopped on request; what had finished is kept."""


class WorkerLostError(AssaylineError):
    """A worker's thread, process or machine is gone, or does not answer."""


class StoreError(AssaylineError):
    """The database or a part file cannot be read or written."""

    exit_code = 6


class DatabaseLockedError(StoreError):
    """Another process holds the database."""


class DatabaseUnusableError(StoreError):
    """The database file is unusable as it is: damaged, no DuckDB file, or with tables of another version."""


class DamagedPartsError(StoreError):
    """Part files that cannot be read; `parts` has the reason for each."""

    def __init__(self, message: str, parts: dict[Path, str]) -> None:
        super().__init__(message)
        self.parts = parts


class RunFailedError(AssaylineError):
    """The run ended without an answer, or an error row, for every request, or with too many error rows."""

    exit_code = 7


class ComparisonError(AssaylineError):
    """Two runs cannot be compared: one has not finished, other prompts, a scorer that one side lacks."""

    exit_code = 8


class PrefectUnreachableError(AssaylineError):
    """Prefect's API does not answer, or the temporary server did not start."""

    exit_code = 10


class Kind(StrEnum):
    """Kinds of death, by what can be done about them."""

    DEVICE_OOM = "device_oom"
    """An allocation on the device failed while generating."""
    HOST_OOM = "host_oom"
    """An allocation in main memory failed, or the kernel killed the process for memory, while generating."""
    MEMORY_TAKEN = "memory_taken"
    """At start less memory is free than the share it was to get."""
    CACHE_TOO_LARGE = "cache_too_large"
    """At start the KV cache was given a size in bytes that is not free."""
    NO_CACHE_ROOM = "no_cache_room"
    """At start weights and activations leave no room for the KV cache."""
    LENGTH_TOO_LONG = "length_too_long"
    """At start the KV cache has no room for one request of the full context length."""
    START_OOM = "start_oom"
    """An allocation failed while profiling, capturing graphs or warming up."""
    MODEL_TOO_LARGE = "model_too_large"
    """The weights alone do not fit."""
    PROFILE_DISTURBED = "profile_disturbed"
    """Another process gave memory back while vLLM measured it."""
    KILLED = "killed"
    """SIGKILL, and nothing says that it was for memory."""
    STALLED = "stalled"
    """It lives, but has stopped working or answering."""
    START_FAILED = "start_failed"
    """It did not start, for a reason that has nothing to do with memory."""
    OTHER = "other"


MEMORY_KINDS = frozenset(
    {
        Kind.DEVICE_OOM, Kind.HOST_OOM, Kind.MEMORY_TAKEN, Kind.CACHE_TOO_LARGE, Kind.NO_CACHE_ROOM,
        Kind.LENGTH_TOO_LONG, Kind.START_OOM, Kind.MODEL_TOO_LARGE, Kind.PROFILE_DISTURBED,
    }
)  # fmt: skip


class Witness(StrEnum):
    """Who tells of a death, and so where its cause is to be looked for."""

    EXCEPTION = "exception"
    """The exception that ended the engine, which names the cause itself. Without one, log and exit code."""
    LOG = "log"
    """What arrived says only that a process of the engine's own is gone: its log says why."""
    SILENCE = "silence"
    """Nobody: it lives, and has stopped working or answering."""


@dataclass(frozen=True, slots=True)
class Death:
    """The evidence."""

    phase: str
    """start (until it is warm) or run."""
    exit_code: int | None = None
    """Of the engine's process: negative for a signal, None if it was still there or nobody knows."""
    exception: str = ""
    """Name of the exception's type, where one arrived."""
    message: str = ""
    log: str = ""
    """The log's lines that match a known cause, from first on, and then its end."""
    oom_kills: int = 0
    """Processes that the kernel killed for memory while the engine lived."""
    witness: Witness = Witness.EXCEPTION
    resolved: Mapping[str, Any] = field(default_factory=dict)
    """Sizes that vLLM had chosen before it died; empty if it had not come that far, or nobody said."""
