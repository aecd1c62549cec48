"""suite: run several evaluations with one or more models, and decide by all of them: GO, NO-GO or INCONCLUSIVE.

    assayline suite release.yaml [--fresh | --rejudge] [--dry-run]

Each run is a separate run of the flow `evaluate`, judged against its baseline like a gate. Runs are sequential; runs
that need the same engine share it. An interrupted suite goes on where it stopped. `prefect.yaml` deploys it as
`suite/suite`.
"""

from typing import Annotated, Literal

from prefect import flow
from pydantic import Field, WithJsonSchema

from assayline.api import operations
from assayline.benchmark.decision import NoGoError
from assayline.benchmark.suite import as_suite
from assayline.flows.evaluate import name_by, open_front
from assayline.flows.live.reporting import end
from assayline.run.campaign import SuiteResult
from assayline.spec.suite import SuiteSpec

SuiteParameter = Annotated[str, Field(title="path")] | Annotated[SuiteSpec, WithJsonSchema({"type": "object"})]


name_suite = name_by(lambda given: f"suite {as_suite(given['suite']).name}", "suite")


@flow(name="suite", flow_run_name=name_suite, persist_result=False)
def suite(
    suite: SuiteParameter, resume: Literal["auto", "never", "rejudge"] = "auto", *, is_nightly: bool = False
) -> SuiteResult:
    """Run the evaluations of a suite and decide. NO-GO fails.

    Args:
        suite: a suite, or the path of a YAML file.
        resume: `auto` goes on with the newest suite of the same specs that was interrupted; `never` starts a new one;
            `rejudge` judges the newest complete one again, by today's baselines and limits.
        is_nightly: a schedule starts it every night, so that chance has many opportunities: ask for more evidence.
    """
    try:
        result = operations.suite(suite, resume, is_nightly=is_nightly, front=open_front())
    except NoGoError as error:
        return end(str(error), error, error.verdict)
    return end(result.headline, result, "pass" if result.decision == "GO" else "inconclusive")
