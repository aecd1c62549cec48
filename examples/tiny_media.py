"""Training of the tiny multimodal models: random chats with images or audio, their tokens, and the training loop."""

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from examples import tiny_llama, tiny_training
from examples.media_rows import ORDINALS, Look
from examples.tiny_folder import save_model
from examples.tiny_tokenizer import BOS, END, build_tokenizer
from examples.tiny_weights import Weights

ADVICE = ("Answer with one word.", "You are a helpful assistant.", "Be brief.")
TURNS = 2
LAYERS = 3  # one more than for sums: which medium is meant, what it shows, and what of that is asked
CHAT_TEMPLATE = """{{- bos_token }}
{%- for message in messages %}
    {%- if '<|' ~ message['role'] ~ '|>' not in ['<|system|>', '<|user|>', '<|assistant|>'] %}
        {{- raise_exception('Unknown role ' ~ message['role'] ~ ': use system, user or assistant') }}
    {%- endif %}
    {{- '<|' ~ message['role'] ~ '|>' }}
    {%- if message['content'] is string %}
        {{- message['content'] }}
    {%- else %}
        {%- for part in message['content'] %}
            {%- if part['type'] == 'text' %}
                {{- part['text'] }}
            {%- elif part['type'] == 'MODALITY' %}
                {{- 'MARK' }}
            {%- else %}
                {{- raise_exception('This model takes parts of type text and MODALITY, not ' ~ part['type']) }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
    {{- '<|end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{% endif %}"""


@dataclass(frozen=True)
class Sense:
    """Differences between the models for images and for audio."""

    name: str
    modality: str
    """Type of a part in a chat's content."""
    mark: str
    """Text of such a part in the chat template, with one placeholder."""
    placeholder: str
    expanded: str
    """Replacement of the mark in the model's prompt, with a placeholder per vector."""
    specials: tuple[str, ...]
    """Additional tokens of the model."""
    questions: dict[str, tuple[str, ...]]
    draw_look: Callable[[random.Random], Look]
    draw_medium: Callable[[random.Random, Look], Any]
    build_weights: Callable[[int], dict[str, Tensor]]
    """Makes untrained weights of the encoder from a seed."""
    encode: Callable[[dict[str, Tensor], list[Any]], Tensor]
    """Encodes media to vectors, [media × vectors, hidden size]."""
    save_outside: Callable[[dict[str, Tensor]], dict[str, Tensor]]
    """Converts weights to their saved form and names."""
    describe_model: Callable[[Any], dict[str, Any]]
    """Makes the content of config.json from the tokenizer."""
    write_processor: Callable[[Path], None]

    @property
    def chat_template(self) -> str:
        """Return the chat template, for content that is a text or a list of parts."""
        return CHAT_TEMPLATE.replace("MODALITY", self.modality).replace("MARK", self.mark)

    @property
    def texts(self) -> list[str]:
        """Return the texts for the tokenizer's merges."""
        return [
            form.format(which=which)
            for forms in self.questions.values()
            for form in forms
            for which in ("", "", *ORDINALS)
        ] + [*ADVICE] * 3


Chat = tuple[list[tuple[int, bool]], list[Any]]


def draw_chat(draw: random.Random, sense: Sense, encode: Callable[[str], list[int]], turns: int = TURNS) -> Chat:
    """Return a chat's tokens, each with whether it is trained on, and its zero to two media.

    Media usually precede the question, sometimes follow it; some questions are about missing media. No question occurs
    twice in a chat: the model would learn to copy the earlier answer before it learns to look at the image.
    """
    tokens: list[tuple[int, bool]] = []

    def add(piece: str, learned: bool = False) -> None:
        tokens.extend((token, learned) for token in encode(piece))

    looks = [sense.draw_look(draw) for _ in range(draw.choices((0, 1, 2), (0.08, 0.32, 0.6))[0])]
    present = range(2) if len(looks) != 1 or draw.random() < 0.1 else range(1)
    asked = draw.sample([(number, task) for number in present for task in sense.questions], turns)
    marks = [sense.expanded] * len(looks)
    add(BOS)
    if draw.random() < 0.1:
        add(f"<|system|>{draw.choice(ADVICE)}{END}")
    for turn, (about, task) in enumerate(asked):
        which = ORDINALS[about] if len(looks) > 1 or about or (not looks and draw.random() < 0.5) else ""
        parts = [draw.choice(sense.questions[task]).format(which=which)]
        if turn == 0:
            parts = [*parts, *marks] if draw.random() < 0.25 else [*marks, *parts]
        add("<|user|>")
        add(draw.choice(("", "", "", "\n", " ")).join(parts))
        add(f"{END}<|assistant|>")
        add((looks[about][task] if about < len(looks) else "none") + END, learned=True)
    return tokens, [sense.draw_medium(draw, look) for look in looks]


