"""The tiny models' Llama in plain torch: weights, forward pass and training step. Weights have transformers' names.

Importing the model from transformers and an optimizer from torch may take half as long as the training. This one also
computes the last layer only at positions to predict.
"""

import torch
from torch import Tensor
from torch.nn import functional

from examples.tiny_shape import EPSILON, HEADS, LAYOUT, ROTATION
from examples.tiny_tokenizer import VOCABULARY

RATE_OTHERS = 0.003
Seen = tuple[int, Tensor]


def build_weights(seed: int, layers: int = LAYOUT["num_hidden_layers"]) -> dict[str, Tensor]:
    """Return untrained weights under transformers' names. Layers start as the identity, and other weights are larger
    than transformers' 0.02: both shorten the training."""
    size, inner = LAYOUT["hidden_size"], LAYOUT["intermediate_size"]
    generator = torch.Generator().manual_seed(seed)

    def draw(rows: int, spread: float) -> Tensor:
        return torch.randn(rows, size, generator=generator) * spread

    weights = {"model.embed_tokens": draw(VOCABULARY, 0.3), "lm_head": draw(VOCABULARY, 0.02)}
    for layer in (f"model.layers.{number}" for number in range(layers)):
        weights |= {f"{layer}.self_attn.{part}_proj": draw(size, 0.09) for part in "qkv"}
        weights |= {f"{layer}.mlp.{part}_proj": draw(inner, 0.09) for part in ("gate", "up")}
        weights |= {f"{layer}.self_attn.o_proj": torch.zeros(size, size)}
        weights |= {f"{layer}.mlp.down_proj": torch.zeros(size, inner)}
        weights |= {f"{layer}.{part}_layernorm": torch.ones(size) for part in ("input", "post_attention")}
    weights["model.norm"] = torch.ones(size)
    return {f"{name}.weight": weight.requires_grad_() for name, weight in weights.items()}


def compute_logits(weights: dict[str, Tensor], ids: Tensor, asked: Tensor, seen: Seen | None = None) -> Tensor:
    """Return the logits at the positions of a mask of the ids' shape. Attention is causal.

    Media are placeholder ids, and vectors that replace them, in the order of the batch.
    """
    size, heads = LAYOUT["hidden_size"], HEADS["num_attention_heads"]
    layers = sum(name.startswith("model.layers.") and name.endswith(".self_attn.q_proj.weight") for name in weights)
    turns = ROTATION ** -(torch.arange(0, size // heads, 2) * heads / size)
    angles = torch.outer(torch.arange(ids.shape[1]), turns)
    cos, sin = angles.cos(), angles.sin()

    def apply(name: str, vectors: Tensor) -> Tensor:
        return functional.linear(vectors, weights[f"{name}.weight"])

    def norm(name: str, vectors: Tensor) -> Tensor:
        return functional.rms_norm(vectors, (size,), weights[f"{name}.weight"], EPSILON)

    def rotate(vectors: Tensor) -> Tensor:
        one, two = vectors.chunk(2, -1)
        return torch.cat([one * cos - two * sin, two * cos + one * sin], -1)

    hidden = functional.embedding(ids, weights["model.embed_tokens.weight"])
    if seen is not None:
        placeholder, vectors = seen
        hidden = hidden.masked_scatter((ids == placeholder)[..., None], vectors)
    for number in range(layers):
        layer = f"model.layers.{number}"
        normed = norm(f"{layer}.input_layernorm", hidden)
        parts = (apply(f"{layer}.self_attn.{part}_proj", normed) for part in "qkv")
        query, key, value = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(rotate(query), rotate(key), value, is_causal=True)
        mixed = mixed.transpose(1, 2).flatten(2)
        if number == layers - 1:
            hidden, mixed = hidden[asked], mixed[asked]
        hidden = hidden + apply(f"{layer}.self_attn.o_proj", mixed)
        normed = norm(f"{layer}.post_attention_layernorm", hidden)
        gated = functional.silu(apply(f"{layer}.mlp.gate_proj", normed)) * apply(f"{layer}.mlp.up_proj", normed)
        hidden = hidden + apply(f"{layer}.mlp.down_proj", gated)
    return apply("lm_head", norm("model.norm", hidden))


class Optimizer:
    """Muon for the layers' matrices, Adam for all other weights."""

    def __init__(self, weights: dict[str, Tensor], rate_matrices: float = 0.02) -> None:
        self.weights, self.rate_matrices, self.steps = weights, rate_matrices, 0
        self.means = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        self.squares = {name: torch.zeros_like(weight) for name, weight in weights.items()}

    @torch.no_grad()
    def step(self, share: float) -> None:
        """Update the weights by their gradients, at a share of the full rates, and clear the gradients."""
        self.steps += 1
        for name, weight in self.weights.items():
            if weight.grad is None:
                raise ValueError(f"{name} has no gradient: call backward() before step()")
            if ".layers." in name and weight.ndim == 2:
                step_muon(weight, weight.grad, self.means[name], self.rate_matrices * share)
            else:
                moments = self.means[name], self.squares[name]
                step_adam(weight, weight.grad, *moments, RATE_OTHERS * share, self.steps)
            weight.grad = None

    @torch.no_grad()
    def round(self) -> None:
        """Round the weights to half precision."""
        for weight in self.weights.values():
            weight.copy_(weight.half())


def step_muon(weight: Tensor, gradient: Tensor, mean: Tensor, rate: float) -> None:
    """Muon's step: a nearly orthogonal update, which needs half of Adam's steps. (torch's Muon uses bfloat16.)"""
    mean.lerp_(gradient, 0.1)
    update = gradient.lerp(mean, 0.9)
    tall = update.shape[0] > update.shape[1]
    update = (update.mT if tall else update) / (update.norm() + 1e-7)
    for _ in range(4):  # Newton-Schulz iterations with Muon's coefficients
        gram = update @ update.mT
        update = update.addmm(gram.addmm(gram, gram, beta=-4.7750, alpha=2.0315), update, beta=3.4445)
    scale = max(1.0, weight.shape[0] / weight.shape[1]) ** 0.5
    weight.mul_(1 - 0.1 * rate).sub_(update.mT if tall else update, alpha=rate * scale)


def step_adam(weight: Tensor, gradient: Tensor, mean: Tensor, square: Tensor, rate: float, step: int) -> None:
    """Adam's step."""
    mean.lerp_(gradient, 0.1)
    square.lerp_(gradient.square(), 0.05)
    weight.addcdiv_(mean, (square / (1 - 0.95**step)).sqrt_().add_(1e-8), value=-rate / (1 - 0.9**step))
