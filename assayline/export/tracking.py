"""A run in MLflow: its settings as parameters, its metrics with intervals, and its report as an artifact.

`MLFLOW_TRACKING_URI` and `MLFLOW_EXPERIMENT_NAME` say where (default: an experiment with the name of the spec). A run
is found again by its tag, so that a second export updates it.
"""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from assayline.errors import SpecError, StoreError
from assayline.export.rows import Exported, ExportedRun, unix_s
from assayline.store.database import Connection, Row, read_rows
from assayline.words import count

RUN_TAG = "assayline.run_id"
REPORT = "report.html"
PARTS = ("model", "revision", "sampling", "engine", "load")
"""Parts of the spec that become parameters."""
COLUMNS = ("prompt_set", "machine", "assayline_version", "config_id", "model_id", "template_id", "sampling_id")
PER_BATCH = 100
STATUS = {"failed": "FAILED", "cancelled": "KILLED", "running": "RUNNING"}
"""MLflow's status of a run by our state (default: FINISHED)."""


def export_mlflow(connection: Connection, run: ExportedRun, output: Path, force: bool) -> Exported:
    """Create or update the run on the tracking server. Raises SpecError without MLflow, and StoreError."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    try:
        from mlflow.entities import Metric, Param, RunTag
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient
    except ImportError:
        raise SpecError("MLflow is not installed. hint: pip install 'assayline[mlflow]'.") from None
    row = run.row
    started, ended = (int(1000 * unix_s(at)) for at in (row["started_at"], row["finished_at"] or row["started_at"]))
    values = read_rows(connection, "select * from metric_value where run_id = ? and value is not null", row["run_id"])
    try:
        client = MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or row["name"]
        experiment = client.get_experiment_by_name(name)
        experiment_id = experiment.experiment_id if experiment else client.create_experiment(name)
        tagged = f"tags.`{RUN_TAG}` = '{row['run_id']}'"
        known = next(iter(client.search_runs([experiment_id], tagged, max_results=1)), None)
        target = known or client.create_run(experiment_id, started, {RUN_TAG: row["run_id"]}, row["run_id"])
        run_id, stored = target.info.run_id, target.data
        given = ((key, value) for key, value in _list_params(run) if key not in stored.params)
        params = [Param(key, value) for key, value in given]
        named = dict(pair for value in values for pair in _name_metrics(value))
        changed = [Metric(key, value, ended, 0) for key, value in named.items() if stored.metrics.get(key) != value]
        for start in range(0, max(len(changed), len(params)), PER_BATCH):
            batch = slice(start, start + PER_BATCH)
            client.log_batch(run_id, metrics=changed[batch], params=params[batch])
        client.log_batch(run_id, tags=[RunTag("assayline.state", row["state"])])
        report = run.run_dir / REPORT
        has_report = report.is_file() and not run.without_texts
        if has_report:
            client.log_artifact(run_id, str(report))
        client.set_terminated(run_id, STATUS.get(row["state"], "FINISHED"), ended)
    except (MlflowException, OSError) as error:
        raise StoreError(f"MLflow does not take the run: {error} hint: check MLFLOW_TRACKING_URI.") from error
    what = f"{count(len(named), 'metric')}, {'its report' if has_report else 'no report'}"
    return Exported([], [f"{'Updated' if known else 'Created'} run {run_id} of experiment {name}: {what}."])


def _name_metrics(row: Row) -> Iterator[tuple[str, float]]:
    """Yield a metric's value and bounds by MLflow's names, such as accuracy_mean/exact_match_low."""
    statistic = "" if row["statistic"] == "total" else f"_{row['statistic']}"
    detail = f"/{row['detail']}" if row["detail"] else ""
    name = re.sub(r"[^\w. /:-]", "_", f"{row['metric']}{statistic}{detail}")
    for suffix, column in (("", "value"), ("_low", "low"), ("_high", "high")):
        if row[column] is not None:
            yield name + suffix, float(row[column])


def _list_params(run: ExportedRun) -> Iterator[tuple[str, str]]:
    yield from ((name, str(run.row[name])) for name in COLUMNS if run.row[name] is not None)
    for name in PARTS:
        yield from _flatten(name, run.spec.get(name))


def _flatten(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _flatten(f"{name}.{key}", item)
    elif value not in (None, [], ""):
        yield name, value if isinstance(value, str) else json.dumps(value)
