"""Make a small synthetic database to try queries on, deterministic and without an engine, in seconds.

    python -m examples.two_weeks [FOLDER]          # default: data/two-weeks

It has two nightly runs of one evaluation a week apart, the second of which is worse and was judged by the gate; the
same prompts with reasoning tokens; and three benchmarks: two values of max concurrency with five repeats each, three
models, and one model under five loads. Prompts are those of examples/arithmetic.jsonl; examples/simulated_engine.py
makes up answers and times. docs/reference/sql-cookbook.md quotes this database, and tests read it. It makes a folder
per run and loads the database from the folders, like `assayline db rebuild`.
"""

import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from assayline import __version__
from assayline.clock import RunClock
from assayline.comparison.board import rank_board
from assayline.comparison.gate import judge_run_against
from assayline.digests import digest_json
from assayline.files import replace_file
from assayline.records import Prompt, Request
from assayline.requests.build import make_request_id
from assayline.run.rebuild import rebuild_run
from assayline.run.stages import save_verdicts
from assayline.settings import Settings
from assayline.spec.criteria import GateSpec
from assayline.spec.file import parse_spec
from assayline.spec.identity import canonical_json, config_id, spec_hash
from assayline.store.database import TABLE_VERSION, connect
from assayline.store.manifest import SPEC_NAME, Manifest, PromptCounts, write_manifest
from assayline.store.metrics import ensure_metrics
from assayline.store.parts import write_part
from examples.simulated_engine import Night, simulate

ROWS = Path(__file__).parent / "arithmetic.jsonl"


OFTEN_WRONG = frozenset({3, 17, 58, 101, 120, 139})
NEWLY_WRONG = frozenset({8, 21, 33, 47, 62, 77, 90, 105, 118, 133, 146})
NIGHTS = (
    Night("20261114-013000-nightly-0001", "2026-11-14 01:30", wrong=OFTEN_WRONG | {66, 93}),
    Night(
        "20261121-013000-nightly-0002",
        "2026-11-21 01:30",
        model_id="sha256:00000000000000000000000000000002",
        wrong=OFTEN_WRONG | NEWLY_WRONG,
        step_s=0.28,
        dies_after=60,
        deadly=72,
    ),
    Night("20261121-093000-thinking-0003", "2026-11-21 09:30", "thinking", wrong=frozenset({17}), thinking_tokens=24),
    *(
        Night(
            f"20261120-{10 + repeat:02d}{minute:02d}00-window-{window}-{repeat:04d}",
            f"2026-11-20 {10 + repeat:02d}:{minute:02d}",
            f"window-{window}",
            prompts=40,
            window=window,
            seats=window,
            step_s=0.25 + 0.005 * (repeat % 3) + (0.0 if window == 32 else -0.06),
            wrong=frozenset({3, 17}),
            benchmark_id="window-8-or-32",
        )
        for minute, window in ((0, 8), (30, 32))
        for repeat in range(5)
    ),
    *(
        Night(
            f"20261122-{hour}0000-models-{hour}00",
            f"2026-11-22 {hour}:00",
            "models",
            model=f"invented/sums-of-{size}",
            model_id=f"sha256:{hour:032d}",
            max_tokens=14,
            wrong=wrong,
            step_s=step_s,
            euros_per_hour=1.8,
            benchmark_id="three-models",
        )
        for hour, size, step_s, wrong in (
            (10, "one", 0.1, OFTEN_WRONG | NEWLY_WRONG | frozenset(range(0, 155, 5))),
            (11, "two", 0.25, OFTEN_WRONG | {66, 93}),
            (12, "four", 0.6, frozenset({17, 58, 101})),
        )
    ),
    *(
        Night(
            f"20261123-1{rate_per_s}0000-rates-{rate_per_s:04d}",
            f"2026-11-23 1{rate_per_s}:00",
            "rates",
            seats=16,
            wrong=OFTEN_WRONG,
            rate_per_s=rate_per_s,
            benchmark_id="two-to-eight-a-second",
        )
        for rate_per_s in (2, 4, 5, 6, 8)
    ),
)


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("data") / "two-weeks"
    print(f"Database: {make_database(folder)}")


