"""Write docs/reference/exports.md: which metrics of a run its exports keep, measured on a run of the fake engine.

`python -m scripts.export_docs`; a test keeps it current.
"""

import sys
import tempfile
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from assayline import evaluate  # noqa: E402
from assayline.export.make import FORMATS, export_run  # noqa: E402
from assayline.imports import KINDS  # noqa: E402
from assayline.imports.make import import_files  # noqa: E402
from assayline.settings import Settings  # noqa: E402
from assayline.store.database import Connection  # noqa: E402
from assayline.store.thread import DatabaseThread  # noqa: E402

PAGE = ROOT / "docs" / "reference" / "exports.md"
TEXT = """# Exported metrics

<!-- Written by `python -m scripts.export_docs`: do not edit. -->

A run of the fake engine was exported to each [format](../guides/exports.md) that can be
[imported](../guides/import.md), and imported again. Its prompts have one answer each, without
errors. A metric is kept if all of its rows in `metric_value` are equal: values, intervals and
counts. No import had a value that the run lacks.

`eee` keeps repeats and errors as well. `lm-eval` has means over repeats, and no errors.

`mlflow` and the tables of `assayline db export` have every metric. `hf` has the first scorer's mean.

| kept by | metrics |
|---|---|
"""
Rows = dict[str, set[tuple[object, ...]]]
"""Rows of metric_value by metric."""


SPEC = {
    "name": "own", "engine": {"backend": "fake"}, "sampling": {"max_tokens": 4},
    "prompts": {
        "source": {
            "kind": "inline",
            "rows": [{"id": f"r{n}", "question": f"bako {n}", "answer": "ba" * n} for n in range(8)],
        },
        "columns": {"prompt": "question", "target": "answer"},
    },
    "scorers": [{"kind": "token_f1"}, {"kind": "regex", "pattern": "([a-z])"}],
}  # fmt: skip


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(data_dir=Path(folder) / "data", lock_dir=Path(folder) / "locks")
        run = evaluate({**SPEC, "model": str(ROOT / ".cache" / "tiny-model")}, settings=settings)
        PAGE.write_text(render(settings, run.run_id), encoding="utf-8")


def render(settings: Settings, run_id: str) -> str:
    """Return the page for a run of SPEC. Raises ValueError if an import has a value that the run lacks."""
    before = read_values(settings, run_id)
    keepers: dict[str, list[str]] = {metric: [] for metric in before}
    for form in [form for form in FORMATS if form in KINDS]:
        files = export_run(settings, run_id, form).files
        documents = [file for file in files if not file.name.endswith("_samples.jsonl")]
        ((copy, *_),) = [[outcome.run.run_id for outcome in import_files(settings, form, documents)]]
        for metric, values in read_values(settings, copy).items():
            if not values <= before.get(metric, set()):
                raise ValueError(f"{form}: {metric} is {values}, and was {before.get(metric)}")
            if values == before[metric]:
                keepers[metric].append(f"`{form}`")
    metrics = defaultdict(list)
    for metric, formats in keepers.items():
        metrics[", ".join(sorted(formats)) or "none"].append(f"`{metric}`")
    lines = [
        f"| {formats} | {', '.join(sorted(metrics[formats]))} |"
        for formats in sorted(metrics, key=lambda formats: (formats == "none", -formats.count("`"), formats))
    ]
    return TEXT + "\n".join(lines) + "\n"


def read_values(settings: Settings, run_id: str) -> Rows:
    """Return the rows of metric_value of a run that have a value."""

    def read(connection: Connection) -> list[tuple[object, ...]]:
        query = "select metric, statistic, detail, value, low, high, n from metric_value where run_id = ?"
        return connection.execute(f"{query} and value is not null", [run_id]).fetchall()

    found: Rows = defaultdict(set)
    for metric, *values in DatabaseThread(settings).run(read):
        found[str(metric)].add(tuple(values))
    return dict(found)


if __name__ == "__main__":
    main()
