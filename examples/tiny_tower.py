"""The encoder of the tiny multimodal models in plain torch: a transformer over patches or frames.

Both architectures have the same parts under different names, so the names are parameters of a layer.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

SIZE, INNER, HEADS = 64, 128, 2  # 32 wide, as in the Llama


@dataclass(frozen=True)
class LayerNames:
    """Names of a layer's parts, and its activation."""

    before_attention: str
    before_mlp: str
    mlp: str
    activate: Callable[[Tensor], Tensor]


def build_linear(generator: torch.Generator, name: str, rows: int, columns: int, spread: float) -> dict[str, Tensor]:
    """Return untrained weights of a matrix with a bias."""
    weight = torch.randn(rows, columns, generator=generator) * spread
    return {f"{name}.weight": weight, f"{name}.bias": torch.zeros(rows)}


def build_norm(name: str) -> dict[str, Tensor]:
    """Return an untrained layer norm, which only normalizes."""
    return {f"{name}.weight": torch.ones(SIZE), f"{name}.bias": torch.zeros(SIZE)}


def build_layer(generator: torch.Generator, layer: str, names: LayerNames) -> dict[str, Tensor]:
    """Return untrained weights of a layer, which starts as the identity."""
    weights = build_norm(f"{layer}.{names.before_attention}") | build_norm(f"{layer}.{names.before_mlp}")
    for part in "qkv":
        weights |= build_linear(generator, f"{layer}.self_attn.{part}_proj", SIZE, SIZE, 0.12)
    weights |= build_linear(generator, f"{layer}.self_attn.out_proj", SIZE, SIZE, 0.0)
    weights |= build_linear(generator, f"{layer}.{names.mlp}fc1", INNER, SIZE, 0.12)
    return weights | build_linear(generator, f"{layer}.{names.mlp}fc2", SIZE, INNER, 0.0)


def apply_linear(weights: dict[str, Tensor], name: str, vectors: Tensor) -> Tensor:
    """Apply a matrix, and its bias if it has one."""
    return functional.linear(vectors, weights[f"{name}.weight"], weights.get(f"{name}.bias"))


def apply_norm(weights: dict[str, Tensor], name: str, vectors: Tensor, epsilon: float) -> Tensor:
    """Apply a layer norm."""
    return functional.layer_norm(vectors, (SIZE,), weights[f"{name}.weight"], weights[f"{name}.bias"], epsilon)


def apply_layer(weights: dict[str, Tensor], layer: str, names: LayerNames, vectors: Tensor, epsilon: float) -> Tensor:
    """Apply a layer with bidirectional attention."""
    normed = apply_norm(weights, f"{layer}.{names.before_attention}", vectors, epsilon)
    parts = (apply_linear(weights, f"{layer}.self_attn.{part}_proj", normed) for part in "qkv")
    query, key, value = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
    mixed = functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
    vectors = vectors + apply_linear(weights, f"{layer}.self_attn.out_proj", mixed)
    normed = apply_norm(weights, f"{layer}.{names.before_mlp}", vectors, epsilon)
    inner = names.activate(apply_linear(weights, f"{layer}.{names.mlp}fc1", normed))
    return vectors + apply_linear(weights, f"{layer}.{names.mlp}fc2", inner)
