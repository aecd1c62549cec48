"""A tiny chat model with image input, trained by this project on one CPU core in about a minute.

It has the architecture of Idefics3, which vLLM loads without torchvision. It names the colour and the number of squares
in one or two images (examples/seeing.py). Images are resized to fit 32 × 32.

Its weights are part of the repository (tiny_weights.py); `--force` trains it again.

Run: python -m examples.tiny_vlm [--output DIR] [--force]
"""

from pathlib import Path

from examples.tiny_folder import ROOT, describe_recipe, ensure_folder, run_command, write_stamp
from examples.tiny_weights import Weights, read_weights

SOURCES = ("tiny_vlm", "tiny_idefics3", "seeing", "media_rows", "tiny_media", "tiny_tower")
NAME, STEPS, BATCH, RATE = "tiny-vlm", 400, 24, 0.01


def name_recipe(seed: int, steps: int) -> str:
    """Return the model's recipe."""
    return describe_recipe(SOURCES, seed, steps)


def train_weights(seed: int, steps: int) -> tuple[Weights, float]:
    """Train the weights. Return them with their accuracy."""
    from examples import tiny_media
    from examples.tiny_idefics3 import SENSE

    at_least = 0.98 if steps >= STEPS else 0
    return tiny_media.train_weights(SENSE, seed, steps, batch=BATCH, rate=RATE, at_least=at_least)


def ensure_tiny_vlm(folder: Path | None = None, *, seed: int = 0, force: bool = False, steps: int = STEPS) -> Path:
    """Return the model's folder, built if missing."""
    recipe = name_recipe(seed, steps)

    def build(new: Path) -> None:
        from examples.tiny_idefics3 import SENSE
        from examples.tiny_media import save_folder

        weights, accuracy = (None if force else read_weights(NAME, recipe)) or train_weights(seed, steps)
        save_folder(new, SENSE, weights)
        write_stamp(new, recipe=recipe, seed=seed, steps=steps, accuracy=accuracy)

    return ensure_folder(folder or ROOT / ".cache" / NAME, recipe, build, force)


if __name__ == "__main__":
    run_command("examples.tiny_vlm", __doc__, ensure_tiny_vlm)
