"""States of flow runs: their headlines, and the automations that send them."""

import importlib
import inspect
import pkgutil
import re

import yaml
from prefect import Flow

from assayline import flows
from assayline.flows.cli.notify import AUTOMATIONS
from assayline.flows.live import reporting
from assayline.report.run.page import say_run


def figure(source: str, value: float | None, n: int | None = None) -> dict[str, object]:
    return {"metric": "accuracy (exact_match)", "source": source, "value": value, "n": n}


def test_words_of_a_run_count_failures_and_omit_values_that_were_not_measured():
    accuracy, tokens = figure("accuracy mean", 0.981), figure("output_tokens_per_s mean", 2786.4)
    told = "98.1% correct, 2,786\u00a0tokens/s, 2 of 155 requests failed"
    assert say_run([accuracy, tokens, figure("error_requests total", 2, 155)]) == told
    assert say_run([figure("accuracy mean", None), tokens]) == "2,786\u00a0tokens/s"
    assert say_run([figure("accuracy mean", None)]) == ""
    verdict = {**accuracy, "metric": "mean verdict (quality)"}
    assert say_run([verdict, figure("engine_failures total", 2), figure("reductions total", 1)]) == (
        "mean verdict 98.1%, 2 engine failures, 1 memory reduction"
    )


def test_automations_name_every_state_and_every_flow_of_the_package():
    named = re.findall(r"\bname=([A-Z_]+)\b", inspect.getsource(reporting))  # states are made there alone
    own = {getattr(reporting, name) for name in named} | {name for _, name in reporting.STATES.values()}
    assert {reporting.WORSE, reporting.SUSPECT, reporting.NOT_TRUSTED, reporting.INCONCLUSIVE} <= own
    ends = {f"prefect.flow-run.{name}" for name in own | {"Completed", "Failed", "Crashed", "Cancelled"}}
    good = {f"prefect.flow-run.{name}" for name in ("Completed", "Cancelled", reporting.INCONCLUSIVE)}
    modules = [importlib.import_module(f"assayline.flows.{each.name}") for each in pkgutil.iter_modules(flows.__path__)]
    names = {each.name for module in modules for each in vars(module).values() if isinstance(each, Flow)}
    failed, late, died = [each["trigger"] for each in yaml.safe_load(AUTOMATIONS.read_text())["automations"]]
    assert set(failed["expect"]) == ends - good
    assert set(late["expect"]) == ends
    assert set(died["expect"]) == ends | {"prefect.flow-run.heartbeat"}
    assert set(died["match_related"]["prefect.resource.name"]) == names
    assert failed["match_related"] == late["match_related"]
    assert late["match_related"] == [
        {"prefect.resource.role": "flow", "prefect.resource.name": ["nightly", "suite"]},
        {"prefect.resource.role": "deployment", "prefect.resource.name": "DEPLOYMENT"},
    ], "those with a schedule"
