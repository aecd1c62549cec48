"""README, "On a schedule", command by command: server, pool, deploy, worker, run."""

import re
from pathlib import Path
from typing import Any

import flow_kit
import pytest
from prefect.client.schemas.filters import (
    LogFilter,
    LogFilterFlowRunId,
)
from prefect.client.schemas.objects import StateType
from prefect.states import Cancelling

pytestmark = pytest.mark.prefect


@pytest.mark.usefixtures("deployments")
def test_deployments_are_as_written(prefect_client: Any) -> None:
    nightly = prefect_client.read_deployment_by_name("nightly/nightly")
    on_demand = prefect_client.read_deployment_by_name("evaluate/evaluate")
    benchmark = prefect_client.read_deployment_by_name("benchmark/benchmark")
    gate = prefect_client.read_deployment_by_name("gate/gate")
    assert (nightly.entrypoint, on_demand.entrypoint) == ("flows.nightly.nightly", "flows.evaluate.evaluate")
    assert (benchmark.entrypoint, gate.entrypoint) == ("flows.benchmark.benchmark", "flows.gate.gate")
    assert benchmark.parameters == {"spec": "examples/arithmetic.yaml", "sweep": {}}
    assert set(gate.parameter_openapi_schema["properties"]) == {"run_id", "baseline", "limits"}
    for deployment in (nightly, on_demand):
        assert deployment.work_pool_name == "evaluations"
        assert deployment.job_variables["env"] == {"ASSAYLINE_DEVICE_WAIT_S": "21600"}
        assert deployment.global_concurrency_limit.limit == 1
        assert deployment.concurrency_options.collision_strategy.value == "ENQUEUE"
        assert deployment.parameters["spec"] == "examples/arithmetic.yaml"
        assert {"spec", "resume"} <= set(deployment.parameter_openapi_schema["properties"])
    assert nightly.parameters["resume"] == "never", "each night is a measurement of its own"
    assert set(on_demand.parameters) == {"spec"}
    assert set(nightly.tags) == {"assayline", "nightly"}
    assert on_demand.tags == ["assayline"]
    assert on_demand.schedules == []
    (entry,) = nightly.schedules
    assert (entry.schedule.cron, entry.schedule.timezone, entry.active) == ("30 2 * * *", "Europe/Berlin", True)


@pytest.mark.vllm
def test_cancelled_run_stops_soon_and_keeps_what_had_finished(
    worker: Path, prefect_client: Any, deployed_data: Path, tiny_model: Path
) -> None:
    """Prefect's worker sends SIGTERM. Until then a real engine answered, whose lines are where they are looked for."""
    deployment = prefect_client.read_deployment_by_name("evaluate/evaluate")
    before = flow_kit.count_in_parts(deployed_data)
    flow_run = prefect_client.create_flow_run_from_deployment(
        deployment.id, parameters={"spec": flow_kit.endless_spec(tiny_model)}
    )
    flow_kit.wait_for(lambda: flow_kit.count_in_parts(deployed_data) > before, 150, "the first answers")
    assert len(flow_kit.hosts_of(deployed_data)) == 1

    prefect_client.set_flow_run_state(flow_run.id, Cancelling())
    flow_kit.wait_for(lambda: not flow_kit.hosts_of(deployed_data), 25, "the engine host is gone")
    flow_kit.wait_for(
        lambda: prefect_client.read_flow_run(flow_run.id).state_type == StateType.CANCELLED,
        25,
        "the run's state is Cancelled",
    )
    flow_kit.wait_for(
        lambda: flow_kit.query(deployed_data, "select state from runs where name = 'endless'") == ["cancelled"],
        10,
        "the run is cancelled in the database",
    )
    (run_id,) = flow_kit.query(deployed_data, "select run_id from runs where name = 'endless'")
    message = flow_kit.query(deployed_data, "select message from runs where run_id = ?", run_id)
    assert message == ["It was stopped before its end, by SIGTERM, as of a cancellation in Prefect."]
    (stored,) = flow_kit.query(deployed_data, "select count(*) from completions where run_id = ?", run_id)
    assert stored == flow_kit.count_in_parts(deployed_data) - before > 0

    logs = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[flow_run.id]))
    flow_kit.wait_for(
        lambda: any(
            re.match(r"vLLM: .*model", log.message) for log in prefect_client.read_logs(log_filter=logs, limit=200)
        ),
        20,
        "the engine's lines are in the run's log",
    )
    shown_by_worker = worker.read_text()
    assert "nanobind" not in shown_by_worker
    assert "- vLLM: " not in shown_by_worker
