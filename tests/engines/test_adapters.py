"""LoRA adapters answer as plain torch does with merged weights, and one that does not act is refused."""

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine_kit import (
    ARGS,
    GREEDY,
    Control,
    Reference,
    by_id,
    open_async,
    open_engine,
    parts_of,
    stamps_of,
    with_core,
)
from run_kit import request_of

from assayline.adapter import find_adapter
from assayline.clock import RunClock
from assayline.engines.messages import Generate
from assayline.engines.pool import EnginePool
from assayline.errors import EngineError, ModelError, SpecError
from assayline.records import Request

RANK, ALPHA = 4, 8
TARGETS = ("q_proj", "v_proj")
BLOCK = 32
"""Tokens in a block of the prefix cache."""


def write_adapter(folder: Path, base: Path, seed: int, scale: float = 0.3, extra: int = 0, **config: Any) -> Path:
    """An adapter as PEFT saves it; `extra` makes its matrices too wide for the base."""
    import torch
    from safetensors.torch import load_file, save_file

    random, tensors = torch.Generator().manual_seed(seed), {}
    for name, weight in load_file(base / "model.safetensors").items():
        if any(name.endswith(f"{target}.weight") for target in TARGETS):
            rows, columns = weight.shape
            part = f"base_model.model.{name.removesuffix('.weight')}"
            tensors[f"{part}.lora_A.weight"] = torch.randn(RANK, columns + extra, generator=random) * 0.3
            tensors[f"{part}.lora_B.weight"] = torch.randn(rows, RANK, generator=random) * scale
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    given = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": TARGETS, "bias": "none", **config}
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "org/base", **given}))
    return folder


def merge(reference: Reference, adapter: Path | None) -> dict[str, Any]:
    """The base's weights with an adapter's matrices added."""
    from safetensors.torch import load_file

    merged = dict(reference._weights)
    added = load_file(adapter / "adapter_model.safetensors") if adapter else {}
    for name in (name for name in added if name.endswith("lora_A.weight")):
        part = name.removesuffix("lora_A.weight")
        weight = part.removeprefix("base_model.model.") + "weight"
        merged[weight] = merged[weight] + ALPHA / RANK * added[f"{part}lora_B.weight"] @ added[name]
    return merged


def decode(weights: dict[str, Any], request: Request) -> list[int]:
    """Greedy tokens in plain torch, without a stop."""
    import torch

    from examples.tiny_llama import compute_logits

    found = list(request.prompt_token_ids)
    with torch.no_grad():
        for _ in range(request.sampling["max_tokens"]):
            ids = torch.tensor([found])
            logits = compute_logits(weights, ids, torch.ones_like(ids, dtype=torch.bool)).view(len(found), -1)
            found.append(int(logits[-1].argmax()))
    return found[len(request.prompt_token_ids) :]


