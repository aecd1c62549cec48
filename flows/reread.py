"""reread: let an engine read the stored answers of another one, and compare their probabilities.

    assayline reread REFERENCE SPEC [--prompts N] [--max-kl NATS]

Each reading is a run of the flow `evaluate`. Probabilities shown to be others end the flow run in the state Worse.
"""

from prefect import flow

from assayline.api import operations
from assayline.comparison.gate import GateReport
from assayline.flows.evaluate import SpecParameter, open_front
from assayline.flows.live.reporting import end_judged
from assayline.run import reread as rereads
from assayline.store.manifest import AUTO


@flow(name="reread", flow_run_name="reread of {reference}", persist_result=False)
def reread(
    reference: str,
    spec: SpecParameter,
    prompts: int = rereads.PROMPTS,
    max_kl: float | None = None,
    resume: str = AUTO,
) -> GateReport:
    """Let the engine of a spec read the stored answers of a run, and judge whether it gives other probabilities.

    Args:
        reference: the run, a unique prefix of its id, or a pinned name.
        spec: a spec, the path of a YAML file, or {file, overrides}; its prompts and scorers do not count.
        prompts: answers to read, one a prompt.
        max_kl: limit in nats per token (default: three times what the reference's engine differs from itself).
        resume: `never` repeats the readings by the reference's engine, too.
    """
    report = operations.reread(reference, spec, prompts=prompts, max_kl=max_kl, resume=resume, front=open_front())
    return end_judged(report.sentence, report, report)
