"""work: a worker of a run that is under way, as a Prefect flow.

Deployed by `prefect.yaml` as `work/work`. A spec with `runner: deployment` starts a run of it for each worker; by
hand, `prefect deployment run work/work -p run=RUN_ID` adds one. Elsewhere than in a pool, `assayline worker RUN`
is the same without Prefect.
"""

import dataclasses
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.runtime import flow_run

from assayline.evaluation.orders import read_order, wait_for_flow
from assayline.settings import load_settings
from flows.cli.worker import FLOW_WAIT_S, find_run_dir
from flows.live.logs import speak_in_sentences
from tasks.generate import generate


def name_worker() -> str:
    """The run's name in the UI."""
    return f"worker of {Path(str(flow_run.parameters.get('run', '?'))).name}"


@flow(name="work", flow_run_name=name_worker, persist_result=False)
def work(run: str, workers_here: int = 1) -> dict[str, Any]:
    """Answers what a run has to answer, until nothing is left.

    Args:
        run: folder of a run that is under way, as this machine sees it, or the run's id.
        workers_here: how many workers share this machine's cores, where it has no GPUs.
    """
    settings = load_settings()
    if not settings.tracebacks:
        speak_in_sentences()
    settings.pass_on_token()
    order = read_order(find_run_dir(run, settings), settings, workers_here=workers_here)
    wait_for_flow(order.run_dir, FLOW_WAIT_S)
    return dataclasses.asdict(generate(order))
