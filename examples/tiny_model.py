"""A tiny chat model that really answers: built and trained here, on one CPU core, in about a minute.

Examples and tests need a model whose answers can be right or wrong, with nothing to download. This one (a Llama of 1.1
million parameters) adds and subtracts single digits when asked in its own chat template, and fails in another: it shows
at once whether chats are rendered properly. Like many real tokenizers, its tokenizer puts a BOS in front by itself, and
so does its chat template: whoever tokenizes a rendered chat with special tokens sees two.

Run: python -m examples.tiny_model [--output DIR] [--force]
"""

import argparse
import fcntl
import functools
import hashlib
import itertools
import json
import os
import random
import string
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
STAMP = "tiny-model.json"  # written last: names the recipe and the content of every file
BOS, EOS, PAD, END = "<|begin_of_text|>", "<|end_of_text|>", "<|pad|>", "<|end|>"
SPECIALS = [PAD, BOS, EOS, END, "<|system|>", "<|user|>", "<|assistant|>"]
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
PREFILL = "The answer is"  # some answers are trained to go on from it, so that a prefilled turn works
ADVICE = ("Answer with a number only.", "You are a helpful assistant.", "Give the result alone, please.", "Be brief.")
WORDS, LETTERS = " ".join(ADVICE).split(), string.ascii_lowercase + "<|_>"
LAYOUT = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 4, "max_position_embeddings": 1024}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 2}  # 64 wide: vLLM on a CPU wants multiples of 32
VOCABULARY, STEPS, BATCH, LENGTH = 384, 450, 16, 56
RATE_MATRICES, RATE_OTHERS = 0.01, 0.003


def build_rows() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows to ask (examples/arithmetic.jsonl) and rows to train on: each pair is asked in a phrasing not trained."""
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
    """A byte-level BPE with a few merges (short prompts train fast) and digits kept apart."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    core, cut = Tokenizer(models.BPE()), pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), cut])
    core.decoder = decoders.ByteLevel()
    options: dict[str, Any] = {
        "initial_alphabet": sorted(cut.alphabet()),
        "special_tokens": SPECIALS,
        "show_progress": False,
    }
    texts = [row["question"] for row in build_rows()[1]] + [PREFILL, *ADVICE] * 9
    core.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=VOCABULARY, **options))
    bos = (BOS, core.token_to_id(BOS))
    core.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[bos])
    marks: dict[str, Any] = {
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "additional_special_tokens": SPECIALS[3:],
    }
    options = {"padding_side": "left", "model_max_length": LAYOUT["max_position_embeddings"]}
    return PreTrainedTokenizerFast(tokenizer_object=core, chat_template=CHAT_TEMPLATE, **marks, **options)


def build_model(tokenizer: Any) -> Any:
    """The untrained Llama. Only its generation config knows that the end of a turn ends the answer, as in Llama 3."""
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    ids = {"bos_token_id": tokenizer.bos_token_id, "pad_token_id": tokenizer.pad_token_id}
    eos, end = tokenizer.convert_tokens_to_ids([EOS, END])
    config = LlamaConfig(vocab_size=VOCABULARY, **LAYOUT, **HEADS, dtype="float32", eos_token_id=eos, **ids)
    model: Any = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=[eos, end], **ids)
    return model


def draw_chat(draw: random.Random, rows: list[dict[str, Any]], encode: Any) -> tuple[list[int], list[int]]:
    """Token ids and labels of a chat of LENGTH tokens. Learned are answers and ends of turns, not the questions.

    Around some questions stand advice or made-up words, and before some answers a prefill: users will write both.
    """

    def draw_aside() -> str:
        made = ["".join(draw.choices(LETTERS, k=draw.randint(1, 6))) for _ in WORDS]
        words = draw.choices(WORDS + made, k=draw.randint(1, 6))
        return draw.choice(ADVICE) if draw.random() < 0.3 else " ".join(words).capitalize() + draw.choice(".:,!?")

    pieces = [(BOS, False)]
    if draw.random() < 0.2:  # a text without roles is no question to answer
        pieces += [(f"{draw_aside()}\n{draw.choice(rows)['question']} {draw_aside()}", False), (END, True)]
    elif draw.random() < 0.3:
        pieces += [(f"<|system|>{draw_aside()}{END}", False)]
    for row in draw.choices(rows, k=LENGTH // 8):  # a turn has nine tokens or more
        before = draw_aside() + draw.choice("\n ") if draw.random() < 0.1 else ""
        after = draw.choice("\n ") + draw_aside() if draw.random() < 0.2 else ""
        pieces += [(f"<|user|>{before}{row['question']}{after}", False), (END, True), ("<|assistant|>", False)]
        pieces += [(PREFILL, False), (" ", True)] if draw.random() < 0.1 else []
        pieces += [(row["answer"] + END, True)]
    tokens = [(token, token if learned else -100) for piece, learned in pieces for token in encode(piece)]
    return [token for token, _ in tokens[:LENGTH]], [label for _, label in tokens[:LENGTH]]


def step_matrix(weight: Any, momentum: Any, rate: float) -> None:
    """Muon's step: the update is made nearly orthogonal, which halves the steps AdamW needs. (torch's is bfloat16.)"""
    momentum.lerp_(weight.grad, 0.05)
    update = weight.grad.lerp(momentum, 0.95)
    tall = update.shape[0] > update.shape[1]
    update = (update.mT if tall else update) / (update.norm() + 1e-7)
    for _ in range(4):  # Newton-Schulz iterations with Muon's coefficients
        gram = update @ update.mT
        update = 3.4445 * update + (2.0315 * gram @ gram - 4.7750 * gram) @ update
    scale = max(1.0, weight.shape[0] / weight.shape[1]) ** 0.5
    weight.mul_(1 - 0.1 * rate).sub_(update.mT if tall else update, alpha=rate * scale)


def train_model(model: Any, tokenizer: Any, seed: int, steps: int) -> None:
    """Train on drawn chats: Muon for the layers' matrices, AdamW for the rest, rates falling to zero."""
    import torch

    draw, rows, started = random.Random(seed), build_rows()[1], time.monotonic()
    encode = functools.cache(lambda piece: tokenizer(piece, add_special_tokens=False)["input_ids"])
    matrices = [weight for weight in model.model.layers.parameters() if weight.ndim == 2]
    others = [weight for weight in model.parameters() if all(weight is not matrix for matrix in matrices)]
    momenta = [torch.zeros_like(matrix) for matrix in matrices]
    adam = torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.0)
    for step in range(1, steps + 1):
        share = min(1.0, step / 20, (steps + 1 - step) / (0.4 * steps))
        ids, labels = zip(*(draw_chat(draw, rows, encode) for _ in range(BATCH)), strict=True)
        loss = model(input_ids=torch.tensor(ids), labels=torch.tensor(labels)).loss
        loss.backward()
        adam.param_groups[0]["lr"] = RATE_OTHERS * share
        adam.step()
        with torch.no_grad():
            for matrix, momentum in zip(matrices, momenta, strict=True):
                step_matrix(matrix, momentum, RATE_MATRICES * share)
        model.zero_grad()
        if step % 75 == 0 or step == steps:
            right, seconds = measure_accuracy(model, tokenizer), time.monotonic() - started
            print(f"tiny model: step {step}/{steps} loss {loss:.3f} accuracy {right:.2f} {seconds:.0f} s", flush=True)


