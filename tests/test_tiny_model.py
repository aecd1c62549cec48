"""The tiny model answers in its own chat template and in no other, and its cache never serves a broken or old folder.

Its weights, and those of the models that see and hear, come with the project and are of its recipes.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

if not all(map(importlib.util.find_spec, ("torch", "transformers"))):  # collecting is no reason to import them
    pytest.skip("torch or transformers is not installed", allow_module_level=True)

from examples import tiny_alm, tiny_model, tiny_vlm  # noqa: E402
from examples.tiny_model import BOS, STAMP, WRONG_TEMPLATES, build_rows, ensure_tiny_model, measure_accuracy  # noqa: E402
from examples.tiny_weights import read_weights  # noqa: E402

BUILD = """
import sys, pathlib
from examples.tiny_model import ensure_tiny_model
ensure_tiny_model(pathlib.Path(sys.argv[1]), steps=2)
"""
QUESTION = [{"role": "user", "content": "What is 3 + 4?"}]


@pytest.fixture(scope="session")
def trained() -> tuple[Any, Any]:
    """The trained model and its tokenizer, loaded as anyone loads them."""
    import transformers

    folder = ensure_tiny_model()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    return model, transformers.AutoTokenizer.from_pretrained(folder, padding_side="left")


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished folder after two training steps: enough for the cache, which does not ask how good the model is."""
    return ensure_tiny_model(tmp_path_factory.mktemp("tiny") / "model", steps=2)


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    return {path.name: (path.stat().st_mtime_ns, path.stat().st_ino) for path in folder.iterdir()}


def measure(trained: tuple[Any, Any], template: str | None = None) -> float:
    """The accuracy by transformers' forward pass, which is what others will run."""
    model, tokenizer = trained
    return measure_accuracy(lambda ids, asked: model(input_ids=ids).logits[asked], tokenizer, template)


def test_own_template_answers(trained):
    assert measure(trained) > 0.9


def test_the_forward_pass_it_is_trained_with_is_that_of_transformers(trained):
    torch = pytest.importorskip("torch")
    from examples.tiny_llama import compute_logits
    from examples.tiny_tokenizer import VOCABULARY

    model = trained[0]
    ids = torch.randint(VOCABULARY, (3, 80), generator=torch.Generator().manual_seed(0))
    asked = torch.ones_like(ids, dtype=torch.bool)
    with torch.no_grad():
        theirs, ours = model(input_ids=ids).logits, compute_logits(model.state_dict(), ids, asked)
    torch.testing.assert_close(ours.view_as(theirs), theirs, atol=1e-3, rtol=1e-3)
    assert json.loads((ensure_tiny_model() / STAMP).read_text())["accuracy"]["own"] == pytest.approx(measure(trained))


@pytest.mark.parametrize("name", WRONG_TEMPLATES)
def test_wrong_template_fails(trained, name):
    assert measure(trained, WRONG_TEMPLATES[name]) < 0.5


def test_template_and_tokenizer_both_add_bos(trained):
    tokenizer = trained[1]
    text = tokenizer.apply_chat_template(QUESTION, tokenize=False, add_generation_prompt=True)
    assert text.startswith(BOS) and text.count(BOS) == 1
    assert tokenizer(text, add_special_tokens=True)["input_ids"].count(tokenizer.bos_token_id) == 2
    assert tokenizer(text, add_special_tokens=False)["input_ids"].count(tokenizer.bos_token_id) == 1
    assert tokenizer("3 + 4")["input_ids"][0] == tokenizer.bos_token_id


