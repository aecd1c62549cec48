"""Our answers about pictures against transformers', row by row: the same words, from as many tokens.

    python -m benchmarks.media_agreement [--rows 300]

The tiny VLM answers the questions of examples/seeing.jsonl, and more of the same kind. Ours is a run's way: references,
placeholders, offline engine. The yardstick is the model's own processor and `generate`, as its authors' page has it.
Exit code 1: something differs.
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
from assayline.engines.client import OfflineEngine
from assayline.engines.environment import engine_environment
from assayline.engines.messages import Open
from assayline.engines.process import HostSetup
from assayline.evaluation.prepare import Preparation
from assayline.model import identify_model
from assayline.settings import Settings
from assayline.spec.engine import EngineSpec
from assayline.spec.file import load_spec
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
        theirs = ask_transformers(model, rows)
    for row, one, other in zip(rows, ours, theirs, strict=True):
        if one != other:
            print(f"{row['question']} {row['image']}: ours {one}, transformers {other}")
    pairs = list(zip(ours, theirs, strict=True))
    same_text, same_tokens = (sum(one[at] == other[at] for one, other in pairs) for at in (0, 1))
    figures = {"benchmark": "media_agreement", "rows": len(rows), "same_text": same_text}
    print(json.dumps({**figures, "same_prompt_tokens": same_tokens}))
    return 0 if same_text == same_tokens == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
