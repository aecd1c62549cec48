"""A result for a model card of the Hugging Face Hub: `.eval_results/TASK.yaml`, which names dataset and revision.

The value is the mean of the run's first scorer, in percent.
"""

import re
from pathlib import Path

import yaml

from assayline.errors import SpecError
from assayline.export.rows import LOCAL, Exported, ExportedRun, name_model, new_files
from assayline.spec.named import find_by_source, list_benchmarks
from assayline.store.database import Connection, read_rows


def export_hub(connection: Connection, run: ExportedRun, output: Path, force: bool) -> Exported:
    """Write the file to `.eval_results/` in `output`. Raises SpecError for a run that the hub has no place for."""
    source = run.read_spec("prompts.source") or {}
    benchmark, revision = find_by_source(source), str(source.get("revision"))
    query = "select prompt_rows, prompts_digest from runs join run_conditions using (run_id) where run_id = ?"
    (prompts,) = read_rows(connection, query, run.row["run_id"])
    query = "select * from accuracy where run_id = ? and samples > 0 order by ordinal limit 1"
    scores = read_rows(connection, query, run.row["run_id"])
    task = benchmark and benchmark.hub_task
    if benchmark is None or task is None:
        known = ", ".join(f"@{one.name}" for one in list_benchmarks() if one.hub_task)
        reason, hint = "its prompts are not a benchmark of the hub with a known task", f"run {known}"
    elif not re.fullmatch("[0-9a-f]{40}", revision):
        reason, hint = "its dataset has no revision", f"set prompts.source.revision to a commit of {source['dataset']}"
    elif difference := benchmark.describe_difference(prompts["prompt_rows"], prompts["prompts_digest"]):
        reason, hint = difference[0].lower() + difference.rstrip(".")[1:], "run the benchmark as it is"
    elif run.describe_gap() is not None:
        reason, hint = "it is not complete", f"resume it with `assayline evaluate --resume {run.row['run_id']}`"
    elif not scores:
        reason, hint = "it has no scores", f"add them with `assayline score {run.row['run_id']} --scorer …`"
    elif name_model(run.row["model"])[0] == LOCAL:
        reason, hint = f"{run.row['model']} is not a model of the hub", "evaluate the model by its hub id"
    else:
        reason = hint = ""
    if reason:
        raise SpecError(f"Run {run.row['run_id']} has no result for a model card: {reason}. hint: {hint}.")
    score = scores[0]
    low, high = (round(100 * score[bound], 2) for bound in ("mean_low", "mean_high"))
    entry = {
        "dataset": {"id": source["dataset"], "task_id": task, "revision": revision},
        "value": round(100 * score["mean"], 2),
        "date": run.row["started_at"].strftime("%Y-%m-%d"),
        "notes": f"assayline {run.row['assayline_version']}, scorer {score['scorer']}, 95% interval {low} to {high}",
    }
    name = f"{task}.yaml"
    with new_files(output / ".eval_results", [name], force) as folder:
        (folder / name).write_text(yaml.safe_dump([entry], sort_keys=False), encoding="utf-8")
    return Exported([output / ".eval_results" / name], ["Add it to the model's repository at this path."])
