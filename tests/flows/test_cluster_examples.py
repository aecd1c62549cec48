"""The examples for Slurm, Kubernetes and SkyPilot, as far as they can be run or validated without any of these."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import flow_kit
import pytest
import yaml
from run_kit import PATIENCE_S

pytestmark = [pytest.mark.prefect, pytest.mark.ray]

STAND_IN = Path(__file__).parent / "stand_in"
EXAMPLES = flow_kit.ROOT / "examples"
RAYJOB = flow_kit.ROOT / "deploy" / "kubernetes" / "rayjob.yaml"


@pytest.mark.rare
def test_slurm_script_evaluates_on_every_node(slow_spec, served_env, data_dir, tmp_path):
    """Two nodes on loopback, with stand-ins for srun and scontrol."""
    pytest.importorskip("ray")
    slow_spec["sampling"]["max_tokens"] = 3_000
    env = {
        **served_env,
        "PATH": f"{STAND_IN}:{os.environ['PATH']}",
        "PYTHON": sys.executable,
        "PYTHONPATH": str(flow_kit.ROOT),
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_JOB_NUM_NODES": "2",
    }
    spec = flow_kit.write_spec(tmp_path / "spec.yaml", slow_spec)
    log = tmp_path / "log"
    with flow_kit.started(["bash", str(EXAMPLES / "slurm.sbatch"), str(spec)], env, log) as job:
        assert job.wait(PATIENCE_S) == 0, log.read_text()
    counts = flow_kit.query(data_dir, "select count(*), count(distinct request_id), count(text) from completions")
    assert counts == [(flow_kit.SLOW_ROWS, flow_kit.SLOW_ROWS, flow_kit.SLOW_ROWS)]
    (manifest,) = data_dir.glob("runs/*/run.json")
    named = {name: env[name] for name in ("SLURM_JOB_ID", "SLURM_JOB_NODELIST")}
    assert json.loads(manifest.read_text())["job"] == named
    flow_kit.assert_nothing_runs(data_dir)


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


def test_rayjob_has_valid_pods_and_a_valid_volume():
    validate = pytest.importorskip("kubernetes_validate")
    cluster = read_rayjob()["spec"]["rayClusterSpec"]
    for group in [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]:
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, **group["template"]}
        validate.validate(pod, "1.30", strict=True)
    for claim in list(yaml.safe_load_all(RAYJOB.read_text()))[:-1]:
        validate.validate(claim, "1.30", strict=True)


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
