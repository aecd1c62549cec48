"""Planted faults that a reread must find, and flips that an autopsy must call right, on a real model.

    python -m benchmarks.reread_faults [--prompts 60] [--tokens 48] [--data FOLDER]

An engine in bfloat16 answers short questions greedily. Equal engines with other batches, one of another precision, and
engines with a planted fault read its answers. An engine's own answer would part at the first token that is not its
first choice; these partings are called. Readings in FOLDER are not repeated. The divergence of each prompt and the
partings go to statistics_rereads.json, from which `benchmarks.statistics --parts rereads` draws; the last line printed
has the means as JSON, and the size of a database with a million tokens.
"""

import argparse
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from assayline.comparison.autopsy import read_autopsies
from assayline.engines.pool import EnginePool
from assayline.run.driver import FrontEnd, evaluate
from assayline.run.reread import reread
from assayline.settings import load_settings
from assayline.spec.evaluation import EvalSpec
from assayline.spec.file import override_spec, parse_spec
from assayline.store.database import Connection, connect, read_rows
from assayline.store.manifest import AUTO, Purpose
from assayline.store.measure import read_reading

ROOT = Path(__file__).parents[1]
MODEL = ROOT / ".cache" / "models" / "SmolLM2-135M-Instruct"
TOPICS = (
    "the sea", "a bridge", "bread", "the moon", "a violin", "winter", "bees", "a lighthouse", "chess", "volcanoes",
    "glass", "rivers", "clocks", "maps", "tea", "wool", "iron", "rain", "owls", "trains",
)  # fmt: skip
TASKS = (
    "Explain {} to a child in three sentences.",
    "Write a short story about {}.",
    "List three facts about {}.",
    "Write a poem of four lines about {}.",
    "Why do people like {}? Give two reasons.",
    "Describe {} to somebody who has never seen it.",
)
LAYER = "model.layers.10.self_attn."
GROUP = 32
"""Weights of an int4 group, which share a scale."""


def plant(model: Path, folder: Path, change: Callable[[str, Any], Any]) -> Path:
    """Return a copy of a model whose weight matrices are changed by `change(name, weight)`, in float32."""
    from safetensors.torch import load_file, save_file

    if folder.exists():
        return folder
    copy = shutil.copytree(model, folder.with_suffix(".part"), dirs_exist_ok=True)
    for file in copy.glob("*.safetensors"):
        weights = {
            name: change(name, one.float()).to(one.dtype) if one.ndim == 2 else one
            for name, one in load_file(file).items()
        }
        file.unlink()
        save_file(weights, file, metadata={"format": "pt"})
    return copy.rename(folder)


def add_noise(share: float) -> Callable[[str, Any], Any]:
    """Return a change that adds Gaussian noise of a share of each matrix's standard deviation."""
    import torch

    generator = torch.Generator().manual_seed(1)
    return lambda _, one: one + share * one.std() * torch.randn(one.shape, generator=generator)


def round_to_int4(name: str, weight: Any) -> Any:
    """Round the weights of a linear layer to 16 values per group, the nearest of them; embeddings stay."""
    if "proj" not in name:
        return weight
    groups = weight.reshape(-1, GROUP)
    scale = groups.abs().amax(1, keepdim=True).clamp(min=1e-12) / 7
    return ((groups / scale).round().clamp(-8, 7) * scale).reshape(weight.shape)


def scale_attention(name: str, weight: Any) -> Any:
    """Double the attention logits of one layer."""
    return 2 * weight if name == f"{LAYER}q_proj.weight" else weight


def stretch_rope(model: Path, folder: Path) -> Path:
    """Return a copy of a model with twice its rope_theta."""
    copy = shutil.copytree(model, folder, dirs_exist_ok=True)
    config = json.loads((model / "config.json").read_text())
    config["rope_parameters"]["rope_theta"] *= 2
    (copy / "config.json").unlink()
    (copy / "config.json").write_text(json.dumps(config))
    return copy


