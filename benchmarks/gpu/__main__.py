"""Check throughput and crash recovery of the pipeline on a GPU, in one command.

    python -m benchmarks.gpu [--parts throughput,memory] [--minutes 8] [--out FOLDER]
    python -m benchmarks.gpu --device cpu --layers 2 --hidden 64      rehearse the same code without a GPU

Works without a network: models with random weights (shapes of 0.5B and 8B, bf16) are generated. Each part runs in a
separate process with a time limit; findings before the limit count. The last line is JSON. The folder gets it as
gpu.json, with a page gpu.md and the ends of all logs in logs.tar.gz, updated after each part.
"""

import argparse
import io
import json
import os
import signal
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from assayline.clock import utc_now
from assayline.engines.devices.nvidia import list_gpus
from assayline.engines.devices.watch import DeviceMemory
from benchmarks.gpu.machine import describe_machine
from benchmarks.gpu.page import write_page
from benchmarks.gpu.parts import CPU_PATIENCE, PARTS, Part, run_part
from benchmarks.gpu.setup import LARGE, SMALL, Row, Setup, make_tiny

MEMORY_WAIT_S = 15.0
LOG_BYTES = 200_000


def main(arguments: list[str] | None = None) -> int:
    """Run the check. Return the exit code: 0 if every part passed or was skipped."""
    options = parse_arguments(arguments)
    gpus = tuple(list_gpus())
    device = options.device
    if device == "cuda" and not gpus:
        sys.exit(
            "gpu-check: no GPU found. hint: install an NVIDIA driver and the package nvidia-ml-py, or rehearse on "
            "the CPU with: make gpu-check DEVICE=cpu"
        )
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, lambda number, _: sys.exit(128 + number))
    if device == "cpu":
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # so that parallel engines leave each other the cores
    else:
        os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "1")  # the default since vLLM 0.29; older ones must be asked
    with tempfile.TemporaryDirectory(prefix="assayline-gpu-") as name:
        shapes = (SMALL, LARGE) if device == "cuda" else (make_tiny(options.layers, options.hidden),)
        setup = Setup(
            device, gpus if device == "cuda" else (), shapes, options.pairs, Path(name), json.loads(options.engine_args)
        )
        patience = options.patience or (1.0 if device == "cuda" else CPU_PATIENCE)
        report = check(setup, choose_parts(options.parts), options.minutes, patience, options.out)
    print(json.dumps(report))
    return 0 if all(part["state"].startswith(("done", "skipped")) for part in report["parts"].values()) else 1


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="device; cpu rehearses the check")
    parser.add_argument("--parts", help=f"comma-separated parts (default: all): {', '.join(p.name for p in PARTS)}")
    parser.add_argument(
        "--minutes", type=float, default=8.0, help="minutes for all parts together, multiplied by --patience"
    )
    parser.add_argument(
        "--patience",
        type=float,
        help=f"factor for all limits (default: 1; {CPU_PATIENCE:g} on a CPU, where engines start slowly)",
    )
    parser.add_argument("--pairs", type=int, default=2, help="pairs of measurements per comparison")
    parser.add_argument("--layers", type=int, default=2, help="layers of the rehearsal's model")
    parser.add_argument("--hidden", type=int, default=64, help="hidden size of the rehearsal's model")
    parser.add_argument(
        "--engine-args", default="{}", help="JSON of vLLM arguments that override those of every engine"
    )
    parser.add_argument("--out", type=Path, default=Path("data/gpu-check"), help="folder for page, JSON and logs")
    return parser.parse_args(arguments)


def choose_parts(names: str | None) -> list[Part]:
    """Return the requested parts in their usual order. Exits for unknown names."""
    if names is None:
        return list(PARTS)
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if unknown := set(wanted) - {part.name for part in PARTS}:
        sys.exit(
            f"gpu-check: unknown part {', '.join(sorted(unknown))}. hint: {', '.join(part.name for part in PARTS)}."
        )
    return [part for part in PARTS if part.name in wanted]


def check(setup: Setup, parts: list[Part], minutes: float, patience: float, out: Path) -> Row:
    """Run all parts in sequence. Each gets its limit times `patience`, or the remaining time."""
    out.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    until = started + 60 * minutes * patience
    report: Row = {
        "benchmark": "gpu",
        "at": utc_now()[:16].replace("T", " ") + " UTC",
        "device": setup.device,
        "shapes": [shape.name for shape in setup.shapes],
        "machine": describe_machine(),
        "seconds": 0.0,
        "parts": {},
    }
    memory = DeviceMemory(setup.gpus)
    for part in parts:
        left_s = until - time.monotonic()
        limit_s = min(part.limit_s * patience, left_s)
        print(f"{part.title}: at most {max(limit_s, 0):.0f} s", flush=True)
        if limit_s <= 0:
            found = {"state": "not reached: no time left for all parts", "seconds": 0.0, "rows": []}
        else:
            found = run_part(part, setup, limit_s, lambda row: print(f"  {json.dumps(row, default=str)}", flush=True))
        found["memory_is_back"] = memory.wait_until_back(MEMORY_WAIT_S, lambda: False)
        print(f"  {found['state']}, {found['seconds']:.0f} s", flush=True)
        report["parts"][part.name] = found
        report["seconds"] = round(time.monotonic() - started, 1)
        keep(report, setup.folder, out)
    return report


def keep(report: Row, folder: Path, out: Path) -> None:
    """Write the findings so far: JSON, page, and the ends of all logs in one archive."""
    (out / "gpu.json").write_text(json.dumps(report) + "\n")
    (out / "gpu.md").write_text(write_page(report))
    with tarfile.open(out / "logs.tar.gz", "w:gz") as archive:
        for log in sorted(folder.rglob("*.log")):
            end = log.read_bytes()[-LOG_BYTES:]
            member = tarfile.TarInfo(str(log.relative_to(folder)))
            member.size = len(end)
            archive.addfile(member, io.BytesIO(end))


if __name__ == "__main__":
    sys.exit(main())