@pytest.fixture(scope="module")
def adapters(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    made = {name: write_adapter(folder / name, tiny_model, seed) for seed, name in enumerate("abc")}
    return {**made, "zero": write_adapter(folder / "zero", tiny_model, 9, scale=0.0)}


@pytest.fixture(scope="module")
def requests() -> list[Request]:
    sampling = {**GREEDY, "max_tokens": 6, "ignore_eos": True}
    return [request_of(n, [1, 5 + n, *range(20, 20 + BLOCK), 30 + 2 * n, 7], **sampling) for n in range(6)]


@pytest.fixture(scope="module")
def expected(reference: Reference, adapters: dict[str, Path], requests: list[Request]) -> dict[str, list[list[int]]]:
    """Answers of the base and of each adapter, which all differ."""
    folders = {"base": None, **{name: adapters[name] for name in "abc"}}
    found = {name: [decode(merge(reference, folder), each) for each in requests] for name, folder in folders.items()}
    assert len({json.dumps(answers) for answers in found.values()}) == len(found)
    return found


def lora(folder: Path | None, base: Path) -> dict[str, Any]:
    """The part of an order that a spec's adapter adds."""
    args = find_adapter(str(folder), base).args if folder else {"enable_lora": True, "max_lora_rank": 8}
    return {"args": {**ARGS, "block_size": BLOCK, **args}, "adapter": folder and str(folder)}


@pytest.mark.vllm
@pytest.mark.parametrize("open_one", [open_engine, open_async])
def test_adapters_and_the_base_share_an_engine_and_answer_as_merged_weights_do(
    open_one, tiny_model, adapters, requests, expected, tmp_path
):
    """Each run that takes the engine over finds nothing of the run before: no prefixes, no counts, another clock."""
    found, hosts, control = {}, set(), Control()
    with EnginePool() as pool:
        for number, name in enumerate(("a", "base", "b", "c", "a")):
            order = lora(adapters.get(name), tiny_model) | {"clock": RunClock.start(), "engine_generation": number}
            log = tmp_path / f"{number}.log"
            with closing(open_one(tiny_model, log, control, run_id=f"{number}", pool=pool, **order)) as engine:
                hosts.add(engine.host_pid)
                assert engine.facts.details.get("kept_from") == ("0" if number else None)
                control.samples.clear()
                answers = by_id(engine.generate(requests))
                found[name] = [answers[request.request_id].output_token_ids for request in requests]
                assert not any(answer.cached_tokens for answer in answers.values())
                [again] = engine.generate([replace(requests[0], request_id="again")])
                assert again.cached_tokens == BLOCK
                rows = [*answers.values(), again]
                assert control.samples[-1].output_tokens == sum(row.output_tokens or 0 for row in rows)
                assert {row.engine_generation for row in rows} == {number}
                stamps = [stamp for row in rows for stamp in stamps_of(row)]
                assert 0 <= min(filter(None, stamps)) <= max(filter(None, stamps)) <= order["clock"].now_s()
        assert found == expected and len(hosts) == 1
        with pytest.raises(SpecError, match="changes nothing: the log-probabilities of 16 tokens are the same"):
            open_one(tiny_model, tmp_path / "zero.log", pool=pool, **lora(adapters["zero"], tiny_model))


@pytest.mark.vllm
@pytest.mark.rare
def test_a_server_of_ours_answers_by_the_adapter(tiny_model, adapters, requests, expected, tmp_path):
    async def answer(core: Any) -> list[Any]:
        return [await core.answer(Generate(request, 0.0, 1)) for request in requests]

    order = parts_of("server", tiny_model, tmp_path / "log", **lora(adapters["b"], tiny_model))["order"]
    assert [row.output_token_ids for row in with_core(order, answer)] == expected["b"]
    zero = parts_of("server", tiny_model, tmp_path / "log", **lora(adapters["zero"], tiny_model))["order"]
    with pytest.raises(SpecError, match="changes nothing"):
        with_core(zero, answer)


@pytest.mark.vllm
def test_an_adapter_that_vllm_refuses_is_an_error_of_the_spec_and_one_that_ends_the_engine_is_not(tiny_model, tmp_path):
    """The recovery must see an engine that dies, which may lack memory."""
    high = write_adapter(tmp_path / "high", tiny_model, 1)
    order = {"args": {**ARGS, "enable_lora": True, "max_lora_rank": 1}, "adapter": str(high)}
    with pytest.raises(SpecError, match="vLLM refuses the adapter"):
        open_engine(tiny_model, tmp_path / "engine.log", **order)
    wide = write_adapter(tmp_path / "wide", tiny_model, 1, extra=8)
    order = {"args": {**ARGS, "enable_lora": True, "max_lora_rank": 8}, "adapter": str(wide)}
    with pytest.raises(EngineError, match=r"size of tensor a \(128\) must match the size of tensor b \(136\)"):
        open_engine(tiny_model, tmp_path / "engine.log", **order)


def test_find_adapter_refuses_other_folders_and_what_does_not_fit(tiny_model, tmp_path):
    wide = write_adapter(tmp_path / "wide", tiny_model, 1, extra=8)
    with pytest.raises(
        ModelError, match=r"q_proj is made for 136 features, the model has 128\. hint: its base was org/b"
    ):
        find_adapter(str(wide), tiny_model)
    with pytest.raises(ModelError, match="describes 'IA3', not a LoRA adapter"):
        find_adapter(str(write_adapter(tmp_path / "ia3", tiny_model, 1, peft_type="IA3")), tiny_model)
    with pytest.raises(ModelError, match=r"no adapter_config.json in it"):
        find_adapter(str(tiny_model), tiny_model)
    with pytest.raises(ModelError, match="neither a folder nor a readable Hugging Face adapter"):
        find_adapter(str(tmp_path / "none"), tiny_model)
    fits = write_adapter(tmp_path / "fits", tiny_model, 1)
    (fits / "adapter_model.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(ModelError, match="not a readable safetensors file"):
        find_adapter(str(fits), tiny_model)
    (fits / "adapter_model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"it has none of adapter_model.safetensors"):
        find_adapter(str(fits), tiny_model)
    (fits / "adapter_config.json").write_text("[]")
    with pytest.raises(ModelError, match="not a JSON object"):
        find_adapter(str(fits), tiny_model)
