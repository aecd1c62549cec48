"""evaluate: run a spec from Python, without Prefect. The run, its folder and its database are those of the command."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from assayline.errors import SpecError
from assayline.evaluation.resume import AUTO
from assayline.evaluation.run import RunResult
from assayline.run import driver
from assayline.settings import Settings, load_settings
from assayline.spec.evaluation import EvalSpec
from assayline.spec.file import as_spec


def evaluate(
    spec: EvalSpec | Mapping[str, Any] | str | Path, *, resume: str = AUTO, settings: Settings | None = None
) -> RunResult:
    """Evaluate a model on a prompt set, judge the answers, write the report, and return the run's id and metrics.

    Args:
        spec: a spec, its fields, or the path of a YAML file.
        resume: `auto` resumes an unfinished run of the same spec, `never` starts a new run, a run id resumes that run.
        settings: settings of the machine (default: ASSAYLINE_* environment variables).

    Repeat the call to resume after an interruption. Raises the errors that have exit codes: SpecError, ModelError,
    PromptError, EngineError, StoreError, RunFailedError or JudgeNotTrustedError.
    """
    spec = as_spec(spec)
    if spec.runner != "local":
        raise SpecError(f"runner: {spec.runner} needs `assayline evaluate`. hint: set runner: local")
    return driver.evaluate(spec, driver.FrontEnd(settings or load_settings()), resume)