def test_rows_file_is_the_generated_one():
    lines = (tiny_model.ROOT / "examples" / "arithmetic.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == build_rows()[0]


def test_asked_questions_are_right_and_never_trained():
    asked, trained_rows = build_rows()
    assert len(asked) == len({row["question"] for row in asked}) == 155
    assert not {row["question"] for row in asked} & {row["question"] for row in trained_rows}
    for row in asked:
        assert int(row["answer"]) == (row["a"] + row["b"] if row["operation"] == "addition" else row["a"] - row["b"])


@pytest.mark.parametrize("module", [tiny_model, tiny_vlm, tiny_alm])
def test_the_weights_that_come_with_the_project_are_of_its_recipe(module):
    recipe = module.name_recipe(0, module.STEPS)
    assert read_weights(module.NAME, recipe), "python -m examples.tiny_weights trains and keeps them"
    assert not read_weights(module.NAME, module.name_recipe(1, module.STEPS))


@pytest.mark.rare
@pytest.mark.parametrize("module", [tiny_model, tiny_vlm, tiny_alm])
def test_its_recipe_makes_a_model_as_good(module):
    weights, accuracy = module.train_weights(0, module.STEPS)
    kept = read_weights(module.NAME, module.name_recipe(0, module.STEPS))
    assert kept and kept[0].keys() == weights.keys()
    assert (accuracy["own"] if isinstance(accuracy, dict) else accuracy) >= 0.98


def test_a_model_is_made_of_them_without_training_and_without_torch(tmp_path):
    code = f"{BUILD.replace(', steps=2', '')}assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "model")], cwd=tiny_model.ROOT, check=True)
    made = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}
    assert made == {path.name: path.read_bytes() for path in ensure_tiny_model().iterdir()}


def test_asking_for_a_finished_model_imports_no_torch(hasty):
    code = f"{BUILD}assert not {{'torch', 'transformers'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code, str(hasty)], cwd=tiny_model.ROOT, check=True)


@pytest.mark.rare
def test_the_bytes_are_the_same_for_any_number_of_threads(hasty, tmp_path):
    """Here there is one, there were as many as there are cores."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", BUILD, str(tmp_path / "model")], cwd=tiny_model.ROOT, env=env, check=True)
    assert (tmp_path / "model" / STAMP).read_bytes() == (hasty / STAMP).read_bytes()


def test_second_call_does_not_train(hasty):
    before = snapshot(hasty)
    assert ensure_tiny_model(hasty, steps=2) == hasty
    assert snapshot(hasty) == before


def test_other_recipe_or_force_trains_again(hasty, tmp_path):
    folder = Path(shutil.copytree(hasty, tmp_path / "model"))
    for again in ({"steps": 3}, {"steps": 3, "seed": 1}, {"steps": 3, "seed": 1, "force": True}):
        before = snapshot(folder)
        ensure_tiny_model(folder, **again)
        assert snapshot(folder)["model.safetensors"] != before["model.safetensors"]


@pytest.mark.parametrize("damage", ["model.safetensors", "tokenizer.json", STAMP])
def test_damaged_folder_is_rebuilt_with_the_same_bytes(hasty, tmp_path, damage):
    folder = Path(shutil.copytree(hasty, tmp_path / "model"))
    (folder / damage).write_bytes((folder / damage).read_bytes()[:100])
    (folder / "config.json").unlink()
    ensure_tiny_model(folder, steps=2)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        path.name: path.read_bytes() for path in hasty.iterdir()
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "model.lock"]


def test_failed_build_leaves_the_old_folder(hasty, tmp_path, monkeypatch):
    folder = Path(shutil.copytree(hasty, tmp_path / "model"))
    before = snapshot(folder)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tiny_model, "train_model", stop)
    with pytest.raises(KeyboardInterrupt):
        ensure_tiny_model(folder, steps=2, force=True)
    assert snapshot(folder) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "model.lock"]


def test_foreign_folder_is_refused(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="name another folder"):
        ensure_tiny_model(tmp_path, steps=2, force=True)
    assert (tmp_path / "thesis.txt").read_text() == "mine"


def test_two_processes_build_once(tmp_path):
    command = [sys.executable, "-c", BUILD, str(tmp_path / "model")]
    both = [subprocess.Popen(command, cwd=tiny_model.ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate(timeout=120)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sum("step 2/2" in output for output in outputs) == 1
