"""The manifests of deploy/kubernetes: valid for the API, and a run by them with a stand-in for kubectl.

No cluster is here. What is shown is that the API takes the manifests (its published schemas, which the package
kubernetes-validate brings), that the flow starts workers by them, and that it waits for workers that it did not start.
"""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import flow_kit
import pytest
import yaml

validate = pytest.importorskip("kubernetes_validate").validate

FOLDER = flow_kit.ROOT / "deploy" / "kubernetes"
STAND_IN = Path(__file__).parent / "stand_in"
API_VERSIONS = ("1.30", "1.37")
"""The oldest that podFailurePolicy and backoffLimitPerIndex are to be had in without a switch, and the newest."""


def check(manifest: dict[str, Any]) -> None:
    for version in API_VERSIONS:
        validate(manifest, version, strict=True)


def launch(run: str, env: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [FOLDER / "launch.sh", run, "2", "4"], env=env, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.fixture
def stand_in(tmp_path: Path) -> dict[str, str]:
    path = os.pathsep.join([str(STAND_IN), str(flow_kit.ROOT / ".venv" / "bin"), os.environ["PATH"]])
    return {"PATH": path, "STAND_IN_MANIFEST": str(tmp_path / "manifest.yaml")}


@pytest.mark.prefect
def test_a_run_asks_for_its_workers_as_an_indexed_job(
    fake_spec: dict[str, Any], served_env: dict[str, str], stand_in: dict[str, str], data_dir: Path, tmp_path: Path
) -> None:
    launched = f"{FOLDER}/launch.sh $run $workers $gpus"
    env = {**served_env, **stand_in, "ASSAYLINE_LAUNCH": launched, "ASSAYLINE_LEASE_S": "5"}
    fake_spec |= {"workers": 2, "engine": {"backend": "fake", "args": {"tensor_parallel_size": 4}}}
    spec = flow_kit.write_spec(tmp_path / "spec.yaml", fake_spec)
    run = flow_kit.run_command(flow_kit.evaluate_command(spec), env, timeout_s=240)
    assert run.code == 0, run.out + run.err
    assert flow_kit.query(data_dir, "select is_sound from request_integrity") == [True]
    workers = set(flow_kit.query(data_dir, "select distinct worker from engine_events"))
    assert workers <= {"worker-2", "worker-3"} and workers, "the first two names are the flow's"
    job = yaml.safe_load((tmp_path / "manifest.yaml").read_text())
    check(job)
    assert (job["spec"]["completionMode"], job["spec"]["parallelism"], job["spec"]["completions"]) == ("Indexed", 2, 2)
    [container] = job["spec"]["template"]["spec"]["containers"]
    [run_dir] = data_dir.glob("runs/*")
    assert container["args"] == ["worker", str(run_dir)] and container["resources"]["limits"] == {"nvidia.com/gpu": 4}
    flow_kit.assert_nothing_runs(data_dir, 20)


def test_a_folder_that_yaml_would_read_otherwise_is_refused(stand_in: dict[str, str], tmp_path: Path) -> None:
    ended = launch("/data/runs/a: b", stand_in)
    assert ended.returncode == 1 and "cannot write the folder /data/runs/a: b into YAML" in ended.stderr
    assert not (tmp_path / "manifest.yaml").exists()


def test_what_is_applied_is_valid_and_fits_together() -> None:
    parts = {part["kind"]: part for part in yaml.safe_load_all((FOLDER / "run.yaml").read_text())}
    for part in parts.values():
        check(part)
    pod = parts["Job"]["spec"]["template"]["spec"]
    account = parts["ServiceAccount"]["metadata"]["name"]
    assert pod["serviceAccountName"] == account == parts["RoleBinding"]["subjects"][0]["name"]
    assert parts["RoleBinding"]["roleRef"]["name"] == parts["Role"]["metadata"]["name"]
    claims = [
        volume["persistentVolumeClaim"]["claimName"] for volume in pod["volumes"] if "persistentVolumeClaim" in volume
    ]
    assert claims == [parts["PersistentVolumeClaim"]["metadata"]["name"]]
    environment = {one["name"]: one["value"] for one in pod["containers"][0]["env"]}
    script = environment["ASSAYLINE_LAUNCH"].split()[0].removeprefix("/opt/assayline/")
    assert os.access(flow_kit.ROOT / script, os.X_OK)
    workers = yaml.safe_load((FOLDER / "workers.yaml").read_text())["spec"]["template"]["spec"]
    assert workers["volumes"][0] in pod["volumes"], "both see one data folder"
    mounts = [
        mount for spec in (pod, workers) for mount in spec["containers"][0]["volumeMounts"] if mount["name"] == "data"
    ]
    assert mounts[0] == mounts[1], "under one path"


def test_a_schema_that_is_not_met_is_seen() -> None:
    """So that a package that checks nothing is not taken for a proof."""
    text = (FOLDER / "workers.yaml").read_text().replace("__RUN__", "/data/runs/a").replace("__GPUS__", "1")
    with pytest.raises(Exception, match="two"):
        check(yaml.safe_load(text.replace("__WORKERS__", "two")))
    with pytest.raises(Exception, match="paralelism"):
        check(yaml.safe_load(text.replace("__WORKERS__", "2").replace("parallelism", "paralelism")))


def test_the_job_template_of_a_prefect_pool_becomes_a_valid_job() -> None:
    """As Prefect fills it: a value that is a placeholder alone is replaced by the variable's, whatever its type."""
    template = json.loads((FOLDER / "work-pool.json").read_text())
    variables = template["variables"]["properties"]
    values = {name: field.get("default") for name, field in variables.items()}
    values["command"] = ["prefect", "flow-run", "execute"]

    def fill(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: fill(one) for name, one in value.items()}
        if isinstance(value, list):
            return [fill(one) for one in value]
        if isinstance(value, str) and (alone := re.fullmatch(r"\{\{ (\w+) \}\}", value)):
            return values[alone[1]]
        return (
            re.sub(r"\{\{ (\w+) \}\}", lambda match: str(values[match[1]]), value) if isinstance(value, str) else value
        )

    configuration = fill(template["job_configuration"])
    job = configuration["job_manifest"]
    pod = job["spec"]["template"]["spec"]
    assert (pod.pop("parallelism"), pod.pop("completions")) == (1, 1), "prefect-kubernetes insists; the API drops them"
    [container] = pod["containers"]
    container["env"] = [{"name": name, "value": value} for name, value in container["env"].items()]
    check(job)
    assert container["args"] == values["command"] and container["resources"]["limits"] == {"nvidia.com/gpu": 1}
