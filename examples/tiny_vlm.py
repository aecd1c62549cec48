"""A tiny chat model that really sees: built and trained here, on one CPU core, in about a minute.

It has the layout of Idefics3, which vLLM loads without torchvision. It says what colour the squares of a picture have
and how many there are, of one picture or of two (examples/seeing.py). Any picture is fitted into 32 x 32.

Run: python -m examples.tiny_vlm [--output DIR] [--force]
"""

from pathlib import Path

from examples.tiny_folder import ROOT, describe_recipe, ensure_folder, run_command

SOURCES = ("tiny_vlm", "tiny_idefics3", "seeing", "media_rows", "tiny_media", "tiny_tower")
STEPS, BATCH, RATE = 400, 24, 0.01


def ensure_tiny_vlm(folder: Path | None = None, *, seed: int = 0, force: bool = False, steps: int = STEPS) -> Path:
    """The folder of the finished model, built now unless it is there."""
    recipe = describe_recipe(SOURCES, seed, steps)

    def build(new: Path) -> None:
        from examples.tiny_idefics3 import SENSE
        from examples.tiny_media import build_folder

        facts = {"recipe": recipe, "seed": seed, "steps": steps}
        build_folder(new, SENSE, facts, batch=BATCH, rate=RATE, at_least=0.98 if steps >= STEPS else 0)

    return ensure_folder(folder or ROOT / ".cache" / "tiny-vlm", recipe, build, force)


if __name__ == "__main__":
    run_command("examples.tiny_vlm", __doc__, ensure_tiny_vlm)
