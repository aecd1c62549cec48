"""Copies of a run's folder, made by any tool while the run grows: the same command resumes each of them."""

import base64
import itertools
import json
import random
import shutil
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from media_kit import encode, picture
from run_kit import FAKE, complete, query, rows_of, settings_in, vanish, work

from assayline import files
from assayline.api import evaluate
from assayline.errors import StoreError
from assayline.run.begin import begin_evaluation
from assayline.run.order import LENGTHS_NAME
from assayline.run.rebuild import rebuild_run
from assayline.run.resume import is_complete
from assayline.settings import Settings
from assayline.spec.evaluation import EvalSpec
from assayline.store.manifest import MANIFEST_NAME, read_manifest
from assayline.store.parts import list_parts

pytestmark = pytest.mark.slow
ROWS = 24


@pytest.fixture
def spec(tmp_path: Path, make_spec: Any, modest_model: Path) -> EvalSpec:
    """Rows with images inside, and one that cannot become a request."""
    images = [f"data:image/png;base64,{base64.b64encode(encode(picture(8, 8, 'L', n))).decode()}" for n in range(6)]
    images[5] = "gone.png"
    rows = [{"i": images[n] if n < 6 else None, "q": f"{n} {'x' * n}", "answer": "x"} for n in range(ROWS)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found: EvalSpec = make_spec(
        model=str(modest_model),
        prompts={
            "source": {"kind": "file", "path": str(tmp_path / "rows.jsonl")},
            "columns": {"images": "i", "target": "answer"},
            "template": "{{ q }}",
        },
        chat={"placeholders": {"image": "<image>"}, "template": "plain"},
        engine=FAKE,
        shard_requests=3,
    )
    return found


class Copy:
    """A copy that is being made: the files that were there at its beginning, in any order, or some of them."""

    def __init__(self, run_dir: Path, data_dir: Path, is_cut: bool, dice: random.Random) -> None:
        self.source, self.run_dir = run_dir, data_dir / "runs" / run_dir.name
        self.run_dir.mkdir(parents=True)
        self.names = sorted(path.relative_to(run_dir) for path in run_dir.rglob("*") if path.is_file())
        dice.shuffle(self.names)
        if is_cut:
            del self.names[dice.randrange(1, len(self.names)) :]

    def copy(self, count: int) -> None:
        for name in self.names[:count]:
            (self.run_dir / name).parent.mkdir(parents=True, exist_ok=True)
            try:
                shutil.copy2(self.source / name, self.run_dir / name)
            except FileNotFoundError:  # renamed meanwhile
                continue
        del self.names[:count]


@pytest.fixture
def copies(
    step: int, spec: EvalSpec, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> list[Copy]:
    """Copies that began at every step-th write of a file, except telemetry, and went on at later ones; half are cut."""
    complete(spec, settings)  # its lengths order the next run
    dice, made, lock, writes = random.Random(4), [], threading.Lock(), itertools.count()
    runs_dir, sync = settings.data_dir / "runs", files.sync_folder
    known = {path.name for path in runs_dir.iterdir()}

    def look(folder: Path) -> None:
        sync(folder)
        with lock:
            for run_dir in runs_dir.iterdir():
                is_ours = run_dir.name not in known and (run_dir / MANIFEST_NAME).exists()
                if is_ours and folder.name != "telemetry" and next(writes) % step == 0:
                    made.append(Copy(run_dir, tmp_path / f"copy-{len(made)}" / "data", len(made) % 2 > 0, dice))
            for copy in made:
                copy.copy(dice.randrange(4))

    monkeypatch.setattr(files, "sync_folder", look)
    evaluate(spec, resume="never", settings=settings.model_copy(update={"flush_rows": 1}))
    monkeypatch.setattr(files, "sync_folder", sync)
    for copy in made:
        copy.copy(len(copy.names))
    assert len(made) >= 46 // step
    return made


def answers_of(run_dir: Path) -> Counter[str]:
    return Counter(json.dumps(row) for row in rows_of(run_dir, "completions"))


def resume(copy: Copy, spec: EvalSpec, here: Settings, is_finished: bool) -> int:
    """Repeat the command where a copy is, and complete the run; return how many answers were copied."""
    for name in (MANIFEST_NAME, LENGTHS_NAME):
        if not (copy.run_dir / name).exists():
            shutil.copy2(copy.source / name, copy.run_dir)
    before = answers_of(copy.run_dir)
    if is_complete(copy.run_dir, read_manifest(copy.run_dir)):
        assert rebuild_run(copy.run_dir, here.database_path, 10).manifest.state == "completed"
    else:
        evaluation = begin_evaluation(spec, here)
        assert evaluation.run_id == copy.run_dir.name, evaluation.notes
        counts = evaluation.prepare()
        if not evaluation.is_answered:
            work(evaluation)
        if is_finished:
            assert evaluation.finish(counts).answered_requests == ROWS
            assert query(here, "select is_sound from request_integrity") == [(True,)]
        else:  # most of the time is that of loading and of metrics
            evaluation.writer.flush()
            vanish(evaluation)
    after = answers_of(copy.run_dir)
    assert before <= after, "a copied answer is lost"
    assert after.total() == len({json.loads(row)["request_id"] for row in after}) == ROWS
    return before.total()


@pytest.mark.parametrize("step", [10, pytest.param(1, marks=pytest.mark.rare)])
def test_evaluate_resumes_a_copy_made_at_any_moment_in_any_order(copies, spec, tmp_path, step):
    kept = [
        resume(copy, spec, settings_in(tmp_path / f"copy-{number}"), number * step % 8 == 0)
        for number, copy in enumerate(copies)
    ]
    assert min(kept) == 0 and max(kept) > ROWS // 2


def test_begin_evaluation_names_the_file_that_an_unfinished_copy_lacks(spec, settings):
    complete(spec, settings)
    begun = begin_evaluation(spec, settings, "never")
    begun.prepare()
    vanish(begun)
    for path in (begun.run_dir / LENGTHS_NAME, *list_parts(begun.run_dir, "requests")[:1]):
        path.unlink()
    with pytest.raises(StoreError, match=r"has no lengths.parquet, .* hint: copy the complete folder"):
        begin_evaluation(spec, settings)
    (begun.run_dir / MANIFEST_NAME).unlink()
    other = begin_evaluation(spec, settings)
    assert other.run_id != begun.run_id and f"{begun.run_dir} has part files but no run.json" in other.notes[-1]
