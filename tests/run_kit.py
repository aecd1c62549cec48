"""Runs on the fake engine, and what they are made of: requests, shards, batch files, a tokenizer."""

import atexit
import functools
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from assayline.clock import RunClock
from assayline.engines.messages import Open
from assayline.load.progress import LoadProgress
from assayline.prompts import load_prompts
from assayline.records import Completion, EngineEvent, Request, TelemetrySample
from assayline.requests.build import PreparedPrompt, build_requests
from assayline.requests.chat import ChatRenderer
from assayline.requests.tokenizer import load_tokenizer
from assayline.run.begin import Evaluation, begin_evaluation
from assayline.run.dispatcher import Dispatcher
from assayline.run.drive import drive_worker
from assayline.run.evaluation import RunResult
from assayline.run.order import read_shard, shard_priority
from assayline.run.watch import RunReport
from assayline.run.worker import Worker, WorkOrder
from assayline.settings import Settings
from assayline.spec.engine import EngineSpec
from assayline.spec.evaluation import EvalSpec
from assayline.spec.file import parse_spec
from assayline.store.manifest import Manifest
from assayline.store.parts import PartWriter, count_rows, list_parts, write_part

ROOT = Path(__file__).resolve().parents[1]
Found = TypeVar("Found")
PATIENCE_S = 240.0
"""How long tests wait for an event. Only a failure takes so long."""
FAKE = {"backend": "fake"}
ENGINE_ARGS = {
    "max_model_len": 256,
    "max_num_seqs": 32,
    "dtype": "float32",
    "enforce_eager": True,
    "kv_cache_memory_bytes": 2**27,
}
"""vLLM on a CPU, small and quick to start."""
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}{{ eos_token }}\n"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SYLLABLES = ("ba", "ko", "mi", "tu", "re", "sol", "fan", "dex")
WORDS = [a + b + c for a, b, c in itertools.product(SYLLABLES, repeat=3)]


def order_of(**changes: Any) -> Open:
    """An order for a fake engine, without a run."""
    return Open(**{"engine": EngineSpec(backend="fake"), "model": "m", "clock": RunClock.start(), **changes})


def request_of(number: int, prompt_token_ids: Sequence[int] = (1, 2, 3), **sampling: Any) -> Request:
    ids, name = [*prompt_token_ids], f"{number:05d}"
    return Request(
        request_id=f"request-{name}",
        prompt_id=f"prompt-{name}",
        occurrence=0,
        repeat_index=0,
        prompt_token_ids=ids,
        sampling=sampling,
        rendered=f"say {number}",
    )


def plain_request(request_id: str, **values: Any) -> Request:
    """A request with only the fields that a test is about."""
    plain = {"prompt_id": "prompt", "occurrence": 0, "repeat_index": 0, "prompt_token_ids": [1], "sampling": {}}
    return Request(request_id=request_id, **{**plain, **values})


def sample_of(**values: Any) -> TelemetrySample:
    plain = {"worker": "w", "engine_generation": 0, "at_s": 0.0, "in_flight_requests": 0, "output_tokens": 0}
    return TelemetrySample(**{**plain, "engine_steps": None, **values})


def manifest_of(run_id: str = "run", **values: Any) -> Manifest:
    return Manifest(
        run_id=run_id,
        name="name",
        spec_hash="spec",
        prompt_set="set",
        model="model",
        model_id="model-id",
        tokenizer_id="tokenizer-id",
        sampling_id="sampling-id",
        inputs={"a": "1"},
        inputs_digest="digest",
        clock=RunClock(1000.5, 3.25, "boot"),
        host_name="host",
        assayline_version="0.1.0",
        table_version=2,
        **values,
    )


def completion_of(request_id: str, **values: Any) -> Completion:
    plain = {"worker": "worker-0", "engine_generation": 0, "window_requests": 8}
    return Completion(request_id=request_id, **{**plain, **values})


def write_shards(run_dir: Path, shards: int, per_shard: int, **sampling: Any) -> list[str]:
    """Shards of numbered requests; their ids."""
    numbers = iter(range(shards * per_shard))
    ids = []
    for shard in range(shards):
        requests = [request_of(next(numbers), **sampling) for _ in range(per_shard)]
        write_part(run_dir, "requests", f"shard-{shard:06d}", requests)
        ids += [request.request_id for request in requests]
    return ids


def rows_of(run_dir: Path, table: str) -> list[dict[str, Any]]:
    return [row for part in list_parts(run_dir, table) for row in pq.read_table(part).to_pylist()]


def fake_spec(**changes: Any) -> EvalSpec:
    prompts = {"source": {"kind": "inline", "rows": [{"prompt": "1 + 1"}]}}
    return parse_spec({"model": "fake", "prompts": prompts, "engine": {"backend": "fake"}, **changes})


