"""Throughput of image prompts: assayline's engine compared with `LLM.generate` over the same images.

    python -m benchmarks.media [--pairs 3] [--requests 256] [--megapixels 1] [--output-tokens 32]

Both sides keep one engine (the tiny VLM) in a separate process and answer the same prompts alternately: raw, ours,
ours, raw, … Raw reads and decodes all images and calls `generate`, which processes all of them before its first step;
assayline's engine gets references. Images are JPEGs, each different.
"""

import argparse
import contextlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from PIL import Image

from assayline.clock import RunClock
from assayline.engines.base import EngineHooks
from assayline.engines.client import HostedEngine
from assayline.engines.messages import Open
from assayline.engines.process import HostSetup, engine_environment
from assayline.media.references import MediaStore
from assayline.records import Request, TelemetrySample
from assayline.requests.chat import ChatRenderer
from assayline.requests.model_config import find_placeholders
from assayline.requests.tokenizer import load_tokenizer
from assayline.settings import Settings
from assayline.spec.engine import EngineSpec
from assayline.spec.prompts import ChatSpec
from benchmarks.yardstick import Yardstick, describe_ratios
from examples.tiny_vlm import ensure_tiny_vlm

ARGS: dict[str, Any] = {
    "max_model_len": 256,
    "max_num_seqs": 32,
    "dtype": "float32",
    "enforce_eager": True,
    "kv_cache_memory_bytes": 2**27,
}


def draw_pictures(folder: Path, count: int, megapixels: float) -> list[Path]:
    """Make JPEGs of smooth colours with some noise, like photographs, each different."""
    edge = round((megapixels * 1e6) ** 0.5)
    paths = []
    for number in range(count):
        dice = np.random.default_rng(number)
        small = Image.fromarray(dice.integers(0, 256, (16, 16, 3), dtype=np.uint8)).resize((edge, edge))
        noisy = np.asarray(small).astype(np.int16) + dice.integers(-8, 9, (edge, edge, 1), dtype=np.int16)
        path = folder / f"{number:06d}.jpg"
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(path, quality=85)
        paths.append(path)
    return paths


class Ours:
    """assayline's offline engine, with its counters."""

    def __init__(self, model: Path, folder: Path) -> None:
        self.steps = 0
        settings = Settings(data_dir=folder / "data", lock_dir=folder / "locks")
        args = {**ARGS, "mm_processor_cache_gb": 0}  # as in a run that sends each image once
        order = Open(
            engine=EngineSpec(args=args),
            model=str(model),
            model_id="tiny-vlm",
            clock=RunClock.start(),
            has_media=True,
        )
        setup = HostSetup.of(settings, EngineSpec(), engine_environment(settings, {}, {}), folder / "ours.log")
        self.engine = HostedEngine(order=order, setup=setup, hooks=EngineHooks(on_sample=self._take))

    def _take(self, sample: TelemetrySample) -> None:
        self.steps = sample.engine_steps or 0

    def measure(self, requests: list[Request]) -> dict[str, Any]:
        steps, cpu, own, started = self.steps, self._count_cpu_s(), self._count_own_s(), time.monotonic()
        answers = list(self.engine.generate(requests))
        seconds = time.monotonic() - started
        assert all(answer.error_kind is None for answer in answers), answers[0].error_message
        engine_s, beside_s, here_s = (after - before for before, after in zip(cpu, self._count_cpu_s(), strict=True))
        return {
            "seconds": seconds,
            "cpu_s": engine_s + beside_s,
            "engine_cpu_s": engine_s,
            "beside_cpu_s": beside_s,
            "here_cpu_s": here_s,
            "idle_share": max(0.0, 1 - (self._count_own_s() - own) / seconds),
            "output_tokens": sum(answer.output_tokens or 0 for answer in answers),
            "engine_steps": self.steps - steps,
            "prepare_s": sum(answer.media_prepare_s or 0 for answer in answers),
        }

    def _count_cpu_s(self) -> tuple[float, float, float]:
        """CPU seconds of the engine's process, of its media processes, and of this process, the client."""
        host = psutil.Process(self.engine.host_pid)
        return read_cpu_s([host]), read_cpu_s(host.children()), read_cpu_s([psutil.Process()])

    def _count_own_s(self) -> float:
        """CPU seconds of the thread that drives the engine; otherwise it waits, for media or for a core."""
        host = psutil.Process(self.engine.host_pid)
        return next(sum(thread[1:]) for thread in host.threads() if thread.id == host.pid)


