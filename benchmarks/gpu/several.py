"""(f) Two engines on one GPU with half of its memory each, and (g) one engine on two GPUs, compared with one on one."""

from typing import Any

from assayline.settings import Settings
from benchmarks.gpu.runs import open_gate, query, start_run
from benchmarks.gpu.setup import Row, Setup, Shape, SkipPart, Tell

GENERATED = """
select
    epoch(runs.started_at) + min(completions.sent_at_s) as began_s,
    epoch(runs.started_at) + max(completions.finished_at_s) as ended_s,
    sum(completions.output_tokens) as output_tokens,
    count(*) filter (where completions.error_kind is null) as answered
from completions join runs using (run_id)
group by runs.run_id, runs.started_at
"""


def measure_sharing(setup: Setup, tell: Tell) -> None:
    """Record one row for the smallest shape, for which one engine is least likely to saturate a GPU."""
    for shape in setup.shapes[:1]:
        half = {"kv_cache_memory_bytes": shape.cache_bytes // 2, "max_num_seqs": max(shape.seats // 2, 1)}
        [alone] = run_side_by_side(setup, shape, f"alone-{shape.name}", [{}], shape.requests)
        both = run_side_by_side(setup, shape, f"two-{shape.name}", [half, half], shape.requests // 2)
        tell({"shape": shape.name, **compare_sides(alone, both)})


def measure_tensor_parallel(setup: Setup, tell: Tell) -> None:
    """Record the largest shape on one GPU and on two."""
    if len(setup.gpus) < 2:
        raise SkipPart(f"needs two GPUs, found {len(setup.gpus) or 'none'}")
    shape = setup.shapes[-1]
    [one] = run_side_by_side(setup, shape, "tp1", [{}], shape.requests)
    [two] = run_side_by_side(setup, shape, "tp2", [{"tensor_parallel_size": 2}], shape.requests)
    rates = {"one_gpu_output_tokens_per_s": rate_of([one]), "two_gpus_output_tokens_per_s": rate_of([two])}
    tell({"shape": shape.name, **rates, "ratio": round(rate_of([two]) / rate_of([one]), 3)})


def run_side_by_side(setup: Setup, shape: Shape, name: str, changes: list[Row], requests: int) -> list[Row]:
    """Start equal runs together, in separate processes that do not see each other's locks."""
    folders, runs = [], []
    gate = setup.folder / f"{name}-gate"
    for number, change in enumerate(changes):
        source = {"kind": "synthetic", "count": requests, "prompt_tokens": 64, "output_tokens": 128, "seed": number}
        spec = {
            "name": name,
            "model": str(setup.build_model(shape)),
            "prompts": {"source": source},
            "sampling": {"temperature": 0, "ignore_eos": True},
            "engine": {"device": setup.device, "order": "given", "args": {**setup.make_args(shape), **change}},
        }
        folders.append(setup.folder / f"{name}-{number}")
        runs.append(start_run(spec, folders[-1], gate))
    open_gate(gate, folders, runs)
    found = []
    for folder, run in zip(folders, runs, strict=True):
        run.communicate()
        if run.returncode:
            raise RuntimeError(f"{name} failed: {(folder / 'run.log').read_text()[-1000:]}")
        found += query(Settings(data_dir=folder / "data", lock_dir=folder / "locks"), GENERATED)
    return found


def rate_of(rows: list[Row]) -> float:
    """Compute output tokens/s from the first request to the last answer over all runs."""
    span = max(row["ended_s"] for row in rows) - min(row["began_s"] for row in rows)
    return round(float(sum(row["output_tokens"] for row in rows)) / span, 1)


def compare_sides(alone: Row, both: list[Row]) -> Row:
    """Compute rates, and the share of the time in which both worked: they start together, but may end apart."""
    overlap = min(row["ended_s"] for row in both) - max(row["began_s"] for row in both)
    span = max(row["ended_s"] for row in both) - min(row["began_s"] for row in both)
    rates: dict[str, Any] = {"alone_output_tokens_per_s": rate_of([alone]), "two_output_tokens_per_s": rate_of(both)}
    together = sum(float(row["output_tokens"]) / (row["ended_s"] - row["began_s"]) for row in both)
    return {
        **rates,
        "two_while_each_worked_output_tokens_per_s": round(together, 1),
        "overlap_share": round(max(overlap, 0.0) / span, 3),
        "ratio": round(rates["two_output_tokens_per_s"] / rates["alone_output_tokens_per_s"], 3),
        "answered": [row["answered"] for row in (alone, *both)],
    }
