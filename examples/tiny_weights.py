"""The trained weights of the tiny models, stored in the repository so that users need not train.

They are stored in half precision in weights/, and used if the recipe is unchanged; a changed recipe is trained again.
After changing a recipe, run this module and commit the files.

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
    """Read the weights, in single precision, and their accuracy; None if they are of another recipe."""
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
    """Store trained weights, which are rounded to half precision (see tiny_training.train)."""
    from safetensors.numpy import save_file

    FOLDER.mkdir(exist_ok=True)
    halves = {key: weight.astype(np.float16) for key, weight in weights.items()}
    save_file(halves, FOLDER / f"{name}.safetensors", {"recipe": recipe, "accuracy": json.dumps(accuracy)})


def main() -> None:
    """Train every tiny model and store its weights."""
    from examples import tiny_alm, tiny_model, tiny_vlm

    for module in (tiny_model, tiny_vlm, tiny_alm):
        recipe = module.name_recipe(0, module.STEPS)
        write_weights(module.NAME, recipe, *module.train_weights(0, module.STEPS))
    for path in sorted(FOLDER.iterdir()):
        print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
