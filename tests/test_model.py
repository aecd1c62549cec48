"""Identity is content: what changes an answer changes the id, and nothing else does."""

import shutil
import sys
from pathlib import Path

import pytest

from assayline.adapter import find_adapter
from assayline.benchmark.campaign import identify_config
from assayline.digests import digest_json, digest_text
from assayline.errors import ModelError
from assayline.model import identify_model, identify_spec_model
from assayline.spec.file import load_spec, override_spec, parse_spec

ROWS = {"source": {"kind": "inline", "rows": [{"prompt": "Hi"}]}}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for name, content in {
        "config.json": b'{"hidden_size": 8}',
        "model.safetensors": bytes(range(256)) * 8,
        "tokenizer.json": b"{}",
        "tokenizer_config.json": b"{}",
        "chat_template.jinja": b"{{ messages }}",
        "README.md": b"hello",
    }.items():
        (folder / name).write_bytes(content)
    return folder


def test_a_flipped_byte_of_the_weights_is_another_model_with_the_same_tokenizer(model):
    before = identify_model(str(model))
    weights = bytearray((model / "model.safetensors").read_bytes())
    weights[100] ^= 1
    (model / "model.safetensors").write_bytes(weights)
    after = identify_model(str(model))
    assert after.model_id != before.model_id
    assert after.tokenizer_id == before.tokenizer_id


@pytest.mark.parametrize("name", ["chat_template.jinja", "tokenizer.json", "tokenizer_config.json", "tekken.json"])
def test_files_that_render_prompts_are_part_of_both_ids(model, name):
    before = identify_model(str(model))
    (model / name).write_text('{"changed": 1}')
    after = identify_model(str(model))
    assert after.model_id != before.model_id and after.tokenizer_id != before.tokenizer_id


def test_the_config_is_part_of_the_model(model):
    before = identify_model(str(model))
    (model / "config.json").write_text('{"hidden_size": 16}')
    assert identify_model(str(model)).model_id != before.model_id


@pytest.mark.parametrize(
    "name",
    [
        *("modeling_mine.py", "modules/attention.py", "1_Pooling/config.json", "shards/model-00002.safetensors"),
        *("hf_quant_config.json", "quantize_config.json", "quant_config.json", "a.format.of.tomorrow"),
    ],
)
def test_identify_model_covers_every_file_and_subfolder(model, name):
    ids = [identify_model(str(model))]
    (model / name).parent.mkdir(exist_ok=True)
    for content in ("a", "b"):
        (model / name).write_text(content)
        ids.append(identify_model(str(model)))
    assert len({one.model_id for one in ids}) == 3
    assert len({one.tokenizer_id for one in ids}) == 1


def test_identify_model_covers_the_code_of_a_tokenizer_in_both_ids(model):
    before = identify_model(str(model))
    (model / "tokenization_mine.py").write_text("a")
    after = identify_model(str(model))
    assert after.model_id != before.model_id and after.tokenizer_id != before.tokenizer_id


@pytest.mark.parametrize(
    "name",
    [".cache/huggingface/config.json", "__pycache__/mine.py", "checkpoint-500/model.safetensors", "README.md", "a.png"],
)
def test_identify_model_leaves_out_what_no_engine_reads(model, name):
    before = identify_model(str(model))
    (model / name).parent.mkdir(parents=True, exist_ok=True)
    (model / name).write_text("a")
    assert identify_model(str(model)) == before


def test_identify_model_keeps_the_id_of_a_folder_without_code_and_subfolders(model):
    """Runs of earlier versions pair with new ones by it."""
    assert identify_model(str(model)).model_id == "sha256:5fd906985705f9723e66d4c687ec5e86"


def test_content_that_moved_to_another_file_is_another_model(model):
    before = identify_model(str(model))
    (model / "model.safetensors").rename(model / "model-00001.safetensors")
    assert identify_model(str(model)).model_id != before.model_id


def test_the_same_files_elsewhere_are_the_same_model(model, tmp_path):
    copy = tmp_path / "elsewhere"
    shutil.copytree(model, copy)
    (copy / "README.md").write_text("another readme decides nothing")
    (copy / "config.json").touch()
    before, after = identify_model(str(model)), identify_model(str(copy))
    assert (after.model_id, after.tokenizer_id) == (before.model_id, before.tokenizer_id)
    assert before.model_id.startswith("sha256:") and after.folder == copy


def test_model_folder_without_config_is_rejected(model):
    (model / "config.json").unlink()
    with pytest.raises(ModelError, match=r"no config\.json in it\. hint: "):
        identify_model(str(model))


def test_identify_model_names_an_adapter_as_such(model):
    (model / "config.json").rename(model / "adapter_config.json")
    with pytest.raises(ModelError, match=r"is an adapter, not a model\. hint: set `model` to the base and `adapter`"):
        identify_model(str(model))


