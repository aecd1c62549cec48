"""judge: score the answers of a completed run by other models, each in a run of its own.

    assayline score RUN_ID --judge judge.yaml [--model MODEL]

`evaluate` does the same for the judges among a spec's scorers, once its own engine has closed. A judge's run is
resumed like any other, and a completed one is not repeated, so each answer is judged once.
"""

from typing import Any

from prefect import flow

from assayline.api import operations
from assayline.errors import JudgeNotTrustedError
from assayline.flows.evaluate import open_front
from assayline.flows.live.reporting import end
from assayline.spec.judges import JudgeScorer


@flow(name="judge", flow_run_name="judges of {run_id}", persist_result=False)
def judge(run_id: str, scorers: list[JudgeScorer]) -> dict[str, Any]:
    """Score a run's answers by judges, write its report, and return the number of scores by judge.

    Args:
        run_id: the judged run, which is complete.
        scorers: the judges, which become scorers of the run.
    """
    try:
        return operations.judge(run_id, scorers, front=open_front())
    except JudgeNotTrustedError as error:
        return end(str(error), error)