def make_database(folder: Path, nights: tuple[Night, ...] = NIGHTS) -> Path:
    """Write the folders of all runs and load them into a database. Return its path.

    The gate compares the second nightly run with the first, if both are among `nights`.
    """
    settings = Settings(data_dir=folder, database=folder / "assayline.duckdb")
    for night in nights:
        run_dir = settings.run_dir(night.run_id)
        write_run(run_dir, night)
        rebuild_run(run_dir, settings.database_path, settings.database_wait_s)
    first, second = NIGHTS[:2]
    with connect(settings.database_path, settings.database_wait_s) as connection:
        ensure_metrics(connection)
        if first in nights and second in nights:
            report = judge_run_against(connection, second.run_id, first.run_id, GateSpec())
            save_verdicts(connection, folder, report)
            if nights == NIGHTS:
                rank_board(connection, ["three-models"])
    return settings.database_path


def write_run(run_dir: Path, night: Night) -> None:
    """Write a run's folder: spec, part files and manifest."""
    load, way = None, {"max_concurrency": night.window}
    if night.rate_per_s:
        load, way = {"arrival": {"kind": "constant", "rate_per_s": night.rate_per_s}}, {"backend": "async"}
    spec = parse_spec(
        {
            "name": night.name,
            "model": night.model,
            "prompts": {
                "source": {"kind": "file", "path": "examples/arithmetic.jsonl"},
                "columns": {"target": "answer", "metadata": ["operation"]},
                "template": "{{ question }}",
                "limit": night.prompts,
            },
            "sampling": {"temperature": 0, "max_tokens": night.most_tokens},
            "engine": {"args": {"max_num_seqs": night.seats}, **way},
            "price": night.euros_per_hour and {"currency": "EUR", "per_machine_hour": night.euros_per_hour},
            "load": load,
        }
    )
    text = canonical_json(spec)
    replace_file(run_dir / SPEC_NAME, lambda file: file.write(text.encode()))
    prompts = list(read_prompts(night.prompts))
    requests = [ask(prompt, dict(spec.sampling)) for prompt in prompts]
    told = simulate(night, requests, [str(prompt.target) for prompt in prompts])
    for table, records in {
        "prompts": prompts,
        "requests": requests,
        "completions": told.completions,
        "engine_events": told.events,
        "telemetry": told.samples,
    }.items():
        write_part(run_dir, table, "invented", records)
    started_s = datetime.fromisoformat(night.started).replace(tzinfo=UTC).timestamp()
    ended = datetime.fromtimestamp(started_s + told.now_s, UTC).replace(tzinfo=None, microsecond=0)
    manifest = Manifest(
        run_id=night.run_id,
        name=night.name,
        spec_hash=spec_hash(spec),
        config_id=config_id(spec, night.model_id),
        benchmark_id=night.benchmark_id,
        prompt_set=spec.prompts.set_name,
        model=spec.model,
        model_id=night.model_id,
        tokenizer_id=digest_json("tokenizer"),
        sampling_id=digest_json(spec.sampling),
        template_id=digest_json("template"),
        inputs=None,
        inputs_digest=None,
        clock=RunClock(started_s, 0.0, "invented"),
        host_name="invented-host",
        assayline_version=__version__,
        table_version=TABLE_VERSION,
        state="completed",
        finished_at=ended.isoformat(),
        prompts=PromptCounts(len(prompts), 0, len(requests), 0, 1),
    )
    write_manifest(run_dir, manifest)


def read_prompts(limit: int | None) -> Iterator[Prompt]:
    """Read the prompt set of the demo."""
    for row, line in enumerate(ROWS.read_text(encoding="utf-8").splitlines()[:limit]):
        data = json.loads(line)
        messages = [{"role": "user", "content": data["question"]}]
        prompt_id = digest_json({"messages": messages, "target": data["answer"]})
        yield Prompt(
            prompt_id=prompt_id,
            occurrence=0,
            source_row=row,
            source_id=None,
            messages=messages,
            target=data["answer"],
            metadata={"operation": data["operation"]},
        )


def ask(prompt: Prompt, sampling: dict[str, Any]) -> Request:
    """Make the request for a prompt, with one synthetic token per four characters."""
    rendered = f"<user>{prompt.messages[0]['content']}<assistant>"
    request_id = make_request_id(prompt.prompt_id, 0, 0)
    return Request(
        request_id=request_id,
        prompt_id=prompt.prompt_id,
        occurrence=0,
        repeat_index=0,
        prompt_token_ids=list(range(len(rendered) // 4)),
        sampling=sampling,
        rendered=rendered,
    )


if __name__ == "__main__":
    main()