def test_a_servers_name_for_a_model_is_part_of_its_id(model):
    """Unless it is the model's own: then the server has what the folder has."""

    def identify(served):
        server = {"url": "http://127.0.0.1:1/v1", "model": served}
        spec = parse_spec({"model": str(model), "prompts": ROWS, "engine": {"backend": "server", "server": server}})
        return spec.model_name, identify_spec_model(spec).model_id, identify_config(spec, known)

    known, own = {}, identify_model(str(model)).model_id
    asked = [identify(served) for served in (None, "model", str(model), "base", "tide")]
    names, ids, configs = zip(*asked, strict=True)
    assert names == (str(model),) * 3 + ("base", "tide")
    assert ids == (own,) * 3 + (f"served:base@{own}", f"served:tide@{own}")
    assert len(set(configs)) == 5 and len(known) == 3


def test_model_error_names_an_invalid_config(model):
    (model / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json is not valid JSON"):
        identify_model(str(model))


def test_a_config_that_is_a_folder_is_named(model):
    (model / "config.json").unlink()
    (model / "config.json").mkdir()
    with pytest.raises(ModelError, match=r"config\.json is not valid JSON: .*Is a directory"):
        identify_model(str(model))


def test_weights_that_cannot_be_read_are_named(model):
    (model / "model.safetensors").unlink()
    (model / "model.safetensors").symlink_to("/proc/self/mem")  # a file that nobody can read from its start
    with pytest.raises(ModelError, match=r"Cannot read .*model\.safetensors"):
        identify_model(str(model))


@pytest.mark.parametrize("name", ["./missing", "/no/such/folder", "~/no/such/folder", "a/b/c"])
def test_a_folder_that_is_not_there_is_said_to_be_no_folder(name):
    with pytest.raises(ModelError, match=f"Model path {name} is not a folder. hint: "):
        identify_model(name)


def test_a_hub_id_that_cannot_be_read_says_what_to_check():
    with pytest.raises(ModelError, match=r"neither a folder nor a readable Hugging Face model.*HF_TOKEN"):
        identify_model("assayline-tests/there-is-no-such-model")


@pytest.mark.parametrize("find", [identify_model, lambda name: find_adapter(name, None)])
def test_a_hub_id_names_the_extra_when_huggingface_hub_is_not_installed(monkeypatch, find):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(
        ModelError, match=r"huggingface_hub.* is not installed\. hint: pip install 'assayline\[client\]'"
    ):
        find("org/name")


def test_digests_ignore_the_order_of_keys_and_take_any_text():
    assert digest_json({"a": 1, "b": [2]}) == digest_json({"b": [2], "a": 1}) != digest_json({"a": 1, "b": [3]})
    assert digest_text("\ud800") != digest_text("?")
    assert len(digest_text("")) == 32


@pytest.mark.parametrize("fields", [{"model": "org/base", "adapter": "org/one@v1"}, {"model": "org/base:org/one@v1"}])
def test_an_adapter_is_named_in_two_ways(fields):
    spec = parse_spec({"prompts": ROWS, **fields})
    assert (spec.model, spec.adapter, spec.model_name) == ("org/base", "org/one@v1", "org/base:org/one@v1")


def test_another_model_has_no_adapter_unless_it_names_one(tmp_path):
    (path := tmp_path / "spec.yaml").write_text("model: a\nadapter: b\nprompts: {source: {kind: inline, rows: [{}]}}\n")
    for change, expected in (("c", None), ("c:d", "d")):
        assert override_spec(load_spec(path), {"model": change}).adapter == expected
        assert load_spec(path, {"model": change}).adapter == expected
    assert load_spec(path, {"adapter": "d", "model": "c"}).model_name == "c:d"


def test_a_name_with_a_colon_on_a_running_server_and_a_folder_with_one_are_models(tmp_path):
    server = {"backend": "server", "server": {"url": "http://h/v1", "endpoint": "chat"}}
    assert parse_spec({"prompts": ROWS, "model": "llama3.2:3b", "engine": server}).adapter is None
    (folder := tmp_path / "a:b").mkdir()
    assert parse_spec({"prompts": ROWS, "model": str(folder)}).model == str(folder)


def test_the_adapters_files_are_part_of_the_models_id(model, tmp_path):
    ids = [identify_model(str(model)).model_id]
    (folder := tmp_path / "adapter").mkdir()
    for rank, weights in ((4, b"0"), (4, b"1"), (9, b"1")):
        (folder / "adapter_config.json").write_text(f'{{"peft_type": "LORA", "r": {rank}}}')
        (folder / "adapter_model.bin").write_bytes(weights)
        found = identify_model(str(model), adapter=str(folder))
        assert found.model_id.startswith(f"{ids[0]}+lora:") and found.adapter is not None
        ids.append(found.model_id)
    assert len(set(ids)) == 4
    assert found.adapter.args == {"enable_lora": True, "max_lora_rank": 16}
