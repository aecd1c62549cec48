"""evaluate: run a model on a prompt set. Prompts → rendered requests → engines → completions and timings → DuckDB →
metrics.

    assayline evaluate examples/arithmetic.yaml [--prompts.limit 10] [--dry-run] [--fresh] [--resume RUN_ID]

Evaluating the same spec again resumes a run that was interrupted or killed. `prefect.yaml` deploys the same flow.
Prompts are prepared while the engines load. Only this process writes the run: answers go into part files, and part
files into the database.
"""

import contextlib
import dataclasses
import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from prefect import flow
from prefect.runtime import deployment, flow_run
from pydantic import Field, WithJsonSchema

from assayline.engines.pool import EnginePool
from assayline.errors import AssaylineError, JudgeNotTrustedError, SpecError
from assayline.flows.live.logs import load_flow_settings
from assayline.flows.live.reporting import end
from assayline.flows.live.watch import CancelledInPrefect, FlowFront
from assayline.run import driver
from assayline.run.evaluation import RunResult
from assayline.settings import Settings
from assayline.spec.evaluation import EvalSpec
from assayline.spec.file import SpecFile, as_spec, find_lost_template
from assayline.store.manifest import AUTO, NEVER, Manifest, Purpose, list_manifests

AnySpec = Annotated[EvalSpec, WithJsonSchema({"type": "object", "title": "spec"})]
SpecParameter = SpecFile | AnySpec | Annotated[str, Field(title="path")]
"""Types that the flows accept as a spec. A form in Prefect's UI takes all fields of a spec as one JSON object."""
Resume = Annotated[Literal["auto", "never"], Field(title="choice")] | Annotated[str, Field(title="run id")]


def name_by(describe: Callable[[dict[str, Any]], str], otherwise: str) -> Callable[[], str]:
    """Name flow runs in the UI by their parameters; `otherwise` if these are invalid, which the flow reports."""

    def name() -> str:
        with contextlib.suppress(Exception):
            return describe(flow_run.parameters)
        return otherwise

    return name


def describe_spec(spec: EvalSpec) -> str:
    """Return the name of a spec and of its model."""
    return f"{spec.name} · {spec.model_name.rstrip('/').rsplit('/', 1)[-1]}"


name_run = name_by(lambda given: describe_spec(as_spec(given["spec"])), "evaluate")


def open_front() -> FlowFront:
    """Return the front end of the flow that runs."""
    return FlowFront(load_flow_settings(), complete)


def check_deployed_spec(spec: SpecParameter) -> None:
    """Raise SpecError for a spec in prefect.yaml whose template `prefect deploy` has replaced."""
    if not isinstance(spec, EvalSpec):
        return
    template = find_lost_template(spec.model_dump(mode="json"), Path("prefect.yaml"))
    if template and deployment.id is not None:  # last, as this calls the API
        raise SpecError(
            f"The template {template!r} in prefect.yaml did not reach this run: Prefect replaces {{{{ }}}} there. "
            "hint: move the spec to its own file and set `spec: path.yaml`, or "
            "`spec: {file: path.yaml, overrides: {prompts.limit: 100}}`."
        )


def find_retried(name: str, settings: Settings) -> Manifest | None:
    """Return the newest run of this name that this flow run began before Prefect retried it; None without a retry."""
    asked = (name, str(flow_run.id), False)
    runs = list_manifests(settings.data_dir / "runs") if flow_run.run_count > 1 else []
    return next((run for run in runs if (run.name, run.flow_run_id, run.is_final) == asked), None)


def is_done(run: Manifest) -> bool:
    """Return True if nothing of the run is left to do."""
    return run.state == "completed" and not run.lacks_report


@flow(name="evaluate", flow_run_name=name_run, persist_result=False)
def evaluate(spec: SpecParameter, resume: Resume = AUTO, tags: list[str] = []) -> dict[str, Any]:  # noqa: B006
    """Evaluate a model on a prompt set and return the run's id and metrics.

    Args:
        spec: a spec, the path of a YAML file, or {file, overrides} to override fields of one.
        resume: `auto` resumes the newest unfinished run of this spec, if any; `never` starts a new run, unless
            Prefect retries the flow run; a run id resumes that run.
        tags: tags of the run.
    """
    return _evaluate(spec, Purpose(resume=resume, tags=(*tags,)), [])


def _evaluate(
    spec: SpecParameter, purpose: Purpose, done: list[RunResult], engines: EnginePool | None = None
) -> dict[str, Any]:
    """Evaluate, and add the result to `done`, which has it even if Prefect does not return it."""
    front = open_front()
    check_deployed_spec(spec)
    spec = as_spec(spec)
    if purpose.resume == NEVER and (begun := find_retried(spec.name, front.settings)) and not is_done(begun):
        purpose = dataclasses.replace(purpose, resume=begun.run_id)
    try:
        result = driver.evaluate(spec, front, purpose, engines)
    except JudgeNotTrustedError as error:
        return end(str(error), error)
    except CancelledInPrefect as error:
        error.end_flow_runs()
        raise
    done.append(result)
    return end(result.message, dataclasses.asdict(result))


def complete_asked(spec: EvalSpec, resume: str, tags: Sequence[str]) -> RunResult:
    """Evaluate a spec in a flow run, for a command."""
    return complete(spec, Purpose(resume=resume, tags=(*tags,)))


def complete(
    spec: EvalSpec, purpose: Purpose, label: str | None = None, engines: EnginePool | None = None
) -> RunResult:
    """Evaluate a spec in a flow run of its own, with this name.

    If Prefect fails once the run is complete, that is a warning.
    """
    done: list[RunResult] = []

    @flow(name="evaluate", flow_run_name=label or name_run, persist_result=False)
    @functools.wraps(evaluate.fn)
    def evaluate_in(spec: EvalSpec, resume: str, tags: list[str]) -> dict[str, Any]:  # parameters are stored, in forms
        return _evaluate(spec, dataclasses.replace(purpose, resume=resume, tags=(*tags,)), done, engines)

    try:
        evaluate_in(spec, purpose.resume, [*purpose.tags])
    except AssaylineError:
        raise
    except Exception as error:
        if not done:
            raise
        print(
            f"warning: The run is complete and stored, but Prefect could not be updated: {type(error).__name__}: "
            f"{error}. Its UI shows the run as unfinished, without metrics.",
            file=sys.stderr,
        )
    return done[0]
