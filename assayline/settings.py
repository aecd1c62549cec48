"""Settings of the machine, not of the evaluation, from the environment and `.env`, prefix ASSAYLINE_.

`.env.example` lists every one with default and unit; a test keeps it complete.
"""

import difflib
import os
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, DotEnvSettingsSource, SettingsConfigDict

from assayline.errors import SpecError, StoreError

PREFIX = "ASSAYLINE_"


_SHARED = next((one for one in (Path("/tmp"), Path("/dev/shm")) if os.access(one, os.W_OK)), Path("/tmp"))
"""A folder of the machine that every user can write; a container may have a read-only /tmp."""


class Settings(BaseSettings):
    """One field per setting; its variable is ASSAYLINE_ and the field's name in capitals."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_file=".env", env_ignore_empty=True, extra="ignore", frozen=True
    )

    data_dir: Path = Field(Path("data"), description="Folder of the database and of the runs' part files.")
    database: Path | None = Field(None, description="DuckDB file (default: assayline.duckdb in the data folder).")
    lock_dir: Path = Field(
        _SHARED / "assayline-locks",
        description="Folder of device locks, one per machine, shared by all its users; in /dev/shm if /tmp is "
        "read-only.",
    )
    database_wait_s: float = Field(
        30.0, ge=0, description="Seconds to wait for another process's lock on the database."
    )
    machine: str | None = Field(
        None,
        description="Name of the kind of machine: speeds of runs with the same name are compared (default: the CPU's "
        "model and the number of cores).",
    )
    device_wait_s: float = Field(0.0, ge=0, description="Seconds to wait for a device that another run holds.")
    flush_interval_s: float = Field(2.0, gt=0, description="Maximum seconds until a finished request is written.")
    flush_rows: int = Field(512, ge=1, description="Maximum rows per part file.")
    load_interval_s: float = Field(30.0, gt=0, description="Seconds between loads of part files into the database.")
    engine_start_timeout_s: float = Field(
        900.0,
        gt=0,
        description="Seconds that an engine may start without a new line in its log; at most four times that in total.",
    )
    engine_close_timeout_s: float = Field(
        20.0, gt=0, description="Seconds that an engine may take to close before it is killed."
    )
    engine_stall_timeout_s: float = Field(
        600.0,
        gt=0,
        description="Seconds without an engine step, with requests in flight, after which the engine is declared dead.",
    )
    engine_memory_wait_s: float = Field(
        30.0, ge=0, description="Seconds to wait for device memory that a crashed engine or another process holds."
    )
    engine_memory_limit_bytes: int | None = Field(
        None, ge=1, description="Limit of an engine process's address space in bytes (RLIMIT_AS); for CPU engines."
    )
    price: dict[str, Any] | None = Field(
        None, description="Price of this machine, for specs without `price`: JSON with that part's fields."
    )
    bar: bool = Field(
        True,
        description="Show a progress bar instead of log lines in a terminal; hide the engine's own lines.",
    )
    tracebacks: bool = Field(False, description="Show tracebacks of errors that have an error message.")
    webhook: SecretStr | None = Field(
        None,
        description="URL to which nights and nightly suites without Prefect send a message, as JSON with the field "
        "`text`, if they are worse, suspect or fail.",
    )
    hf_token: SecretStr | None = Field(None, description="Hugging Face token for gated models; passed on as HF_TOKEN.")

    @cached_property
    def database_path(self) -> Path:
        return self.database or self.data_dir / "assayline.duckdb"

    def need_database(self) -> None:
        """Raise StoreError if there is no database; reading does not create one."""
        if not self.database_path.exists():
            raise StoreError(
                f"Database not found at {self.database_path}. hint: run an evaluation first, or set "
                "ASSAYLINE_DATA_DIR or ASSAYLINE_DATABASE to its location."
            )

    def pass_on_token(self) -> None:
        """Set HF_TOKEN, which the hub client reads, in this process's environment."""
        if self.hf_token:
            os.environ["HF_TOKEN"] = self.hf_token.get_secret_value()

    def run_dir(self, run_id: str) -> Path:
        """Return the folder of a run's parts and logs."""
        return self.data_dir / "runs" / run_id


NOT_SETTINGS = frozenset({"DEVICE_LOCKS", "SETUP_CHECKS", "TINY_MODEL", "WHEELS"})
"""Variables with the same prefix that other parts read: an engine's process, the setup, the examples."""


def _list_given() -> set[str]:
    """Return the names, without our prefix, of the variables in the environment and in `.env` that have a value."""
    given = {**DotEnvSettingsSource(Settings).env_vars, **os.environ}
    names = {name.upper() for name, value in given.items() if value}
    return {name.removeprefix(PREFIX) for name in names if name.startswith(PREFIX)}


def list_unknown_variables() -> list[str]:
    """Return a warning for each variable, of the environment or of `.env`, that has our prefix and is not a setting."""
    known = [name.upper() for name in Settings.model_fields]
    names = _list_given() - {*known, *NOT_SETTINGS}
    nearest = {name: difflib.get_close_matches(name, known, n=1) for name in sorted(names)}
    return [
        f"{PREFIX}{name} is not a setting and is ignored: "
        + (f"did you mean {PREFIX}{close[0]}?" if close else "see .env.example for all settings.")
        for name, close in nearest.items()
    ]


def load_settings() -> Settings:
    """Load the settings. Raises SpecError naming the invalid variable."""
    try:
        return Settings()  # type: ignore[call-arg]  # every field has a default
    except ValidationError as error:
        problem = error.errors()[0]
        name = PREFIX + ".".join(str(part) for part in problem["loc"]).upper()
        raise SpecError(
            f"Invalid setting {name}: given {problem['input']!r}; {problem['msg']}. hint: see .env.example."
        ) from None
