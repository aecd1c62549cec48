"""A tiny chat model that really hears: built and trained here, on one CPU core, in about a minute.

It has the layout of Qwen2-Audio, which vLLM loads without torchaudio. It says how high the beeps of a sound are and how
many there are, of one sound or of two (examples/hearing.py). It was trained on sounds of one second.

Run: python -m examples.tiny_alm [--output DIR] [--force]
"""

from pathlib import Path

from examples.tiny_folder import ROOT, describe_recipe, ensure_folder, run_command

SOURCES = ("tiny_alm", "tiny_qwen2_audio", "hearing", "media_rows", "tiny_media", "tiny_tower")
STEPS, BATCH, RATE = 240, 24, 0.01


def ensure_tiny_alm(folder: Path | None = None, *, seed: int = 0, force: bool = False, steps: int = STEPS) -> Path:
    """The folder of the finished model, built now unless it is there."""
    recipe = describe_recipe(SOURCES, seed, steps)

    def build(new: Path) -> None:
        from examples.tiny_media import build_folder
        from examples.tiny_qwen2_audio import SENSE

        facts = {"recipe": recipe, "seed": seed, "steps": steps}
        build_folder(new, SENSE, facts, batch=BATCH, rate=RATE, at_least=0.98 if steps >= STEPS else 0)

    return ensure_folder(folder or ROOT / ".cache" / "tiny-alm", recipe, build, force)


if __name__ == "__main__":
    run_command("examples.tiny_alm", __doc__, ensure_tiny_alm)