def make_requests(model: Path, pictures: Iterable[Path], output_tokens: int, prefix: str) -> Iterator[Request]:
    """Make a prompt per image, with `output_tokens` each."""
    tokenizer = load_tokenizer(model)
    renderer = ChatRenderer(ChatSpec(), tokenizer, None, find_placeholders(model, tokenizer, {}))
    media_store = MediaStore(None)
    sampling = {"temperature": 0, "max_tokens": output_tokens, "ignore_eos": True}
    for number, path in enumerate(pictures):
        content = [{"type": "image"}, {"type": "text", "text": "What colour is the image?"}]
        ids = renderer.render([{"role": "user", "content": content}]).token_ids
        yield Request(
            request_id=f"{prefix}{number}",
            prompt_id="",
            occurrence=0,
            repeat_index=0,
            prompt_token_ids=ids,
            sampling=sampling,
            media=[media_store.refer("image", path)],
        )


def run_pairs(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print the pairs, and return their summary."""
    model = ensure_tiny_vlm()
    pictures = draw_pictures(folder, options.requests * (options.pairs + 1), options.megapixels)
    env = engine_environment(Settings(), {}, {})
    raw = Yardstick("benchmarks.raw_vllm", {"model": str(model), "args": ARGS}, env, folder / "raw.log")
    ours = Ours(model, folder)
    pairs: list[tuple[dict[str, Any], dict[str, Any]]] = []
    with contextlib.closing(ours.engine), contextlib.closing(raw):
        for number in range(options.pairs + 1):
            shown = pictures[number * options.requests :][: options.requests]  # not in any cache
            requests = list(make_requests(model, shown, options.output_tokens, f"pair-{number}-"))
            asked = [
                {
                    "prompt_token_ids": request.prompt_token_ids,
                    "images": [media["path"] for media in request.media or ()],
                    "sampling": request.sampling,
                }
                for request in requests
            ]
            if number % 2:
                mine, theirs = ours.measure(requests), raw.ask(asked)
            else:
                theirs, mine = raw.ask(asked), ours.measure(requests)
            assert mine["output_tokens"] == theirs["output_tokens"], "the sides generated different amounts"
            if number == 0:
                continue  # the first pair warms up both sides
            pairs.append((theirs, mine))
            print(
                f"pair {number}: raw {theirs['seconds']:.2f} s ({theirs['load_s']:.2f} s of it loading), "
                f"{theirs['cpu_s']:.2f} CPU-s, {theirs['engine_steps']} steps; ours {mine['seconds']:.2f} s, "
                f"{mine['cpu_s']:.2f} CPU-s ({mine['engine_cpu_s']:.2f} in the engine's process, "
                f"{mine['beside_cpu_s']:.2f} in its media processes) and {mine['here_cpu_s']:.2f} in the client, "
                f"{mine['engine_steps']} steps, idle {mine['idle_share']:.2f}, "
                f"preparing {mine['prepare_s']:.2f} s; "
                f"{theirs['seconds'] / mine['seconds']:.3f} x raw",
                flush=True,
            )
    return summarize(pairs, options)


def read_cpu_s(processes: Iterable[psutil.Process]) -> float:
    """Return CPU seconds of processes so far, without their children."""
    return float(sum(sum(process.cpu_times()[:2]) for process in processes))


def summarize(pairs: list[tuple[dict[str, Any], dict[str, Any]]], options: argparse.Namespace) -> dict[str, Any]:
    """Return medians and ranges of the ratios per pair."""
    speed = [theirs["seconds"] / mine["seconds"] for theirs, mine in pairs]
    steps, cpu = ([mine[key] / theirs[key] for theirs, mine in pairs] for key in ("engine_steps", "cpu_s"))
    return {
        "benchmark": "media",
        **vars(options),
        "cores": len(os.sched_getaffinity(0)),
        "raw_seconds_median": round(statistics.median(theirs["seconds"] for theirs, _ in pairs), 2),
        "images_per_s_median": round(statistics.median(options.requests / mine["seconds"] for _, mine in pairs), 1),
        **describe_ratios("speed", speed),
        **describe_ratios("engine_steps", steps),
        **describe_ratios("cpu", cpu),
        "idle_share_median": round(statistics.median(mine["idle_share"] for _, mine in pairs), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--megapixels", type=float, default=1.0)
    parser.add_argument("--output-tokens", type=int, default=32)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="assayline-media-") as name:
        report = run_pairs(Path(name), options)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
