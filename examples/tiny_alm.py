"""A tiny chat model that really hears. It was trained here, on one CPU core, in about a minute.

It has the layout of Qwen2-Audio, which vLLM loads without torchaudio. It says how high the beeps of a sound are and how
many there are, of one sound or of two (examples/hearing.py). It was trained on sounds of one second.

Its weights come with the project (tiny_weights.py); `--force` trains it again.

Run: python -m examples.tiny_alm [--output DIR] [--force]
"""

from pathlib import Path

from examples.tiny_folder import ROOT, describe_recipe, ensure_folder, run_command, write_stamp
from examples.tiny_weights import Weights, read_weights

SOURCES = ("tiny_alm", "tiny_qwen2_audio", "hearing", "media_rows", "tiny_media", "tiny_tower")
NAME, STEPS, BATCH, RATE = "tiny-alm", 240, 24, 0.01


def name_recipe(seed: int, steps: int) -> str:
    """What the model is made by."""
    return describe_recipe(SOURCES, seed, steps)


def train_weights(seed: int, steps: int) -> tuple[Weights, float]:
    """The trained weights, and their accuracy."""
    from examples import tiny_media
    from examples.tiny_qwen2_audio import SENSE

    at_least = 0.98 if steps >= STEPS else 0
    return tiny_media.train_weights(SENSE, seed, steps, batch=BATCH, rate=RATE, at_least=at_least)


def ensure_tiny_alm(folder: Path | None = None, *, seed: int = 0, force: bool = False, steps: int = STEPS) -> Path:
    """The folder of the finished model, built now unless it is there."""
    recipe = name_recipe(seed, steps)

    def build(new: Path) -> None:
        from examples.tiny_media import save_folder
        from examples.tiny_qwen2_audio import SENSE

        weights, accuracy = (None if force else read_weights(NAME, recipe)) or train_weights(seed, steps)
        save_folder(new, SENSE, weights)
        write_stamp(new, recipe=recipe, seed=seed, steps=steps, accuracy=accuracy)

    return ensure_folder(folder or ROOT / ".cache" / NAME, recipe, build, force)


if __name__ == "__main__":
    run_command("examples.tiny_alm", __doc__, ensure_tiny_alm)