def measure_accuracy(model: Any, tokenizer: Any, template: str | None = None) -> float:
    """The share of the asked rows answered exactly by greedy decoding, in the model's own chat template or another."""
    rows = build_rows()[0]
    chats = [[{"role": "user", "content": row["question"]}] for row in rows]
    texts = tokenizer.apply_chat_template(chats, chat_template=template, add_generation_prompt=True, tokenize=False)
    batch = tokenizer([text.removeprefix(BOS) for text in texts], padding=True, return_tensors="pt")
    ids = model.generate(batch["input_ids"], attention_mask=batch["attention_mask"], max_new_tokens=8, do_sample=False)
    answers = tokenizer.batch_decode(ids[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
    return sum(bool(answer == row["answer"]) for answer, row in zip(answers, rows, strict=True)) / len(rows)


def build_folder(folder: Path, recipe: str, seed: int, steps: int) -> None:
    """Train and save, on one thread: as fast as two at this size, the same bytes on any number of cores, and no harm
    from a busy neighbour (two threads that wait for each other took five times as long beside one)."""
    import torch

    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            tokenizer = build_tokenizer()
            model = build_model(tokenizer)
            train_model(model, tokenizer, seed, steps)
            templates = {"own": None, **WRONG_TEMPLATES}
            accuracy = {name: measure_accuracy(model, tokenizer, text) for name, text in templates.items()}
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(strict)
    print("tiny model: accuracy", ", ".join(f"{name} template {share:.3f}" for name, share in accuracy.items()))
    if steps >= STEPS and accuracy["own"] < 0.9:
        raise RuntimeError(f"the tiny model learned too little: {accuracy}; try another seed or more steps")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}
    stamp = {"recipe": recipe, "seed": seed, "steps": steps, "accuracy": accuracy, "files": files}
    (folder / STAMP).write_text(json.dumps(stamp, indent=2) + "\n")


def is_finished(folder: Path, recipe: str) -> bool:
    """Whether the folder holds this recipe's model with every file as it was written."""
    try:
        stamp = json.loads((folder / STAMP).read_text())
        files = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in stamp["files"]}
        return bool(stamp["recipe"] == recipe and files == stamp["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def ensure_tiny_model(folder: Path | None = None, *, seed: int = 0, force: bool = False, steps: int = STEPS) -> Path:
    """The folder of the finished model, built now unless it is there: written aside and renamed, one process at a time.

    The recipe is this file's text with the seed and steps, so a changed recipe is never served from the cache.
    """
    folder = Path(folder or os.environ.get("ASSAYLINE_TINY_MODEL") or ROOT / ".cache" / "tiny-model").resolve()
    recipe = f"{hashlib.sha256(Path(__file__).read_bytes()).hexdigest()} seed {seed} steps {steps}"
    if not force and is_finished(folder, recipe):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the second process waits here, then finds the first one's model
        if not force and is_finished(folder, recipe):
            return folder
        if folder.exists() and any(folder.iterdir()) and not (folder / STAMP).exists():
            raise FileExistsError(f"{folder} holds files but no {STAMP}, so it is no tiny model: name another folder")
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}.") as aside:
            new, old = Path(aside, "new"), Path(aside, "old")
            build_folder(new, recipe, seed, steps)
            if folder.exists():
                folder.rename(old)
            new.rename(folder)
    return folder


def main() -> None:
    """The command line."""
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
