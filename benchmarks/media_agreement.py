"""Our answers about pictures against two others', row by row: the same words, from as many tokens.

    python -m benchmarks.media_agreement [--rows 300]

The tiny VLM answers the questions of examples/seeing.jsonl, and more of the same kind. Ours is a run's way: references,
placeholders, offline engine. The yardsticks are the model's own processor and `generate`, as its authors' page has it,
and lm-evaluation-harness's multimodal model type, which is asked the rows with pictures alone. Exit code 1: something
differs.
"""

import argparse
import json
import random
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from PIL import Image

from assayline.clock import RunClock
from assayline.engines.base import EngineHooks
from assayline.engines.environment import engine_environment
from assayline.engines.messages import Open
from assayline.engines.offline import OfflineEngine
from assayline.engines.process import HostSetup
from assayline.evaluation.prepare import Preparation
from assayline.model import identify_model
from assayline.settings import Settings
from assayline.spec.engine import EngineSpec
from assayline.spec.file import load_spec
from benchmarks.media_harness import ask_harness
from examples.tiny_vlm import ensure_tiny_vlm

ROOT = Path(__file__).resolve().parents[1]


def write_rows(folder: Path, count: int) -> list[dict[str, Any]]:
    """The example's rows, then others: its questions about other pictures of it. Paths are absolute."""
    rows = [json.loads(line) for line in (ROOT / "examples" / "seeing.jsonl").read_text().splitlines()]
    for row in rows:
        pictures = row["image"] if isinstance(row["image"], list) else [row["image"]] * (row["image"] is not None)
        row["image"] = [str(ROOT / "examples" / path) for path in pictures]
    dice = random.Random(0)
    everything = [path for row in rows for path in row["image"]]
    while len(rows) < count:
        row = dice.choice(rows)
        rows.append({**row, "image": [dice.choice(everything) for _ in row["image"]], "answer": None})
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:count]))
    return rows[:count]


def ask_ours(model: Path, folder: Path) -> list[tuple[str, int]]:
    """(text, prompt tokens) of each row, in the order of the rows."""
    overrides = {"model": str(model), "prompts.source.path": str(folder / "rows.jsonl")}
    spec = load_spec(ROOT / "examples" / "seeing.yaml", overrides)
    requests = [request for one in Preparation(spec, identify_model(str(model))) for request in one.ready]
    settings = Settings(data_dir=folder / "data", lock_dir=folder / "locks")
    order = Open(backend="offline", model=str(model), clock=RunClock.start(), args=spec.engine.args)
    setup = HostSetup.of(settings, EngineSpec(), engine_environment(settings, {}, {}), folder / "engine.log")
    with closing(OfflineEngine(order=order, setup=setup, hooks=EngineHooks())) as engine:
        answers = {answer.request_id: answer for answer in engine.generate(requests)}
    assert len(answers) == len(requests)
    found = [answers[request.request_id] for request in requests]
    return [(answer.text or "", answer.prompt_tokens or 0) for answer in found]


def ask_transformers(model: Path, rows: list[dict[str, Any]]) -> list[tuple[str, int]]:
    """The same by the model's processor and `generate`."""
    import torch
    from transformers import AutoModelForImageTextToText, AutoProcessor

    processor = AutoProcessor.from_pretrained(model)
    network = AutoModelForImageTextToText.from_pretrained(model, dtype=torch.float32).eval()
    found = []
    for row in rows:
        content = [*({"type": "image"} for _ in row["image"]), {"type": "text", "text": row["question"]}]
        text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
        pictures = [Image.open(path).convert("RGB") for path in row["image"]]
        inputs = processor(text=text, images=pictures or None, add_special_tokens=False, return_tensors="pt")
        length = inputs["input_ids"].shape[1]
        with torch.no_grad():
            ids = network.generate(**inputs, max_new_tokens=8, do_sample=False)[0, length:]
        found.append((processor.tokenizer.decode(ids, skip_special_tokens=True), length))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=300)
    options = parser.parse_args()
    model = ensure_tiny_vlm()
    with tempfile.TemporaryDirectory(prefix="assayline-media-") as name:
        rows = write_rows(Path(name), options.rows)
        ours = ask_ours(model, Path(name))
        shown = [number for number, row in enumerate(rows) if row["image"]]
        theirs = {
            "transformers": dict(enumerate(ask_transformers(model, rows))),
            "harness": dict(zip(shown, ask_harness(model, Path(name), [rows[at] for at in shown]), strict=True)),
        }
    figures: dict[str, Any] = {"benchmark": "media_agreement"}
    for peer, answers in theirs.items():
        for at, other in answers.items():
            if ours[at] != other:
                print(f"{rows[at]['question']} {rows[at]['image']}: ours {ours[at]}, {peer} {other}")
        figures[peer] = {
            "rows": len(answers),
            "same_text": sum(ours[at][0] == text for at, (text, _) in answers.items()),
            "same_prompt_tokens": sum(ours[at][1] == tokens for at, (_, tokens) in answers.items()),
        }
    print(json.dumps(figures))
    return 0 if all(len(set(found.values())) == 1 for found in (figures[peer] for peer in theirs)) else 1


if __name__ == "__main__":
    sys.exit(main())
