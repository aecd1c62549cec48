"""The tiny models' trained weights, which come with the project: nobody waits for a training that others have done.

They are kept in half precision in weights/, and used where the recipe is the one they were trained by; a changed recipe
trains anew. Whoever changed one runs this, and commits what it writes.

Run: python -m examples.tiny_weights
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).with_name("weights")
Weights = dict[str, np.ndarray]


def read_weights(name: str, recipe: str) -> tuple[Weights, Any] | None:
    """The weights, in single precision, and the accuracy measured with them; None if they are not of this recipe."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(FOLDER / f"{name}.safetensors", "numpy") as file:
            facts = file.metadata()
            if facts["recipe"] != recipe:
                return None
            weights = {key: file.get_tensor(key).astype(np.float32) for key in file.keys()}  # noqa: SIM118
            return weights, json.loads(facts["accuracy"])
    except (OSError, SafetensorError):  # not there, or cut short
        return None


def write_weights(name: str, recipe: str, weights: Mapping[str, np.ndarray], accuracy: Any) -> None:
    """Keep what training left, which half precision holds without a loss (see tiny_training.train)."""
    from safetensors.numpy import save_file

    FOLDER.mkdir(exist_ok=True)
    halves = {key: weight.astype(np.float16) for key, weight in weights.items()}
    save_file(halves, FOLDER / f"{name}.safetensors", {"recipe": recipe, "accuracy": json.dumps(accuracy)})


def main() -> None:
    """Train every tiny model, and keep its weights."""
    from examples import tiny_alm, tiny_model, tiny_vlm

    for module in (tiny_model, tiny_vlm, tiny_alm):
        recipe = module.name_recipe(0, module.STEPS)
        write_weights(module.NAME, recipe, *module.train_weights(0, module.STEPS))
    for path in sorted(FOLDER.iterdir()):
        print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
