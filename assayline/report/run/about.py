"""Sections about what was run: the model, the prompts, the engine and the machine; and all of the run's metrics."""

import json
from typing import Any

from assayline.report.document import Paragraph, Quote, Section
from assayline.report.run.rows import ReportRows
from assayline.report.table import Column, tabulate
from assayline.store.database import Row
from assayline.words import show_known, show_value

SPEC_CHARACTERS = 6_000
FACTS = (Column("what", 0), Column("value", 1))
METRICS = (
    Column("metric", "metric"),
    Column("value", "value", show_value),
    Column("unit", "unit"),
    Column("95 % interval", ("low", "high"), show_value),
    Column("n", "n", show_known),
    Column("model.column", "source"),
)


def describe_run(rows: ReportRows) -> Section:
    """Identities, versions and settings: what must be equal for two runs to be comparable."""
    run, spec = rows.run, json.loads(rows.run["spec_json"])
    section = Section("about", "What was run")
    section.blocks.append(tabulate("The run", FACTS, _list_run(run, spec)))
    opened = _read_facts(rows.first_opened)
    if opened:
        section.blocks.append(tabulate("The engine and its machine, as the first one opened", FACTS, opened))
    else:
        section.blocks.append(
            Paragraph("No engine opened, so its resolved arguments, versions and device are not known.")
        )
    text = json.dumps(spec, indent=2, ensure_ascii=False)
    section.blocks.append(Quote("The whole spec", text[:SPEC_CHARACTERS], len(text)))
    return section


def list_metrics(rows: ReportRows) -> Section:
    """The table at the end of a run, with the SQL column of each number."""
    section = Section("metrics", "All metrics")
    section.blocks.append(
        Paragraph(
            "Every number is a column of a SQL model, named at the end of its line; docs/metrics.md explains each."
        )
    )
    section.blocks.append(tabulate("Metrics of the run", METRICS, rows.metrics, is_folded=True))
    return section


def _list_run(run: Row, spec: dict[str, Any]) -> list[tuple[str, str]]:
    engine = spec.get("engine", {})
    pairs = {
        "run": run["run_id"],
        "name": run["name"],
        "model": run["model"],
        "model, digest of its content": run["model_id"],
        "tokenizer, digest": run["tokenizer_id"],
        "chat template, digest": run["template_id"],
        "prompt set": run["prompt_set"],
        "prompts": f"{show_value(run['prompt_rows'])}, {show_value(run['duplicate_prompts'])} of them repeated",
        "sampling": _compact(spec.get("sampling")),
        "engine arguments given": _compact(engine.get("args")),
        "engine": f"{engine.get('backend')}, {engine.get('mode')}, {spec.get('workers')} side by side",
        "spec, digest": run["spec_hash"],
        "configuration, digest": run["config_id"],
        "assayline": run["assayline_version"],
        "machine": run["host_name"],
        "started, UTC": _show_time(run["started_at"]),
        "ended, UTC": _show_time(run["finished_at"]),
        "attempts": run["attempt"],
    }
    return [(name, show_value(value)) for name, value in pairs.items()]


def _read_facts(opened: Row | None) -> list[tuple[str, str]]:
    if opened is None:
        return []
    facts = json.loads(opened["details_json"])
    return [(name.replace("_", " "), _compact(value)) for name, value in sorted(facts.items())]


def _compact(value: object) -> str:
    if value is None or value == {}:
        return "–"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _show_time(value: Any) -> str | None:
    return None if value is None else f"{value:%Y-%m-%d %H:%M:%S}"
