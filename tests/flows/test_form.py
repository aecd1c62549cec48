"""The form of a deployment in Prefect's UI, in a real browser: what it offers, and that a spec comes of it."""

import json
from functools import partial
from typing import Any

import flow_kit
import pytest
from flow_kit import wait_for
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterId

from assayline.flows.benchmark import benchmark
from assayline.flows.evaluate import evaluate
from assayline.flows.nightly import nightly
from assayline.spec.evaluation import EvalSpec

pytestmark = pytest.mark.prefect


def leaf(text: str, scope: str = "document") -> str:
    """The innermost element with this text."""
    return f"[...{scope}.querySelectorAll('*')].filter(e => e.textContent.trim() === '{text}').at(-1)"


def field(label: str) -> str:
    """The innermost field with this label."""
    return f"{leaf(label)}?.closest('.schema-form-property')"


def list_kinds(field: dict[str, Any], schema: dict[str, Any]) -> dict[str, list[str]]:
    """Labels of the fields of each kind, by the kind's own."""
    parts = [schema["definitions"][kind["$ref"].split("/")[-1]] for kind in field["anyOf"] if "$ref" in kind]
    return {part["title"]: [one["title"] for one in part["properties"].values() if "title" in one] for part in parts}


@pytest.mark.parametrize("taken", [evaluate, nightly, benchmark])
def test_schema_of_the_form_has_nothing_that_it_cannot_draw(taken):
    schema = taken.parameters.model_dump()
    assert "oneOf" not in json.dumps(schema) and "discriminator" not in json.dumps(schema)
    spec = schema["definitions"]["EvalSpec"]
    assert list(spec["properties"])[:2] == ["model", "prompts"], "what must be given comes first"
    for part in ("chat", "engine", "gate"):
        assert spec["properties"][part]["default"] is None and {"type": "null"} in spec["properties"][part]["anyOf"]


def test_schema_of_the_form_offers_choices():
    resumed = evaluate.parameters.properties["resume"]["anyOf"]
    assert resumed[0]["enum"] == ["auto", "never"] and resumed[1]["title"] == "run id"
    assert nightly.parameters.properties["resume"]["enum"] == ["never", "auto"]
    properties = benchmark.parameters.properties
    assert properties["profile"]["anyOf"][0]["enum"] == ["sweep", "slo"]
    assert properties["arrival"]["anyOf"][0]["enum"] == ["constant", "poisson"]


@pytest.mark.skipif(flow_kit.BROWSER is None, reason="no chromium here to open the form with")
def test_form_offers_kinds_of_sources_and_scorers_and_makes_a_spec(prefect_client, prefect_api, tmp_path):
    schema = evaluate.parameters.model_dump(exclude_unset=True)
    prompts = schema["definitions"]["PromptSpec"]["properties"]
    deployment = prefect_client.create_deployment(
        prefect_client.create_flow(evaluate), "form", parameter_openapi_schema=schema, enforce_parameter_schema=True
    )
    with flow_kit.opened_browser(tmp_path / "profile") as page:
        page.open(f"{prefect_api.removesuffix('/api')}/deployments/deployment/{deployment}/run")
        page.click(leaf("EvalSpec"))
        for kind, titles in list_kinds(prompts["source"], schema).items():
            page.click(leaf(kind, field("Source")))
            page.wait_for(f"{field('Kind')}?.querySelector('textarea')?.value === '{kind}'")
            for title in titles:
                page.wait_for(f"!!({leaf(title)} || {leaf(f'{title} (Optional)')})")
        page.click(leaf("file", field("Source")))
        page.write(f"{field('Path')}.querySelector('textarea')", "sums.jsonl")
        page.write(f"{field('Model')}.querySelector('textarea')", "org/model")
        assert page.ask(f"!({leaf('Window (Optional)')})"), "a part with defaults is one line"
        page.click(leaf("numeric", field("Scorers (Optional)")))
        page.wait_for(f"!!{leaf('Relative Tolerance (Optional)')}")
        page.click(leaf("Submit"))

        wanted = DeploymentFilter(id=DeploymentFilterId(any_=[deployment]))
        read = partial(prefect_client.read_flow_runs, deployment_filter=wanted)
        (run,) = wait_for(read, "the form is submitted")
    given = evaluate.validate_parameters(run.parameters)
    prompts = {"source": {"kind": "file", "path": "sums.jsonl"}}
    spec = EvalSpec.model_validate({"model": "org/model", "prompts": prompts, "scorers": [{"kind": "numeric"}]})
    assert (given["spec"], given["resume"]) == (spec, "auto")
