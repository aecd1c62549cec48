"""The form of a deployment in Prefect's UI, which it draws from the schema of the flow's parameters."""

import json

import pytest

from assayline.flows.benchmark import benchmark
from assayline.flows.evaluate import evaluate
from assayline.flows.nightly import nightly

pytestmark = pytest.mark.prefect


@pytest.mark.parametrize("taken", [evaluate, nightly, benchmark])
def test_schema_of_the_form_takes_a_spec_as_a_file_an_object_or_a_path(taken):
    schema = taken.parameters.model_dump()
    assert "EvalSpec" not in schema["definitions"] and "oneOf" not in json.dumps(schema)
    file, spec, path = schema["properties"]["spec"]["anyOf"][:3]
    assert file == {"$ref": "#/definitions/SpecFile"} and spec == {"title": "spec", "type": "object"}
    assert path == {"title": "path", "type": "string"}


def test_schema_of_the_form_offers_choices():
    resumed = evaluate.parameters.properties["resume"]["anyOf"]
    assert resumed[0]["enum"] == ["auto", "never"] and resumed[1]["title"] == "run id"
    assert nightly.parameters.properties["resume"]["enum"] == ["never", "auto"]
    properties = benchmark.parameters.properties
    assert properties["profile"]["anyOf"][0]["enum"] == ["sweep", "slo"]
    assert properties["arrival"]["anyOf"][0]["enum"] == ["constant", "poisson"]
