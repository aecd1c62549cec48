"""Nights of a real model with answers that flip, judged by own history and, next to it, by pairs.

    python -m benchmarks.real_nights [--nights 40] [--data FOLDER]

Every night asks the same questions in another order and with another `max_concurrency`, in bfloat16. Answers flip by
sampling at a low temperature; at 0 they do not on a CPU, whose kernels round equally in batches of 16 or more. One more
night is of a copy whose weight matrices have Gaussian noise of 1% of their standard deviation. Nights in FOLDER are not
repeated.

The nights from the eleventh on are judged by those before them. A fault turns a share of all stored scores from right
to wrong, DRAWS times in each of these nights. Pairs are compared by McNemar's test with the night before. Both tests
have the level of a night.
"""

import argparse
import json
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np

from assayline.engines.pool import EnginePool
from assayline.run.driver import FrontEnd, evaluate
from assayline.settings import Settings, load_settings
from assayline.spec.file import parse_spec
from assayline.stats.nights import FEWEST_NIGHTS, judge_nights, name_lost
from assayline.stats.pairs import describe_pairs
from assayline.store.database import connect
from assayline.store.manifest import NEVER
from benchmarks.statistics_accuracy import compare
from benchmarks.statistics_history import LEVEL, lose

ROOT = Path(__file__).parents[1]
MODEL = ROOT / ".cache" / "models" / "SmolLM2-135M-Instruct"
CONCURRENCY = (16, 32, 64)
LOSSES = (0.01, 0.02, 0.05)
TEMPERATURE = 0.1
DRAWS = 20
QUESTIONS = 400
EXAMPLES = "7 + 5 = 12\n9 - 4 = 5\n6 * 3 = 18\n11 + 8 = 19\n20 - 8 = 12\n4 * 5 = 20\n"
NOISY = "noisy"
SCORES = """
    select name, source_id, value
    from runs
    inner join score using (run_id)
    inner join prompt using (run_id, prompt_id)
"""


def list_questions(number: int) -> list[dict[str, str]]:
    """Return sums, differences and products in a fixed random order."""
    numbers = [(a, b) for a in range(2, 26) for b in range(2, 26)]
    made = [(f"{a} + {b}", a + b) for a, b in numbers]
    made += [(f"{a} - {b}", a - b) for a, b in numbers if a > b]
    made += [(f"{a} * {b}", a * b) for a, b in numbers if a <= 20 and b <= 20]
    random.Random(1).shuffle(made)
    return [{"id": question, "question": question, "answer": str(answer)} for question, answer in made[:number]]