def write_adapter(model: Path, folder: Path, size: float = 0.05) -> Path:
    """Write a LoRA adapter of rank 8 with random weights, which changes queries and values by a share of their size."""
    import torch
    from safetensors.torch import load_file, save_file

    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(1)
    tensors = {}
    for name, weight in load_file(model / "model.safetensors").items():
        if "q_proj" in name or "v_proj" in name:
            rows, columns = weight.shape
            first = torch.randn(8, columns, generator=generator)
            second = torch.randn(rows, 8, generator=generator) * size * weight.float().std() / 8**0.5
            root = f"base_model.model.{name.removesuffix('.weight')}"
            tensors |= {f"{root}.lora_A.weight": first, f"{root}.lora_B.weight": second}
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def list_engines(model: Path, data: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the names and fields of equal engines, one of another precision, and engines with a fault."""
    yield "the same, 7 requests at once", {"engine.max_concurrency": 7}
    yield "the same, 20 at once", {"engine.max_concurrency": 20}
    yield "float32", {"engine.args.dtype": "float32"}
    models = data / "models"
    models.mkdir(parents=True, exist_ok=True)
    yield "0.3% noise in the weights", {"model": str(plant(model, models / "noise-0.003", add_noise(0.003)))}
    yield "1% noise", {"model": str(plant(model, models / "noise-0.01", add_noise(0.01)))}
    yield "3% noise", {"model": str(plant(model, models / "noise-0.03", add_noise(0.03)))}
    yield "rope_theta × 2", {"model": str(stretch_rope(model, models / "rope"))}
    yield "attention of one layer × 2", {"model": str(plant(model, models / "attention", scale_attention))}
    yield "wrong adapter", {"adapter": str(write_adapter(model, models / "adapter"))}
    yield "weights rounded to int4", {"model": str(plant(model, models / "int4", round_to_int4))}


def plan_reference(model: Path, prompts: int, tokens: int) -> EvalSpec:
    """Return the spec of the engine that is compared with."""
    rows = [{"question": task.format(topic)} for task in TASKS for topic in TOPICS][:prompts]
    args = {"dtype": "bfloat16", "max_model_len": 512, "max_num_seqs": 32, "enforce_eager": True}
    return parse_spec(
        {
            "name": "reference",
            "model": str(model),
            "prompts": {"source": {"kind": "inline", "rows": rows}, "template": "{{ question }}"},
            "sampling": {"temperature": 0, "max_tokens": tokens},
            "engine": {
                "device": "cpu",
                "env": {"OMP_NUM_THREADS": "2", "VLLM_CPU_OMP_THREADS_BIND": "nobind"},
                "args": {**args, "kv_cache_memory_bytes": 2**29},
            },
        }
    )


WOULD_BE = """
    insert into raw.runs by name
    select runs.* replace ($id as run_id, 'evaluate' as purpose) from raw.runs where run_id = $reading;

    insert into raw.engine_events by name
    select engine_events.* replace ($id as run_id) from raw.engine_events where run_id = $reading;

    insert into raw.requests by name
    select requests.* replace ($id as run_id) from raw.requests where run_id = $reference;

    insert into raw.completions by name
    select
        completions.* replace (
            $id as run_id,
            list_append(completions.output_token_ids[:parted.position], parted.token_id) as output_token_ids
        )
    from raw.completions
    join (
        select request_id, min(position) as position, arg_min(top_token_ids[1], position) as token_id
        from raw.tokens
        where run_id = $reading and top_token_ids[1] <> tokens.token_id
        group by request_id
    ) as parted using (request_id)
    where run_id = $reference
"""
"""A run of an engine's own answers up to their first other token, as far as a reading shows them."""


def read_partings(connection: Connection, reading: str, reference: str) -> list[dict[str, Any]]:
    """Return the calls of the answers of a reading's engine that would part; nothing stays in the database."""
    values = {"id": f"{reading} would answer", "reading": reading, "reference": reference}
    connection.execute("begin")
    try:
        for statement in WOULD_BE.split(";"):
            connection.execute(statement, {name: one for name, one in values.items() if f"${name}" in statement})
        rows = read_autopsies(connection, values["id"], reference)
    finally:
        connection.execute("rollback")
    return [{"noise": row["noise"], "is_tie": row["is_tie"], "place": row["place"]} for row in rows]


def measure_size(database: Path) -> tuple[int, float]:
    """Return the number of stored tokens, and MiB of a database with a million tokens: these, repeated."""
    with tempfile.TemporaryDirectory() as folder:
        large = Path(folder) / "large.duckdb"
        with connect(large, 30) as connection:
            connection.execute(f"attach '{database}' as given (read_only)")
            empty = large.stat().st_size
            ((tokens,),) = connection.execute("select count(*) from given.raw.tokens").fetchall()
            connection.execute(
                "insert into raw.tokens by name select tokens.* replace (run_id || copy as run_id) "
                "from range(1_000_000 // $1 + 1) as copies (copy), given.raw.tokens order by copy limit 1_000_000",
                [tokens],
            )
            connection.execute("checkpoint")
        return tokens, (large.stat().st_size - empty) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--data", type=Path, default=ROOT / ".cache" / "reread-faults")
    options = parser.parse_args()
    settings = load_settings().model_copy(update={"data_dir": options.data.absolute()})
    front, spec = FrontEnd(settings), plan_reference(options.model, options.prompts, options.tokens)
    stored = "select run_id from runs where state = 'completed' and name = ? order by started_at"

    def find(name: str) -> str | None:
        if not settings.database_path.exists():
            return None
        with connect(settings.database_path, 30, read_only=True) as connection:
            return next((row["run_id"] for row in read_rows(connection, stored, name)), None)

    report: dict[str, Any] = {}
    with EnginePool() as engines:
        reference = find(spec.name) or evaluate(spec, front, Purpose(resume=AUTO), engines).run_id
        for name, fields in list_engines(options.model, settings.data_dir):
            reader = override_spec(spec, {"name": name, **fields})
            reading = find(f"{spec.name} read by {name}")
            reading = reading or reread(reference, reader, front, prompts=options.prompts, engines=engines).candidate
            with connect(settings.database_path, 30) as connection:
                rows = read_reading(connection, reading)
                partings = read_partings(connection, reading, reference)
            report[name] = {
                "kl": [float(f"{row['kl']:.4g}") for row in rows],
                "floor": [float(f"{row['floor_kl']:.4g}") for row in rows],
                "partings": [{**one, "noise": float(f"{one['noise']:.4g}")} for one in partings],
            }
            print(f"{name}: {sum(report[name]['kl']) / len(rows):.5f} nats per token", flush=True)
    (ROOT / "benchmarks" / "statistics_rereads.json").write_text(json.dumps(report))
    means = {name: sum(one["kl"]) / len(one["kl"]) for name, one in report.items()}
    tokens, size = measure_size(settings.database_path)
    print(json.dumps({"benchmark": "reread_faults", "kl": means, "tokens": tokens, "mib_per_million_tokens": size}))


if __name__ == "__main__":
    main()
