"""The tiny VLM in plain torch, with the architecture of Idefics3: patches through a vision tower, then a Llama.

Four neighbouring patches are joined to one vector, so that an image of 4 × 4 patches becomes four vectors in place of
an `<image>`. Weights are saved under transformers' names.
"""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from examples.seeing import QUESTIONS, SIDE, draw_look, draw_picture
from examples.tiny_folder import write_json
from examples.tiny_media import LAYERS, Sense
from examples.tiny_shape import CONFIG, LAYOUT
from examples.tiny_tower import (
    HEADS,
    INNER,
    SIZE,
    LayerNames,
    apply_layer,
    apply_linear,
    apply_norm,
    build_layer,
    build_linear,
    build_norm,
)

PATCH, JOINED = 8, 2
VECTORS = (SIDE // PATCH // JOINED) ** 2
IMAGE, AROUND, WHOLE, END_OF_UTTERANCE = "<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>"
EPSILON = 1e-6
EMBEDDINGS, LAYER = "vision_model.embeddings", "vision_model.encoder.layers.0"
GELU = functools.partial(functional.gelu, approximate="tanh")
NAMES = LayerNames("layer_norm1", "layer_norm2", "mlp.", GELU)


def build_weights(seed: int) -> dict[str, Tensor]:
    """Return untrained weights of the vision tower and of the connector to the Llama."""
    generator = torch.Generator().manual_seed(seed)
    weights = build_linear(generator, f"{EMBEDDINGS}.patch_embedding", SIZE, 3 * PATCH**2, 0.07)
    kernel = weights[f"{EMBEDDINGS}.patch_embedding.weight"].unflatten(1, (3, PATCH, PATCH))
    places = torch.randn((SIDE // PATCH) ** 2, SIZE, generator=generator) * 0.3
    weights |= {f"{EMBEDDINGS}.patch_embedding.weight": kernel, f"{EMBEDDINGS}.position_embedding.weight": places}
    weights |= build_layer(generator, LAYER, NAMES) | build_norm("vision_model.post_layernorm")
    joined = torch.randn(LAYOUT["hidden_size"], SIZE * JOINED**2, generator=generator) * 0.04
    return weights | {"connector.modality_projection.proj.weight": joined}


def encode_pictures(weights: dict[str, Tensor], pictures: list[np.ndarray]) -> Tensor:
    """Return the vectors of all images, [images × vectors, hidden size]."""
    pixels = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).float().div(127.5).sub(1)
    kernel, bias = (weights[f"{EMBEDDINGS}.patch_embedding.{part}"] for part in ("weight", "bias"))
    patches = functional.conv2d(pixels, kernel, bias, stride=PATCH).flatten(2).transpose(1, 2)
    hidden = patches + weights[f"{EMBEDDINGS}.position_embedding.weight"]
    hidden = apply_layer(weights, LAYER, NAMES, hidden, EPSILON)
    hidden = apply_norm(weights, "vision_model.post_layernorm", hidden, EPSILON)
    across = SIDE // PATCH // JOINED
    blocks = hidden.view(-1, across, JOINED, across, JOINED, SIZE).transpose(2, 3)
    return apply_linear(weights, "connector.modality_projection.proj", blocks.reshape(-1, JOINED**2 * SIZE))


def save_outside(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights under transformers' names."""

    def rename(name: str) -> str:
        if name.startswith("model."):
            return name.replace("model.", "model.text_model.", 1)
        return name if name.startswith("lm_head.") else f"model.{name}"

    return {rename(name): weight for name, weight in weights.items()}


def describe_model(tokenizer: Any) -> dict[str, Any]:
    """Return the content of config.json."""
    vision = {
        "model_type": "idefics3_vision",
        "hidden_size": SIZE,
        "intermediate_size": INNER,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "image_size": SIDE,
        "patch_size": PATCH,
        "layer_norm_eps": EPSILON,
    }
    return {
        "architectures": ["Idefics3ForConditionalGeneration"],
        "model_type": "idefics3",
        "dtype": "float32",
        "vision_config": vision,
        "text_config": CONFIG | {"num_hidden_layers": LAYERS},
        "image_token_id": tokenizer.convert_tokens_to_ids(IMAGE),
        "scale_factor": JOINED,
        "tie_word_embeddings": False,
    }


def write_processor(folder: Path) -> None:
    """Return the configuration of image processing for transformers and vLLM."""
    edge = {"longest_edge": SIDE}
    fitted = {"size": edge, "max_image_size": edge, "do_image_splitting": False}
    scaled = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    kind = {"image_processor_type": "Idefics3ImageProcessor", "processor_class": "Idefics3Processor"}
    write_json(folder / "preprocessor_config.json", kind | fitted | scaled)
    write_json(folder / "processor_config.json", {"processor_class": "Idefics3Processor", "image_seq_len": VECTORS})


SENSE = Sense(
    name="tiny VLM",
    modality="image",
    mark=IMAGE,
    placeholder=IMAGE,
    expanded=f"{AROUND}{WHOLE}{IMAGE * VECTORS}{AROUND}",
    specials=(IMAGE, AROUND, WHOLE, END_OF_UTTERANCE),
    questions=QUESTIONS,
    draw_look=draw_look,
    draw_medium=draw_picture,
    build_weights=build_weights,
    encode=encode_pictures,
    save_outside=save_outside,
    describe_model=describe_model,
    write_processor=write_processor,
)