def plan_night(name: str, model: Path, rows: list[dict[str, str]], concurrency: int) -> dict[str, Any]:
    """Return the spec of a night."""
    args = {"dtype": "bfloat16", "max_model_len": 256, "max_num_seqs": max(CONCURRENCY), "enforce_eager": True}
    return {
        "name": name,
        "model": str(model),
        "prompts": {
            "source": {"kind": "inline", "rows": rows},
            "columns": {"target": "answer", "id": "id"},
            "template": EXAMPLES + "{{ question }} =",
        },
        "chat": {"template": "plain"},
        "scorers": ["exact_match"],
        "sampling": {"temperature": TEMPERATURE, "max_tokens": 5, "stop": ["\n"]},
        "engine": {
            "device": "cpu",
            "order": "given",
            "env": {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"},
            "max_concurrency": concurrency,
            "args": {**args, "kv_cache_memory_bytes": 2**29, "block_size": 32},
        },
    }


def add_noise(model: Path, folder: Path, share: float, seed: int = 1) -> Path:
    """Write a copy of a model whose weight matrices have noise of a share of their standard deviation."""
    import torch
    from safetensors.torch import load_file, save_file

    torch.manual_seed(seed)
    shutil.copytree(model, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    weights = load_file(model / "model.safetensors")
    for name, matrix in weights.items():
        if matrix.ndim == 2:
            exact = matrix.float()
            weights[name] = (exact + share * exact.std() * torch.randn(exact.shape)).to(matrix.dtype)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def run_nights(settings: Settings, nights: int) -> None:
    """Do the nights that are left, and the one of the noisy copy, with one engine for each model."""
    rows, front = list_questions(QUESTIONS), FrontEnd(settings)
    done = {name for name, *_ in query(settings, "select name from runs where state = 'completed'")}
    noisy = settings.data_dir / "noisy"
    with EnginePool() as engines:
        for name in [f"night {number + 1}" for number in range(nights)] + [NOISY]:
            if name in done:
                continue
            if name == NOISY and not noisy.exists():
                add_noise(MODEL, noisy, 0.01)
            dice = random.Random(name)
            mixed, concurrency = dice.sample(rows, len(rows)), dice.choice(CONCURRENCY)
            spec = plan_night(name, noisy if name == NOISY else MODEL, mixed, concurrency)
            evaluate(parse_spec(spec), front, NEVER, engines=engines)
            print(f"{name}: {concurrency} at once", file=sys.stderr, flush=True)


def query(settings: Settings, statement: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query; none without a database."""
    if not settings.database_path.exists():
        return []
    with connect(settings.database_path, 30, read_only=True) as connection:
        return connection.execute(statement).fetchall()


def read_lost(settings: Settings, nights: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the lost scores of the nights, nights × prompts, and those of the noisy copy."""
    found: dict[str, dict[str, float]] = {}
    for name, source, value in query(settings, SCORES):
        found.setdefault(name, {})[source] = 1 - value
    prompts = sorted(found[NOISY])
    lost = np.array([[found[name][one] for one in prompts] for name in [f"night {n + 1}" for n in range(nights)]])
    return lost, np.array([found[NOISY][one] for one in prompts])


def judge_by_pairs(night: np.ndarray, before: np.ndarray) -> list[bool]:
    """Return which rows of a night fail against the night before."""
    rows = compare(np.asarray(before - night, float))
    return [describe_pairs(row, 0.0).judge(2 * LEVEL) == "fail" for row in rows]


def measure(lost: np.ndarray, noisy: np.ndarray, dice: np.random.Generator) -> dict[str, Any]:
    """Return alarms of the nights as they were, and the shares of faults that are found."""
    judged = range(FEWEST_NIGHTS, len(lost))
    p_value = judge_nights(lost[None]).p_value[0, FEWEST_NIGHTS:]
    share = lost.mean(axis=0)
    report: dict[str, Any] = {
        "nights": len(lost),
        "questions": lost.shape[1],
        "accuracy": 1 - float(share.mean()),
        "questions that flip": int(((share > 0) & (share < 1)).sum()),
        "flips a night": float(np.abs(np.diff(lost, axis=0)).sum(axis=1).mean()),
        "alarms": {
            "judged": len(judged),
            "own history": int((p_value <= LEVEL).sum()),
            "lowest p": float(p_value.min()),
            "pairs": sum(judge_by_pairs(lost[1:], lost[:-1])[FEWEST_NIGHTS - 1 :]),
        },
        "found": {},
    }
    for loss in LOSSES:
        own, pairs, named, right = [], [], 0, 0
        for night in judged:
            nights = np.repeat(lost[None, : night + 1], DRAWS, axis=0)
            chosen = lose(dice, nights, loss)
            after = judge_nights(nights)
            is_found = after.p_value[:, -1] <= LEVEL
            own += is_found.tolist()
            pairs += judge_by_pairs(nights[:, -1], nights[:, -2])
            for place in np.flatnonzero(is_found):
                names, _, _ = name_lost(nights[place, -1], lost[:night].mean(axis=0), after.rate[place])
                named, right = named + int(names.sum()), right + int((names & chosen[place]).sum())
        precision = right / named if named else None
        shares = {"own history": float(np.mean(own)), "pairs": float(np.mean(pairs)), "named are lost": precision}
        report["found"][f"{loss:.0%}"] = shares
    last = judge_nights(np.vstack([lost, noisy])[None])
    report["noisy"] = {
        "accuracy": 1 - float(noisy.mean()),
        "own history p": float(last.p_value[0, -1]),
        "pairs": judge_by_pairs(noisy[None], lost[-1:])[0],
        "level": LEVEL,
    }
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nights", type=int, default=40)
    parser.add_argument("--data", type=Path, default=ROOT / ".cache" / "real_nights")
    options = parser.parse_args()
    settings = load_settings().model_copy(update={"data_dir": options.data})
    run_nights(settings, options.nights)
    lost, noisy = read_lost(settings, options.nights)
    print(json.dumps({"benchmark": "real_nights", **measure(lost, noisy, np.random.default_rng(1))}))


if __name__ == "__main__":
    main()
