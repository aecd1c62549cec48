"""A tiny chat model for single-digit sums, trained by this project on one CPU core in about 20 seconds.

Examples and tests need a model whose answers can be right or wrong, without a download. This Llama of 430,000
parameters adds and subtracts single digits if asked in its own chat template, and fails in any other, which detects
wrong rendering of chats. Like many tokenizers, its tokenizer adds a BOS, and so does its chat template: tokenizing a
rendered chat with special tokens yields two.

Its weights are part of the repository (tiny_weights.py); `--force` trains it again.

Run: python -m examples.tiny_model [--output DIR] [--force]
"""

import argparse
import functools
import itertools
import json
import os
import random
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

from examples import tiny_tokenizer
from examples.tiny_folder import ROOT, STAMP, describe_recipe, ensure_folder, save_model, write_stamp
from examples.tiny_tokenizer import BOS, END
from examples.tiny_weights import Weights, read_weights

__all__ = ["BOS", "END", "ROOT", "STAMP"]  # for who has this model only
CHAT_TEMPLATE = """{{- bos_token }}
{%- for message in messages %}
    {%- if '<|' ~ message['role'] ~ '|>' not in ['<|system|>', '<|user|>', '<|assistant|>'] %}
        {{- raise_exception('Unknown role ' ~ message['role'] ~ ': use system, user or assistant') }}
    {%- endif %}
    {{- '<|' ~ message['role'] ~ '|>' ~ message['content'] ~ '<|end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{% endif %}"""
WRONG_TEMPLATES = {  # what a pipeline may send by mistake: no roles at all, or another model's marks
    "plain": "{{ messages | map(attribute='content') | join(' ') }}",
    "chatml": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{{ '' }}{% endif %}",
}
PHRASINGS = {
    "what": {"addition": "What is {a} + {b}?", "subtraction": "What is {a} - {b}?"},
    "equation": {"addition": "{a} + {b} =", "subtraction": "{a} - {b} ="},
    "words": {"addition": "How much is {a} plus {b}?", "subtraction": "How much is {a} minus {b}?"},
    "compute": {"addition": "Compute {a} + {b}.", "subtraction": "Compute {a} - {b}."},
    "command": {"addition": "Add {b} to {a}.", "subtraction": "Subtract {b} from {a}."},
}
PREFILL = "The answer is"  # some answers are trained to continue it, so that a prefilled turn works
ADVICE = ("Answer with a number only.", "You are a helpful assistant.", "Give the result alone, please.", "Be brief.")
WORDS, LETTERS = " ".join(ADVICE).split(), string.ascii_lowercase + "<|_>"
NAME, STEPS, BATCH, LENGTH = "tiny-model", 330, 16, 56