class Work:
    """Work of workers without an evaluation: every shard in the folder, to the end."""

    def __init__(self, run_dir: Path, settings: Settings, *, is_closed: bool = True, **changes: Any) -> None:
        self.run_dir = run_dir
        self.settings = settings
        self.spec = fake_spec(**changes)
        self.writer = PartWriter(run_dir, "flow", settings.flush_rows, settings.flush_interval_s)
        self.dispatcher = Dispatcher(self.spec, run_dir, self.writer.add, lambda: pytest.fail("no chat is rendered"))
        self.generations: dict[str, int] = {}
        self.attempt = 1
        self.sent_before = 0
        self.clock = RunClock.start()
        self.notes: list[str] = []
        self.events: list[EngineEvent] = []
        for part in list_parts(run_dir, "requests"):
            self.add(part)
        if is_closed:
            self.dispatcher.close()

    def add(self, part: Path) -> None:
        self.dispatcher.add_shard(part, count_rows(part))

    def order(self, worker: str) -> WorkOrder:
        spec = self.spec
        names: dict[str, Any] = {"run_id": "run", "worker": worker, "model": spec.model, "model_id": "fake-id"}
        return WorkOrder(
            open=Open(engine=spec.engine, sampling=spec.sampling_defaults, clock=self.clock, **names),
            settings=self.settings,
            holder=f"run run ({spec.name})",
            attempt=self.attempt,
            load=LoadProgress(self.spec.load, settled=self.sent_before),
            first_generation=self.generations.get(worker, 0),
            log_folder=self.run_dir / "logs",
        )

    def drive(
        self, worker: str = "worker-0", launch: Any = Worker, open_engine: Callable[..., Any] | None = None
    ) -> int:
        """Drives a worker, whose engine `open_engine` may open, to its end, and writes what is left."""
        launch = functools.partial(launch, open_engine=open_engine) if open_engine else launch
        log: Any = SimpleNamespace(info=self.notes.append, warning=self.notes.append, debug=str)
        report = RunReport(log)
        report.hear = lambda worker, log, event: self.events.append(event)  # type: ignore[method-assign]
        try:
            return drive_worker(self, worker, log, report, launch)  # type: ignore[arg-type]
        finally:
            self.writer.flush()

    def start(self, worker: str = "worker-0", launch: Any = Worker, **how: Any) -> threading.Thread:
        """The same in a daemon thread: a worker that does not end must not keep the tests from ending."""
        thread = threading.Thread(target=self.drive, args=[worker, launch], kwargs=how, daemon=True)
        thread.start()
        return thread


def wait_for(look: Callable[[], Found], what: str = "what is waited for", *known: object) -> Found:
    """Return the first true answer of `look`; fail if there is none, with what is `known` by then."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := look()):
        if time.monotonic() > deadline:
            raise AssertionError(f"Not within {PATIENCE_S:.0f} s: {what} {known or ''}")
        time.sleep(0.05)
    return found


def start_python(script: str, *arguments: object) -> "subprocess.Popen[str]":
    """A second Python process; talk to it by its standard streams."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def read_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def work(evaluation: Evaluation, index: int = 0, launch: Any = Worker) -> int:
    """Lets a worker answer all that there is; how much that was."""
    return drive_worker(evaluation, f"worker-{index}", launch=launch)


@functools.cache
def _reader() -> duckdb.DuckDBPyConnection:
    atexit.register(_reader.cache_clear)
    return duckdb.connect()


def query(settings: Settings, sql: str) -> list[tuple[Any, ...]]:
    """A query on the database, as another client would: to one that is there a file is attached in half the time."""
    connection = _reader()
    connection.execute(f"attach '{settings.database_path}' as looked_at (read_only)")
    try:
        connection.execute("set search_path = 'looked_at.internal,looked_at.raw,looked_at.main'")
        return connection.execute(sql).fetchall()
    finally:
        connection.execute("use memory")
        connection.execute("detach looked_at")


def vanish(evaluation: Evaluation) -> None:
    """Do as the kernel does when a flow's process is killed."""
    evaluation.lock.release()


def answer_some(evaluation: Evaluation, *counts: int) -> list[str]:
    """As a killed worker leaves it: of the first shard the first `counts[0]` requests are answered, and so on."""
    shards = sorted(list_parts(evaluation.run_dir, "requests"), key=shard_priority)
    ids = []
    for count, shard in zip(counts, shards, strict=False):
        requests: list[Request] = list(read_shard(shard))[:count]
        write_part(
            evaluation.run_dir,
            "completions",
            f"killed-{shard.stem}",
            [completion_of(request.request_id, text="early", finish_reason="stop") for request in requests],
        )
        ids += [request.request_id for request in requests]
    write_part(evaluation.run_dir, "engine_events", "killed", [EngineEvent("worker-0", 1, 3, "opened", 0.1, 0.1)])
    return ids


def answer_in_order(evaluation: Evaluation, *texts: str | None, first: int = 0) -> None:
    """Answer requests by hand, in the order of their prompts from the first one on; None is an error."""
    shards = sorted(list_parts(evaluation.run_dir, "requests"))
    requests: list[Request] = [request for shard in shards for request in read_shard(shard)]
    rows = [
        completion_of(request.request_id, text=text, error_kind="broken" if text is None else None)
        for request, text in zip(requests[first:], texts, strict=False)
    ]
    write_part(evaluation.run_dir, "completions", f"by-hand-{first}-{len(texts)}", rows)


