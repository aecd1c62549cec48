"""(h) Idling, aborts, stop texts and engines that are handed over: counts that must be exact.

vLLM schedules ahead by default on CUDA, and never on a CPU: a step may return nothing, or belong to requests that have
ended. A rehearsal on a CPU measures each engine twice, the second time with such scheduling forced on.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from assayline.clock import RunClock
from assayline.engines.base import AnyEngine, EngineHooks
from assayline.engines.client import HostedEngine
from assayline.engines.messages import Open
from assayline.engines.pool import EnginePool
from assayline.engines.process import HostSetup, engine_environment
from assayline.records import Request, TelemetrySample
from assayline.spec.engine import EngineSpec, ReasoningSpec
from benchmarks.gpu.setup import PROCESSES, Row, Setup, Tell

ARGS = {
    "max_model_len": 256,
    "max_num_seqs": 8,
    "enforce_eager": True,
    "kv_cache_memory_bytes": 2**26,
    "gpu_memory_utilization": 0.2,
    "enable_prefix_caching": True,
}
PLACES = {"own": "offline", "async": "async"}
"""Backends by the place of the engine core."""

SCHEDULE_AHEAD = """
from vllm.platforms import current_platform
platform = type(current_platform)
check = platform.check_and_update_config
def check_and_schedule_ahead(config):
    check(config)
    config.scheduler_config.async_scheduling = True
def install():
    platform.check_and_update_config = staticmethod(check_and_schedule_ahead)
"""
"""A plugin of vLLM, which every process of an engine loads."""

COUNT_ENCODED = """
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
allocate = EncoderCacheManager.allocate
def allocate_and_count(self, *given, **named):
    with open({path!r}, "a") as file:
        file.write("i")
    return allocate(self, *given, **named)
EncoderCacheManager.allocate = allocate_and_count
"""
"""A module that an engine core imports: a letter in a file for each image that gets a place in the encoder cache, which
is the scheduler's and the same for all model runners."""

ANSWER_TOKENS = 24
IMAGES = 8


def measure_handover(setup: Setup, tell: Tell) -> None:
    """Record one row per place of the engine core and check."""
    from examples.tiny_model import ensure_tiny_model

    model = ensure_tiny_model()
    wrong: list[str] = []

    def note(row: Row) -> None:
        tell(row)
        if row["found"] != row["expected"]:
            wrong.append(f"{row['check']}: {row['found']!r} instead of {row['expected']!r}")

    for ahead in (None,) if setup.is_cuda else (None, write_plugin(setup.folder / "ahead")):
        for place in PLACES:
            kit = Kit(setup, model, place, ahead)
            with EnginePool() as pool:
                for check, expected, found in kit.check(pool):
                    note({**kit.head, "check": check, "expected": expected, "found": found})
        with contextlib.suppress(ImportError):  # without decoders of images, as in the bundle
            for place in ("own", "async"):
                kit = Kit(setup, model, place, ahead)
                note({**kit.head, "check": "images encoded by two runs", **count_encoded(kit)})
    if wrong:
        raise RuntimeError("; ".join(wrong))


def write_plugin(folder: Path) -> Path:
    """Write an installed package that forces scheduling ahead."""
    info = folder / "schedule_ahead-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: schedule-ahead\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\nschedule_ahead = schedule_ahead:install\n")
    (folder / "schedule_ahead.py").write_text(SCHEDULE_AHEAD)
    return folder


