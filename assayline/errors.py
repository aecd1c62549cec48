"""The one exception tree: every error a person can cause or must act on.

A message says what was given, what was expected and what to do. The command line prints the message alone
(no traceback) and exits with the class's `exit_code`; anything outside this tree is a defect of ours.
"""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from assayline.engines.deaths import Death
    from assayline.gate_report import GateReport


class AssaylineError(Exception):
    """Base of every error that assayline raises on purpose."""

    exit_code = 1


class SpecError(AssaylineError):
    """The spec or a setting is not usable: unknown key, wrong type, contradicting values."""

    exit_code = 2


class PromptError(AssaylineError):
    """The prompt set cannot be read: missing file, unknown column, no rows, unrenderable template."""

    exit_code = 3


class PromptsChangedError(PromptError):
    """The prompt set is not the one that the run began with."""


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


class DeviceError(EngineError):
    """The device that the spec asks for is not here, or is taken."""


class ServerError(EngineError):
    """The server that the spec names cannot be used as it is: unreachable, not trusted, or failing."""


class EngineInterruptedError(EngineError):
    """Generation was stopped on request; what had finished is kept."""


class StoreError(AssaylineError):
    """The database or a part file cannot be read or written."""

    exit_code = 6


class DatabaseLockedError(StoreError):
    """Another process holds the database."""


class DatabaseUnusableError(StoreError):
    """The database file is of no use as it is: damaged, no DuckDB file, or with tables of another version."""


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


class GateFailedError(AssaylineError):
    """A run is worse than its baseline, beyond the limits of its gate. `report` has every limit."""

    exit_code = 1

    def __init__(self, message: str, report: "GateReport") -> None:
        super().__init__(message)
        self.report = report
