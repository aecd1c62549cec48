"""The tiny ALM in plain torch, with the architecture of Qwen2-Audio: spectra through an audio tower, then a Llama.

A second of audio has 100 frames of 16 mel bands, which become 25 vectors in place of an `<|AUDIO|>`. vLLM passes
windows of 30 seconds and masks the padding; training computes only the clip's frames. Qwen2 is a Llama with three more
biases, which are saved as zeros. Weights are saved under vLLM's names.
"""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from examples.hearing import QUESTIONS, RATE, SECONDS, draw_look, draw_sound
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

BANDS, WINDOW, HOP, LONGEST_S = 16, 400, 160, 30
FRAMES = RATE * SECONDS // HOP
VECTORS = FRAMES // 4  # the second convolution and the pooling halve
AUDIO, START, STOP = "<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"
EPSILON = 1e-5
LAYER = "audio_tower.layers.0"
NAMES = LayerNames("self_attn_layer_norm", "final_layer_norm", "", functional.gelu)


def build_weights(seed: int) -> dict[str, Tensor]:
    """Return untrained weights of the audio tower and of the projector to the Llama."""
    generator = torch.Generator().manual_seed(seed)
    weights = build_linear(generator, "audio_tower.conv1", SIZE, BANDS * 3, 0.14)
    weights |= build_linear(generator, "audio_tower.conv2", SIZE, SIZE * 3, 0.07)
    for name in ("audio_tower.conv1.weight", "audio_tower.conv2.weight"):
        weights[name] = weights[name].unflatten(1, (-1, 3))
    weights |= build_layer(generator, LAYER, NAMES) | build_norm("audio_tower.layer_norm")
    size = LAYOUT["hidden_size"]
    return weights | build_linear(generator, "multi_modal_projector.linear", size, SIZE, 0.08)


@functools.cache
def mel_filters() -> Tensor:
    """Return the mel filter bank of Whisper's feature extractor, the weight of each frequency in each band."""
    from transformers.audio_utils import mel_filter_bank

    bank = mel_filter_bank(WINDOW // 2 + 1, BANDS, 0.0, RATE / 2, RATE, norm="slaney", mel_scale="slaney")
    return torch.from_numpy(bank).float().T


def compute_spectra(sounds: list[np.ndarray]) -> Tensor:
    """Compute Whisper's log-mel spectra, with the frames of silence after the clip that its last frames depend on."""
    samples = functional.pad(torch.from_numpy(np.stack(sounds)).float() / 32768, (0, 4 * HOP))
    window = torch.hann_window(WINDOW)
    power = torch.stft(samples, WINDOW, HOP, window=window, return_complex=True)[..., :-1].abs() ** 2
    logs = (mel_filters() @ power).clamp(min=1e-10).log10()
    return (torch.maximum(logs, logs.amax((1, 2), keepdim=True) - 8) + 4) / 4


@functools.cache
def places() -> Tensor:
    """Return Whisper's sinusoidal position embeddings, a row per position."""
    half = SIZE // 2
    turns = torch.exp(-np.log(10000) / (half - 1) * torch.arange(half))
    angles = torch.outer(torch.arange(LONGEST_S * RATE // HOP // 2), turns)
    return torch.cat([angles.sin(), angles.cos()], 1)


def encode_sounds(weights: dict[str, Tensor], sounds: list[np.ndarray]) -> Tensor:
    """Return the vectors of all clips, [clips × vectors, hidden size]."""
    hidden = compute_spectra(sounds)
    for name, stride in (("audio_tower.conv1", 1), ("audio_tower.conv2", 2)):
        kernel, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
        hidden = functional.gelu(functional.conv1d(hidden, kernel, bias, stride, padding=1))
    hidden = hidden.transpose(1, 2)[:, : FRAMES // 2] + places()[: FRAMES // 2]
    hidden = apply_layer(weights, LAYER, NAMES, hidden, EPSILON)
    pooled = hidden.unflatten(1, (-1, 2)).mean(2)
    normed = apply_norm(weights, "audio_tower.layer_norm", pooled, EPSILON)
    return apply_linear(weights, "multi_modal_projector.linear", normed).flatten(0, 1)


def save_outside(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights under vLLM's names, including untrained ones."""
    added = {"audio_tower.embed_positions.weight": places()}
    for number in range(LAYERS):
        zeros = torch.zeros(LAYOUT["hidden_size"])
        added |= {f"model.layers.{number}.self_attn.{part}_proj.bias": zeros.clone() for part in "qkv"}
    own = ("audio_tower.", "multi_modal_projector.")
    named = (weights | added).items()
    return {name if name.startswith(own) else f"language_model.{name}": weight for name, weight in named}


def describe_model(tokenizer: Any) -> dict[str, Any]:
    """Return the content of config.json."""
    audio = {
        "model_type": "qwen2_audio_encoder",
        "num_mel_bins": BANDS,
        "d_model": SIZE,
        "encoder_ffn_dim": INNER,
        "encoder_layers": 1,
        "encoder_attention_heads": HEADS,
        "max_source_positions": len(places()),
    }
    text = CONFIG | {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "num_hidden_layers": LAYERS,
    }
    return {
        "architectures": ["Qwen2AudioForConditionalGeneration"],
        "model_type": "qwen2_audio",
        "dtype": "float32",
        "audio_config": audio,
        "text_config": text,
        "audio_token_index": tokenizer.convert_tokens_to_ids(AUDIO),
    }


def write_processor(folder: Path) -> None:
    """Return the configuration of audio processing for transformers and vLLM."""
    kind = {"feature_extractor_type": "WhisperFeatureExtractor", "processor_class": "Qwen2AudioProcessor"}
    sizes = {"feature_size": BANDS, "n_fft": WINDOW, "hop_length": HOP, "chunk_length": LONGEST_S}
    write_json(folder / "preprocessor_config.json", {**kind, **sizes, "sampling_rate": RATE})
    write_json(folder / "processor_config.json", {"processor_class": "Qwen2AudioProcessor"})


SENSE = Sense(
    name="tiny ALM",
    modality="audio",
    mark=f"{START}{AUDIO}{STOP}",
    placeholder=AUDIO,
    expanded=f"{START}{AUDIO * VECTORS}{STOP}",
    specials=(AUDIO, START, STOP),
    questions=QUESTIONS,
    draw_look=draw_look,
    draw_medium=draw_sound,
    build_weights=build_weights,
    encode=encode_sounds,
    save_outside=save_outside,
    describe_model=describe_model,
    write_processor=write_processor,
)
