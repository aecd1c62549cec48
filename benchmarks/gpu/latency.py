"""(d) Inter-token latency: the async engine with token timestamps, compared with vLLM's `AsyncLLM` alone."""

import argparse
from concurrent.futures import ThreadPoolExecutor

from assayline.engines.process import engine_environment
from benchmarks.gpu.setup import Setup, Tell
from benchmarks.streaming import Alone, Ours, compare, make_requests

CONCURRENCY = 64


def measure_latency(setup: Setup, tell: Tell) -> None:
    """Record one row per shape, the larger one first, as its tokens take longest."""
    for shape in setup.shapes[::-1]:
        requests, concurrency = make_requests(shape.requests // 2), min(CONCURRENCY, shape.seats)
        folder = setup.folder / f"latency-{shape.name}"
        folder.mkdir(parents=True)
        env = engine_environment(setup.make_settings(folder.name), setup.device_env, {})
        model, args = setup.build_model(shape), setup.make_args(shape)
        with ThreadPoolExecutor(1) as pool:
            opening = pool.submit(Alone, model, concurrency, env, folder / "alone.log", args)
            ours = Ours(model, concurrency, env, folder / "ours.log", args)
            alone = opening.result()
        sizes = {"layers": shape.layers, "hidden": shape.hidden}
        options = argparse.Namespace(pairs=setup.pairs, requests=len(requests), concurrency=concurrency, **sizes)
        tell({"shape": shape.name, **compare(alone, ours, requests, options)})
