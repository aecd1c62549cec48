"""Format a check as a Markdown page, from its line of JSON, for docs/design/performance.md.

python -m benchmarks.gpu.page < gpu.json > gpu.md
"""

import json
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.gpu.limits import describe_phases
from benchmarks.gpu.memory import describe_engines
from benchmarks.gpu.parts import PARTS
from benchmarks.gpu.setup import Row

Column = tuple[str, Callable[[Row], Any]]


def take(name: str) -> Callable[[Row], Any]:
    """Make a column of the value with this name; empty if missing."""
    return lambda row: row.get(name)


def ratio(name: str) -> Callable[[Row], str | None]:
    """Make a column of the median and range over the pairs."""

    def show(row: Row) -> str | None:
        if row.get(f"{name}_ratio_median") is None:
            return None
        least, most = row[f"{name}_ratio_range"]
        return f"{row[f'{name}_ratio_median']:.3f} ({least:.3f} to {most:.3f})"

    return show


def show_working(row: Row) -> str | None:
    """Format tokens/s of the pipeline without the fixed cost of a run, which is small for a long run."""
    if "given_working_output_tokens_per_s" not in row:
        return None
    return ", ".join(f"{row[f'{side}_working_output_tokens_per_s']:,.0f}" for side in ("given", "longest_first"))


def show_steps(row: Row) -> str | None:
    """Format engine steps of the three sides."""
    if "raw_steps" not in row:
        return None
    return ", ".join(f"{row[f'{side}_steps']:.0f}" for side in ("raw", "given", "longest_first"))


RECOVERY: list[Column] = [
    ("cause", take("way")),
    ("engines", describe_engines),
    ("context (tokens)", lambda row: ", ".join(map(str, row.get("context_tokens", [])))),
    ("recovery (s)", lambda row: show_sum(row["engines"], "recovery_s")),
    ("requests answered", lambda row: f"{row['answered']} of {row['requests']}"),
    ("each once", lambda row: yes(row["is_sound"])),
    ("memory freed (s)", lambda row: row["memory_back_after_s"] if row["memory_is_back"] else "not back"),
]
COLUMNS: dict[str, list[Column]] = {
    "tests": [("test", take("test")), ("outcome", take("outcome")), ("s", take("seconds")), ("why", take("why"))],
    "handover": [
        ("engine core in", lambda row: "its engine's process" if row["processes"] == "own" else "vLLM's own, async"),
        ("scheduling", take("scheduling")),
        ("check", take("check")),
        ("expected", take("expected")),
        ("found", take("found")),
        ("as expected", lambda row: yes(row["found"] == row["expected"])),
    ],
    "throughput": [
        ("shape", take("shape")),
        (
            "engine core in",
            lambda row: {"own": "its engine's process", "vllm": "vLLM's own"}.get(row["processes"], row["processes"]),
        ),
        ("raw tokens/s", take("raw_output_tokens_per_s")),
        ("file order", take("given_output_tokens_per_s")),
        ("ratio to raw", ratio("given")),
        ("longest first", take("longest_first_output_tokens_per_s")),
        ("ratio to raw", ratio("longest_first")),
        ("both, engine busy", show_working),
        ("steps: raw, file order, longest first", show_steps),
    ],
    "memory": RECOVERY,
    "tight": RECOVERY,
    "sampler": RECOVERY,
    "start": [
        ("shape", take("shape")),
        ("start (s)", take("start_s")),
        ("phases (s)", describe_phases),
        ("first request (s)", take("first_request_s")),
        ("model runner", take("model_runner")),
        ("FlashInfer", lambda row: yes(row["has_flashinfer"])),
        ("torch.compile", lambda row: yes(row["is_compiled"])),
        ("seats", take("max_num_seqs")),
    ],
    "kills": [
        ("engine core in", lambda row: {"own": "its engine's process", "vllm": "vLLM's own"}[row["processes"]]),
        ("memory (MiB)", take("held_mib")),
        ("engine killed: processes exited (s)", take("engine_processes_gone_s")),
        ("answering again (s)", take("answers_again_s")),
        ("run killed: processes exited (s)", take("run_processes_gone_s")),
        ("memory freed (s)", take("memory_back_s")),
        ("requests answered", lambda row: f"{row['answered']} of {row['requests']}" if "answered" in row else "none"),
        ("each once", lambda row: yes(row.get("is_sound"))),
    ],
    "latency": [
        ("shape", take("shape")),
        ("in flight", take("concurrency")),
        ("ITL alone, median (ms)", take("alone_itl_median_ms")),
        ("ours", take("ours_itl_median_ms")),
        ("mean ITL, ours / alone", ratio("itl_mean")),
        ("p99", ratio("itl_p99")),
        ("tokens/s", ratio("throughput")),
        ("steps", ratio("engine_steps")),
    ],
    "curve": [
        ("shape", take("shape")),
        ("seats", take("seats")),
        ("tokens/s", take("output_tokens_per_s")),
        ("ML.ENERGY", take("their_output_tokens_per_s")),
        ("ITL, median (ms)", take("itl_median_ms")),
        ("ML.ENERGY", take("their_itl_median_ms")),
        ("J per output token", take("joules_per_output_token")),
        ("ML.ENERGY", take("their_joules_per_output_token")),
        ("above idle", take("joules_per_output_token_above_idle")),
        ("power: idle, busy (W)", lambda row: f"{row['idle_w']}, {row['working_w']}" if "idle_w" in row else None),
        ("from", take("source")),
    ],
    "sharing": [
        ("shape", take("shape")),
        ("one engine (tokens/s)", take("alone_output_tokens_per_s")),
        ("two engines (tokens/s)", take("two_output_tokens_per_s")),
        ("two engines, each while busy (tokens/s)", take("two_while_each_worked_output_tokens_per_s")),
        ("overlap", lambda row: f"{row['overlap_share']:.0%} of the time"),
        ("two / one", take("ratio")),
    ],
    "tensor_parallel": [
        ("shape", take("shape")),
        ("one GPU (tokens/s)", take("one_gpu_output_tokens_per_s")),
        ("two GPUs (tokens/s)", take("two_gpus_output_tokens_per_s")),
        ("two / one", take("ratio")),
    ],
}