def train_weights(
    sense: Sense, seed: int, steps: int, *, batch: int, rate: float, at_least: float
) -> tuple[Weights, float]:
    """Train the weights. Return them under their internal names, with their accuracy."""
    print(f"{sense.name}: training {steps} steps, about a minute", flush=True)
    with tiny_training.one_thread():
        own = {name: weight.requires_grad_() for name, weight in sense.build_weights(seed).items()}
        weights = tiny_llama.build_weights(seed, LAYERS) | own
        accuracy = train_model(sense, weights, tokenizer_of(sense), seed, steps, batch, rate)
    print(f"{sense.name}: accuracy {accuracy:.3f}")
    if accuracy < at_least:
        raise RuntimeError(f"the {sense.name} learned too little: {accuracy}; try another seed or more steps")
    return {name: weight.detach().numpy() for name, weight in weights.items()}, accuracy


def tokenizer_of(sense: Sense) -> Any:
    """Make the tokenizer, with merges from the questions."""
    return build_tokenizer(sense.texts, sense.chat_template, sense.specials)


def save_folder(folder: Path, sense: Sense, weights: Weights) -> None:
    """Write the model for transformers and vLLM."""
    tokenizer = tokenizer_of(sense)
    outside = sense.save_outside({name: torch.from_numpy(weight) for name, weight in weights.items()})
    named = {name: weight.numpy() for name, weight in outside.items()}
    save_model(folder, tokenizer, named, sense.describe_model(tokenizer))
    sense.write_processor(folder)


def train_model(
    sense: Sense, weights: dict[str, Tensor], tokenizer: Any, seed: int, steps: int, batch: int, rate: float
) -> float:
    """Train on random chats. Return the share of random questions answered exactly."""
    draw, encode = random.Random(seed), encoder_of(tokenizer)
    placeholder = tokenizer.convert_tokens_to_ids(sense.placeholder)

    def compute_loss(_: int) -> Tensor:
        chats = [draw_chat(draw, sense, encode) for _ in range(batch)]
        longest = max(len(tokens) for tokens, _ in chats)
        filler = (tokenizer.pad_token_id, False)
        padded = torch.tensor([tokens + [filler] * (longest - len(tokens)) for tokens, _ in chats])
        ids, learned = padded[..., 0], padded[:, 1:, 1].bool()
        vectors = sense.encode(weights, [medium for _, media in chats for medium in media])
        logits = tiny_llama.compute_logits(weights, ids[:, :-1], learned, (placeholder, vectors))
        return functional.cross_entropy(logits, ids[:, 1:][learned])

    measure = functools.partial(measure_accuracy, sense, weights, tokenizer)
    tiny_training.train(sense.name, tiny_llama.Optimizer(weights, rate), steps, compute_loss, measure)
    return measure(count=400)


@torch.no_grad()
def measure_accuracy(sense: Sense, weights: dict[str, Tensor], tokenizer: Any, count: int = 100) -> float:
    """Return the share of random held-out questions answered exactly."""
    draw, encode = random.Random(f"{sense.name}, asked"), encoder_of(tokenizer)
    chats = [draw_chat(draw, sense, encode, turns=1) for _ in range(count)]
    prompts = [[token for token, learned in tokens if not learned] for tokens, _ in chats]
    answers = [tokenizer.decode([token for token, learned in tokens if learned]) for tokens, _ in chats]
    vectors = sense.encode(weights, [medium for _, media in chats for medium in media])
    seen = tokenizer.convert_tokens_to_ids(sense.placeholder), vectors
    logits_of = functools.partial(tiny_llama.compute_logits, weights, seen=seen)
    return tiny_training.share_answered(prompts, [text.removesuffix(END) for text in answers], tokenizer, logits_of)


def encoder_of(tokenizer: Any) -> Callable[[str], list[int]]:
    """Return an encoder of chat fragments to ids, without BOS."""
    return functools.cache(lambda piece: tokenizer(piece, add_special_tokens=False)["input_ids"])
