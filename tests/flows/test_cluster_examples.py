"""The examples for Kubernetes and SkyPilot, as far as they can be run or validated without either of these."""

import os
import subprocess
import sys
from typing import Any

import flow_kit
import pytest
import yaml

from assayline.flows.cli.night import PARSER as night_parser

pytestmark = [pytest.mark.prefect, pytest.mark.ray]

EXAMPLES = flow_kit.ROOT / "examples"
RAYJOB = flow_kit.ROOT / "deploy" / "kubernetes" / "rayjob.yaml"


def read_rayjob() -> dict[str, Any]:
    *claims, job = yaml.safe_load_all(RAYJOB.read_text())
    assert {claim["kind"] for claim in claims} == {"PersistentVolumeClaim"}
    found: dict[str, Any] = job
    return found


def test_rayjob_has_the_fields_of_kuberay():
    """By the Go types of KubeRay's api/ray/v1 (rayjob_types.go, raycluster_types.go), which are its schema."""
    job = read_rayjob()
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    assert set(job["spec"]) <= {
        "activeDeadlineSeconds", "backoffLimit", "clusterSelector", "entrypoint", "entrypointNumCpus",
        "entrypointNumGpus", "entrypointResources", "jobId", "metadata", "rayClusterSpec", "runtimeEnvYAML",
        "shutdownAfterJobFinishes", "submissionMode", "submitterConfig", "submitterPodTemplate", "suspend",
        "ttlSecondsAfterFinished", "deletionStrategy",
    }  # fmt: skip
    cluster = job["spec"]["rayClusterSpec"]
    assert set(cluster) <= {"rayVersion", "headGroupSpec", "workerGroupSpecs", "enableInTreeAutoscaling", "suspend"}
    assert set(cluster["headGroupSpec"]) <= {"rayStartParams", "template", "serviceType", "enableIngress"}
    for group in cluster["workerGroupSpecs"]:
        assert set(group) <= {
            "groupName", "replicas", "minReplicas", "maxReplicas", "numOfHosts", "rayStartParams", "template",
        }  # fmt: skip
    params = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    assert all(isinstance(value, str) for group in params for value in group["rayStartParams"].values())


def test_kubernetes_files_are_valid_and_need_no_more_than_restricted_rights():
    """By the schemas of Kubernetes, and the fields that its Pod Security Standard asks for."""
    validate = pytest.importorskip("kubernetes_validate")
    job, nightly = read_rayjob()["spec"], list(yaml.safe_load_all(RAYJOB.with_name("nightly.yaml").read_text()))
    for resource in [*list(yaml.safe_load_all(RAYJOB.read_text()))[:-1], *nightly]:
        validate.validate(resource, "1.30", strict=True)
    cluster = job["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    pods = [job["submitterPodTemplate"]["spec"], *(group["template"]["spec"] for group in groups)]
    for pod in pods:
        named = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": pod}
        validate.validate(named, "1.30", strict=True)
    cron, reader = nightly
    for pod in [*pods, cron["spec"]["jobTemplate"]["spec"]["template"]["spec"], reader["spec"]]:
        rights = pod["securityContext"]
        assert rights["runAsNonRoot"] and rights["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            own = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
            assert container["securityContext"] == own
    (night,) = cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    name, _, *arguments = night["args"]
    assert night_parser.parse_known_args(arguments)[1] == [] and name == "night"


RAY = """#!{python}
import os, shlex, subprocess, sys
entrypoint = shlex.join(sys.argv[sys.argv.index("--") + 1 :])
sys.exit(subprocess.call(entrypoint, shell=True, env=os.environ | {{"RAY_ADDRESS": "10.0.0.1:6379"}}))
"""
"""What `ray job submit -- ENTRYPOINT` does with the words of its command line."""


@pytest.mark.parametrize("code", [0, 2, 5, 7, 130, 143])
def test_rayjob_retries_only_lost_engines_and_stops(tmp_path, code):
    """KubeRay puts the entrypoint into a script of its submitter's shell, which lacks RAY_ADDRESS."""
    entrypoint = read_rayjob()["spec"]["entrypoint"]
    (tmp_path / "ray").write_text(RAY.format(python=sys.executable))
    (tmp_path / "assayline").write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/words\nexit {code}\n')
    for name in ("ray", "assayline"):
        (tmp_path / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    script = f"set -e ; ray job submit --address http://head:8265 --submission-id one -- {entrypoint} ; "
    ended = subprocess.run(["/bin/bash", "-ce", script], env=env, check=False)
    assert (ended.returncode != 0) == (code in (5, 130, 143))
    name, spec, *arguments = (tmp_path / "words").read_text().split()
    assert spec == "/spec/spec.yaml"
    assert flow_kit.run_here(name, EXAMPLES / "arithmetic.yaml", *arguments, "--dry-run").code == 0


def test_skypilot_example_has_known_fields_and_valid_scripts():
    """By SkyPilot's reference of a task's YAML."""
    task = yaml.safe_load((EXAMPLES / "skypilot.yaml").read_text())
    assert set(task) <= {"name", "num_nodes", "resources", "workdir", "file_mounts", "envs", "secrets", "setup", "run"}
    for script in (task["setup"], task["run"]):
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_data_folder_in_the_working_folder_of_a_ray_job_is_refused(tmp_path, monkeypatch):
    """Ray unpacks `ray job submit --working-dir` there, and deletes it."""
    folder = tmp_path / "runtime_resources" / "working_dir_files" / "_ray_pkg_1263f5" / "data"
    monkeypatch.setenv("ASSAYLINE_DATA_DIR", str(folder))
    refused = flow_kit.run_here("evaluate", EXAMPLES / "arithmetic.yaml")
    assert refused.code == 6 and "which Ray deletes" in refused.err and not folder.exists()