def write_page(report: Row) -> str:
    """Format the page."""
    machine = report["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    gpus = ", ".join(f"{gpu['name']} ({gpu['free_gib']} GiB free)" for gpu in machine["gpus"]) or "no GPU"
    driver = f", driver {machine['driver']}" if machine["driver"] else ""
    lines = [
        f"## {'On a GPU' if report['device'] == 'cuda' else 'GPU check rehearsed on a CPU'}",
        "",
        f"`make gpu-check`, {report['at']}, {report['seconds']:.0f} s: {gpus}{driver}; {machine['cpu']}, "
        f"{machine['memory_gib']} GiB; Linux {machine['kernel']}, Python {machine['python']}; {versions}. Random "
        f"weights, bf16, shapes {', '.join(report['shapes'])}.",
    ]
    for part in PARTS:
        if found := report["parts"].get(part.name):
            lines += ["", f"### {part.title}", "", describe_state(found)]
            good = [row for row in found["rows"] if "failed" not in row]
            if good:
                lines += ["", *write_table(COLUMNS[part.name], good)]
            lines += [f"\nFailed: {row['failed']}" for row in found["rows"] if "failed" in row]
    return "\n".join(lines) + "\n"


def describe_state(found: Row) -> str:
    """Format the final state of a part."""
    state = found["state"][0].upper() + found["state"][1:]
    return (
        f"{state}."
        if found["state"].startswith(("skipped", "stopped"))
        else f"{state}, after {found['seconds']:.0f} s."
    )


def write_table(columns: list[Column], rows: list[Row]) -> list[str]:
    """Format a Markdown table."""
    body = [[show(value(row)) for _, value in columns] for row in rows]
    head = ["| " + " | ".join(header for header, _ in columns) + " |", "|" + "---|" * len(columns)]
    return [*head, *("| " + " | ".join(cells) + " |" for cells in body)]


def show(value: Any) -> str:
    """Format a cell; empty for None."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"
    return str(value).replace("|", "\\|").replace("\n", " ")


def show_sum(rows: list[Row], name: str) -> float:
    """Format the sum of a column; unmeasured values count as 0."""
    return round(sum(row[name] or 0 for row in rows), 2)


def yes(value: object) -> str:
    """Format a Boolean."""
    return "yes" if value else "**no**"


if __name__ == "__main__":
    print(write_page(json.loads(sys.stdin.read().splitlines()[-1])), end="")