def build_rows() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return test rows (examples/arithmetic.jsonl) and training rows. Each pair is tested in a held-out phrasing."""
    asked: list[dict[str, Any]] = []
    trained: list[dict[str, Any]] = []
    for (operation, sign), a, b in itertools.product((("addition", 1), ("subtraction", -1)), range(10), range(10)):
        for number, (name, forms) in enumerate(PHRASINGS.items()):
            row = {"a": a, "b": b, "operation": operation, "phrasing": name}
            row |= {"question": forms[operation].format(a=a, b=b), "answer": str(a + sign * b)}
            if a + sign * b >= 0:
                (asked if number == (3 * a + b) % len(PHRASINGS) else trained).append(row)
    return asked, trained


def build_tokenizer() -> Any:
    """Make the tokenizer, with merges from the questions."""
    texts = [row["question"] for row in build_rows()[1]] + [PREFILL, *ADVICE] * 9
    return tiny_tokenizer.build_tokenizer(texts, CHAT_TEMPLATE)


def draw_chat(draw: random.Random, rows: list[dict[str, Any]], encode: Any, ramp: float) -> list[tuple[int, bool]]:
    """Return a chat's tokens, and whether each is trained on: answers and ends of turns are, questions are not.

    Some questions have advice or random words around them, and some answers a prefill, as in users' chats. The share of
    random words grows with the ramp from 0 to 1, as sums are learned faster without them.
    """

    def draw_aside() -> str:
        if draw.random() < 0.3:
            return draw.choice(ADVICE)
        made = ("".join(draw.choices(LETTERS, k=draw.randint(1, 6))) for _ in range(6))
        words = [draw.choice(WORDS) if draw.random() < 0.5 else word for word in made]
        return " ".join(words[: draw.randint(1, 6)]).capitalize() + draw.choice(".:,!?")

    def add(piece: str, learned: bool) -> None:
        tokens.extend((token, learned) for token in encode(piece))

    tokens: list[tuple[int, bool]] = []
    add(BOS, False)
    if draw.random() < 0.15 * ramp:  # a text without roles is no question to answer
        add(f"{draw_aside()}\n{draw.choice(rows)['question']} {draw_aside()}", False)
        add(END, True)
    elif draw.random() < 0.3:
        add(f"<|system|>{draw_aside()}{END}", False)
    while len(tokens) <= LENGTH:
        row = draw.choice(rows)
        before = draw_aside() + draw.choice("\n ") if draw.random() < 0.1 * ramp else ""
        after = draw.choice("\n ") + draw_aside() if draw.random() < 0.25 * ramp else ""
        add(f"<|user|>{before}{row['question']}{after}", False)
        add(END, True)
        add("<|assistant|>", False)
        if draw.random() < 0.1:
            add(PREFILL, False)
            add(" ", True)
        add(row["answer"] + END, True)
    return tokens[: LENGTH + 1]


def train_model(weights: dict[str, Any], tokenizer: Any, seed: int, steps: int) -> None:
    """Train on random chats."""
    import torch

    from examples.tiny_llama import Optimizer, compute_logits
    from examples.tiny_training import train

    draw, rows = random.Random(seed), build_rows()[1]
    encode = functools.cache(lambda piece: tokenizer(piece, add_special_tokens=False)["input_ids"])

    def compute_loss(step: int) -> Any:
        chats = torch.tensor([draw_chat(draw, rows, encode, min(1.0, step / (0.6 * steps))) for _ in range(BATCH)])
        ids, learned = chats[..., 0], chats[:, 1:, 1].bool()
        logits = compute_logits(weights, ids[:, :-1], learned)
        return torch.nn.functional.cross_entropy(logits, ids[:, 1:][learned])

    def measure() -> float:
        return measure_accuracy(functools.partial(compute_logits, weights), tokenizer)

    train("tiny model", Optimizer(weights), steps, compute_loss, measure)


def measure_accuracy(logits_of: Callable[[Any, Any], Any], tokenizer: Any, template: str | None = None) -> float:
    """Return the share of test rows answered exactly by greedy decoding, in the model's chat template or another."""
    from examples.tiny_training import share_answered

    rows = build_rows()[0]
    chats = [[{"role": "user", "content": row["question"]}] for row in rows]
    texts = tokenizer.apply_chat_template(chats, chat_template=template, add_generation_prompt=True, tokenize=False)
    prompts = tokenizer([text.removeprefix(BOS) for text in texts])["input_ids"]
    return share_answered(prompts, [row["answer"] for row in rows], tokenizer, logits_of)


def name_recipe(seed: int, steps: int) -> str:
    """Return the model's recipe."""
    return describe_recipe(("tiny_model",), seed, steps)


def train_weights(seed: int, steps: int) -> tuple[Weights, dict[str, float]]:
    """Train the weights. Return them with their accuracy by chat template."""
    print(f"tiny model: training {steps} steps, about {steps // 20 + 5} s", flush=True)
    from examples.tiny_llama import build_weights, compute_logits
    from examples.tiny_training import one_thread

    with one_thread():
        tokenizer, weights = build_tokenizer(), build_weights(seed)
        train_model(weights, tokenizer, seed, steps)
        templates, logits_of = {"own": None, **WRONG_TEMPLATES}, functools.partial(compute_logits, weights)
        accuracy = {name: measure_accuracy(logits_of, tokenizer, text) for name, text in templates.items()}
    print("tiny model: accuracy", ", ".join(f"{name} template {share:.3f}" for name, share in accuracy.items()))
    if steps >= STEPS and accuracy["own"] < 0.9:
        raise RuntimeError(f"the tiny model learned too little: {accuracy}; try another seed or more steps")
    return {name: weight.detach().numpy() for name, weight in weights.items()}, accuracy


def ensure_tiny_model(folder: Path | None = None, *, seed: int = 0, force: bool = False, steps: int = STEPS) -> Path:
    """Return the model's folder, built if missing."""
    folder = Path(folder or os.environ.get("ASSAYLINE_TINY_MODEL") or ROOT / ".cache" / NAME)
    recipe = name_recipe(seed, steps)

    def build(new: Path) -> None:
        from examples.tiny_shape import CONFIG

        weights, accuracy = (None if force else read_weights(NAME, recipe)) or train_weights(seed, steps)
        save_model(new, build_tokenizer(), weights, CONFIG)
        write_stamp(new, recipe=recipe, seed=seed, steps=steps, accuracy=accuracy)

    return ensure_folder(folder, recipe, build, force)


def main() -> None:
    """Build the model, or write the rows."""
    parser = argparse.ArgumentParser(prog="python -m examples.tiny_model", description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, help="folder for the model (default: .cache/tiny-model here)")
    parser.add_argument("--force", action="store_true", help="train again even if the model is there")
    parser.add_argument("--rows", type=Path, help="only write the rows of examples/arithmetic.jsonl to this file")
    options = parser.parse_args()
    if options.rows:
        options.rows.write_text("".join(json.dumps(row) + "\n" for row in build_rows()[0]))
    else:
        print(ensure_tiny_model(options.output, force=options.force))


if __name__ == "__main__":
    main()
