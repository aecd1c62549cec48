"""The form of a deployment in Prefect's UI, which it draws from the schema of the flow's parameters."""

import json
from functools import partial

import flow_kit
import pytest
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterId

from assayline.flows.benchmark import benchmark
from assayline.flows.evaluate import evaluate
from assayline.flows.nightly import nightly
from assayline.spec.file import as_spec, parse_spec

pytestmark = pytest.mark.prefect


@pytest.mark.parametrize("taken", [evaluate, nightly, benchmark])
def test_schema_of_the_form_takes_a_spec_as_a_file_an_object_or_a_path(taken):
    schema = taken.parameters.model_dump()
    assert "EvalSpec" not in schema["definitions"] and "oneOf" not in json.dumps(schema)
    file, spec, path = schema["properties"]["spec"]["anyOf"][:3]
    assert file == {"$ref": "#/definitions/SpecFile"} and spec == {"title": "spec", "type": "object"}
    assert path == {"title": "path", "type": "string"}


def test_schema_of_the_form_offers_choices():
    assert list(evaluate.parameters.properties) == ["spec", "resume", "tags"], "what other flows set is not in the form"
    resumed = evaluate.parameters.properties["resume"]["anyOf"]
    assert resumed[0]["enum"] == ["auto", "never"] and resumed[1]["title"] == "run id"
    assert nightly.parameters.properties["resume"]["enum"] == ["never", "auto"]
    properties = benchmark.parameters.properties
    assert properties["profile"]["anyOf"][0]["enum"] == ["sweep", "slo"]
    assert properties["arrival"]["anyOf"][0]["enum"] == ["constant", "poisson"]


def leaf(text: str) -> str:
    """The innermost element with this text."""
    return f"[...document.querySelectorAll('*')].filter(e => e.textContent.trim() === '{text}').at(-1)"


@pytest.mark.skipif(flow_kit.BROWSER is None, reason="no chromium here to open the form with")
def test_form_takes_the_fields_of_a_spec_as_one_object(prefect_client, prefect_api, tmp_path):
    schema = evaluate.parameters.model_dump(exclude_unset=True)
    deployment = prefect_client.create_deployment(
        prefect_client.create_flow(evaluate), "form", parameter_openapi_schema=schema, enforce_parameter_schema=True
    )
    source = {"kind": "file", "path": "sums.jsonl"}
    field = "document.querySelector('.schema-form-property"
    fields = {"model": "org/model", "prompts": {"source": source}, "scorers": ["numeric"]}
    with flow_kit.opened_browser(tmp_path / "profile") as page:
        page.open(f"{prefect_api.removesuffix('/api')}/deployments/deployment/{deployment}/run")
        page.click(leaf("spec"))
        page.write(f"{field} textarea')", json.dumps(fields))
        page.wait_for(f"{field} .p-code-highlight')?.textContent.includes('sums.jsonl')")
        page.click(leaf("Submit"))
        page.wait_for("!location.pathname.endsWith('/run')")
        wanted = DeploymentFilter(id=DeploymentFilterId(any_=[deployment]))
        read = partial(prefect_client.read_flow_runs, deployment_filter=wanted)
        (run,) = flow_kit.wait_for(read, "the form is submitted")
    assert as_spec(evaluate.validate_parameters(run.parameters)["spec"]) == parse_spec(fields)
