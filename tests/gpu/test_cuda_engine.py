"""On a CUDA machine: `pytest -m gpu`. Elsewhere these skip and say why."""

import contextlib
import subprocess
import time

import pytest
from run_kit import plain_request

from assayline.clock import RunClock
from assayline.engines import open_engine
from assayline.engines.base import EngineHooks
from assayline.engines.devices.claims import claim_device, cuda_driver_answers, list_devices
from assayline.engines.messages import Open
from assayline.engines.process import HostSetup

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not cuda_driver_answers(), reason="no NVIDIA driver answers on this machine"),
]


def used_memory_mib(gpu: str) -> int:
    query = ["nvidia-smi", "-i", gpu, "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip())


def test_a_cuda_spec_is_answered_on_the_gpu_and_its_memory_comes_back(make_spec, settings, tmp_path):
    spec = make_spec(
        engine={
            "device": "cuda",
            "args": {"max_model_len": 256, "max_num_seqs": 32, "enforce_eager": True, "gpu_memory_utilization": 0.2},
        }
    )
    with claim_device(list_devices("cuda", 1), settings.lock_dir, 0) as device:
        gpu = device.env["CUDA_VISIBLE_DEVICES"]
        before_mib = used_memory_mib(gpu)
        order = Open(engine=spec.engine, model=spec.model, clock=RunClock.start())
        setup = HostSetup.of(settings, spec.engine, device.env, tmp_path / "engine.log")
        engine = open_engine(order, None, setup, EngineHooks())
        with contextlib.closing(engine):
            assert engine.facts.details["device"] == "cuda"
            sampling = {"max_tokens": 8, "ignore_eos": True}
            requests = [plain_request(f"r{i}", prompt_token_ids=[5 + i] * 40, sampling=sampling) for i in range(64)]
            completions = list(engine.generate(iter(requests)))
            assert sorted(c.request_id for c in completions) == sorted(r.request_id for r in requests)
            assert all(c.error_kind is None and c.output_tokens == 8 for c in completions)
            assert used_memory_mib(gpu) > before_mib + 1000
        deadline = time.monotonic() + 10
        while used_memory_mib(gpu) > before_mib + 100 and time.monotonic() < deadline:
            time.sleep(0.2)
        assert used_memory_mib(gpu) <= before_mib + 100