class Kit:
    """Engines of one kind, their newest sample, and requests for them."""

    def __init__(self, setup: Setup, model: Path, place: str, ahead: Path | None) -> None:
        self.setup, self.model, self.place, self.ahead = setup, model, place, ahead
        self.head: Row = {"processes": place, "scheduling": "ahead, forced" if ahead else "vLLM's default"}
        self.folder = setup.folder / f"handover-{place}{'-ahead' if ahead else ''}"
        self.samples: list[TelemetrySample] = []
        self.prompt: list[int] = []
        self._asked = 0

    def open(self, run: str, pool: EnginePool | None, model: Path | None = None, **changes: Any) -> AnyEngine:
        """Open or take over an engine for a run."""
        env = {**self.setup.device_env, **PROCESSES.get(self.place, {}), "OMP_NUM_THREADS": "1"}
        if self.ahead:
            env["PYTHONPATH"] = str(self.ahead)
        args = changes.pop("args", ARGS)
        spec = EngineSpec.model_validate({"backend": PLACES[self.place], "args": args, "record_token_times": True})
        order = Open(engine=spec, model=str(model or self.model), clock=RunClock.start(), run_id=run, **changes)
        host = HostSetup(engine_environment(self.setup.make_settings("handover"), {}, env), self.folder / f"{run}.log")
        engine = HostedEngine(order, host, EngineHooks(on_sample=self.samples.append), pool=pool)
        if not changes.get("has_media"):
            engine.warm_up(self.ask([1] * 32, 2))
        return engine

    def ask(self, prompt: list[int], tokens: int, **sampling: Any) -> Request:
        """Make a request with a new id."""
        self._asked += 1
        values = {"temperature": 0, "ignore_eos": True, "max_tokens": tokens, **sampling}
        return Request(
            request_id=str(self._asked),
            prompt_id="p",
            occurrence=0,
            repeat_index=0,
            prompt_token_ids=prompt,
            sampling=values,
        )

    def count(self, engine: AnyEngine, tokens: int) -> Row:
        """Return the steps that a request takes, and its answer."""
        before = self.samples[-1].engine_steps or 0 if self.samples else 0
        [answer] = engine.generate([self.ask(self.prompt, tokens, skip_special_tokens=False)])
        return {"steps": (self.samples[-1].engine_steps or 0) - before, "answer": answer}

    def idle(self, engine: AnyEngine) -> TelemetrySample:
        """Wait for two more samples without requests."""
        seen = len(self.samples)

        def nothing() -> Iterator[None]:
            while len(self.samples) < seen + 2:
                yield None

        list(engine.generate(nothing()))
        return self.samples[-1]

    def check(self, pool: EnginePool) -> Iterator[tuple[str, Any, Any]]:
        """Yield what was checked, what was expected and what was found."""
        with contextlib.closing(self.open("one", pool)) as engine:
            block = engine.facts.details["block_size_tokens"]
            self.prompt = [5 + number % 50 for number in range(block + 20)]
            yield "steps of 24 tokens", ANSWER_TOKENS, self.count(engine, ANSWER_TOKENS)["steps"]
            steps = self.samples[-1].engine_steps
            yield "steps while idle", steps, self.idle(engine).engine_steps
            again = self.count(engine, 5)
            yield "steps of 5 tokens after idling", 5, again["steps"]
            yield "cached tokens within a run", block, again["answer"].cached_tokens
            left = engine.generate([self.ask(self.prompt, 200), self.ask(self.prompt, 2)])
            next(left)
            left.close()  # type: ignore[attr-defined]
            yield "requests in flight after an abort", 0, self.idle(engine).in_flight_requests
            yield "steps of 5 tokens after an abort", 5, self.count(engine, 5)["steps"]
        self.samples.clear()
        with contextlib.closing(self.open("two", pool)) as engine:
            yield "handed over from", "one", engine.facts.details.get("kept_from")
            taken = self.count(engine, ANSWER_TOKENS)
            text, cached = taken["answer"].text, taken["answer"].cached_tokens
            yield "cached tokens of the run before", 0, cached or 0
        close, stop = text[0], text.rstrip()[-1]
        thinking = ReasoningSpec(close=close)
        with contextlib.closing(self.open("three", pool, reasoning=thinking)) as engine:
            asked = self.ask(self.prompt, ANSWER_TOKENS, skip_special_tokens=False, stop=[stop])
            [answer] = engine.generate([asked])
            yield f"text up to the stop {stop!r}", text[1:].lstrip().partition(stop)[0], answer.text
            yield "steps of a request that was stopped", answer.output_tokens, self.samples[-1].engine_steps
            yield "steps of 5 tokens after it", 5, self.count(engine, 5)["steps"]


def count_encoded(kit: Kit) -> Row:
    """Ask two runs for the same images on one engine, and count those that the vision tower encodes."""
    from transformers import AutoTokenizer

    from assayline.media.load import refer_synthetic
    from examples.tiny_vlm import ensure_tiny_vlm

    model = ensure_tiny_vlm()
    token = AutoTokenizer.from_pretrained(model).convert_tokens_to_ids("<image>")
    media = [refer_synthetic("image", width=32, height=32, content="solid", seed=seed) for seed in range(IMAGES)]
    kit.folder.mkdir(parents=True, exist_ok=True)
    path, module = kit.folder / "encoded", kit.folder / "count_encoded.py"
    module.write_text(COUNT_ENCODED.format(path=str(path)))
    plugin = {"structured_outputs_config": {"reasoning_parser_plugin": str(module)}}
    counted = []
    with EnginePool() as pool:
        for run in ("seen", "seen-again"):
            path.write_text("")
            args = {**ARGS, **plugin, "limit_mm_per_prompt": {"image": 1}, "enable_prefix_caching": False}
            with contextlib.closing(kit.open(run, pool, model, args=args, has_media=True)) as engine:
                prompt = [1, token, *range(5, 40)]
                asked = [replace(kit.ask(prompt, 4), media=[one]) for one in media]
                answers = list(engine.generate(asked))
            counted.append(len(path.read_text()))
    failed = next((answer.error_message for answer in answers if answer.error_kind), None)
    return {"expected": [IMAGES, IMAGES], "found": failed or counted}