def lose_answers(evaluation: Evaluation, count: int) -> None:
    """Behave as if that many stored answers had got lost."""
    evaluation.writer.flush()
    [part, *others] = [part for part in list_parts(evaluation.run_dir, "completions") if "prepare" not in part.name]
    table = pa.concat_tables([pq.read_table(each, partitioning=None) for each in (part, *others)])
    for each in (part, *others):
        each.unlink()
    pq.write_table(table.slice(count), part.with_name("left.parquet"))


def begin_and_vanish(spec: EvalSpec, settings: Settings, *counts: int) -> Evaluation:
    """A run that was prepared, answered so far, and killed."""
    evaluation = begin_evaluation(spec, settings)
    evaluation.prepare()
    answer_some(evaluation, *counts)
    vanish(evaluation)
    return evaluation


def complete(spec: EvalSpec, settings: Settings, resume: str = "auto", launch: Any = Worker) -> RunResult:
    """A run from its beginning, or from where it was left, to its end."""
    evaluation = begin_evaluation(spec, settings, resume)
    counts = evaluation.prepare()
    if not evaluation.is_answered:
        work(evaluation, launch=launch)
    return evaluation.finish(counts)


def answer_run(
    spec: EvalSpec, settings: Settings, *texts: str | None, before_end: Callable[[], object] = lambda: None
) -> RunResult:
    """Complete a new run with these answers, in the order of its prompts; None is an error."""
    evaluation = begin_evaluation(spec, settings, "never")
    counts = evaluation.prepare()
    answer_in_order(evaluation, *texts)
    before_end()
    return evaluation.finish(counts)


def check_sound(settings: Settings, requests: int) -> None:
    """The one run is complete, and each request has one answer."""
    counts = "(select count(*) from completions), (select count(distinct request_id) from completions)"
    runs = "runs left join request_integrity using (run_id)"
    found = query(settings, f"select state, expected_requests, is_sound, {counts} from {runs}")
    assert found == [("completed", requests, True, requests, requests)]


def settings_in(folder: Path) -> Settings:
    """Settings whose folders are in this one, quick to load and to write."""
    return Settings(data_dir=folder / "data", lock_dir=folder / "locks", flush_interval_s=0.2, load_interval_s=0.5)


def copy_run(run_dir: Path, settings: Settings) -> Path:
    """A run's folder and its database, copied to where a test may change them; the run's new folder."""
    data_dir = run_dir.parents[1]
    shutil.copytree(data_dir, settings.data_dir, dirs_exist_ok=True)
    return settings.data_dir / run_dir.relative_to(data_dir)


def list_runs(settings: Settings) -> list[str]:
    return sorted(path.name for path in (settings.data_dir / "runs").glob("*"))


def part_of(evaluation: Evaluation, table: str, name: str) -> Path:
    return evaluation.run_dir / "parts" / table / f"{name}.parquet"


def chat_line(custom_id: str, text: str = "bako mitu", **body: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return batch_line(custom_id, "/v1/chat/completions", {"messages": messages, **body})


def text_line(custom_id: str, prompt: Any = "bako mitu", **body: Any) -> dict[str, Any]:
    return batch_line(custom_id, "/v1/completions", {"prompt": prompt, **body})


def batch_line(custom_id: str, url: str, body: dict[str, Any]) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {"model": "m", **body}}


def write_batch(path: Path, *lines: dict[str, Any] | str) -> Path:
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    path.write_text(text, encoding="utf-8")
    return path


def prepare(
    spec: EvalSpec, tokenizer: Any, max_model_len: int | None = 256, renderer: Any = None
) -> list[PreparedPrompt]:
    """Return the prepared prompts of a spec."""
    renderer = renderer or ChatRenderer(spec.chat, tokenizer, max_model_len)
    return list(build_requests(spec, load_prompts(spec.prompts, tokenizer), renderer))


def build_tokenizer(vocab_size: int = 600) -> Any:
    """A real tokenizer, trained in a moment: byte-level BPE with a BOS that it would add itself."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<bos>", "<eos>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator([" ".join(WORDS)] * 4, trainer)
    raw.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 0)])
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": CHAT_TEMPLATE}
    config |= {f"{name}_token": f"<{name}>" for name in ("bos", "eos", "pad")}
    with tempfile.TemporaryDirectory() as folder:
        raw.save(f"{folder}/tokenizer.json")
        Path(folder, "tokenizer_config.json").write_text(json.dumps(config))
        Path(folder, "config.json").write_text(json.dumps({"model_type": "llama"}))
        return load_tokenizer(Path(folder))


def add_noise(model: Path, folder: Path, share: float) -> Path:
    """A copy of a model with Gaussian noise of a share of each matrix's standard deviation."""
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(model, folder)
    generator = torch.Generator().manual_seed(1)
    for file in folder.glob("*.safetensors"):
        weights = {
            name: (one.float() + share * one.float().std() * torch.randn(one.shape, generator=generator)).to(one.dtype)
            if one.ndim == 2
            else one
            for name, one in load_file(file).items()
        }
        file.unlink()
        save_file(weights, file, metadata={"format": "pt"})
    return folder
