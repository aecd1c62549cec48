"""The tokenizer of the tiny models: bytes, a few merges, and the chat's special tokens.

Like many tokenizers it adds a BOS, and so do the models' chat templates: tokenizing a rendered chat with special tokens
yields two.
"""

from collections.abc import Iterable
from typing import Any

BOS, EOS, PAD, END = "<|begin_of_text|>", "<|end_of_text|>", "<|pad|>", "<|end|>"
SPECIALS = [PAD, BOS, EOS, END, "<|system|>", "<|user|>", "<|assistant|>"]
VOCABULARY = 384
LONGEST = 1024


def build_tokenizer(texts: Iterable[str], chat_template: str, more_specials: Iterable[str] = ()) -> Any:
    """Train a byte-level BPE on these texts, as short prompts train fast. Digits are not merged."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    core, cut = Tokenizer(models.BPE()), pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), cut])
    core.decoder = decoders.ByteLevel()
    options: dict[str, Any] = {
        "initial_alphabet": sorted(cut.alphabet()),
        "special_tokens": [*SPECIALS, *more_specials],
        "show_progress": False,
    }
    core.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=VOCABULARY, **options))
    bos = (BOS, core.token_to_id(BOS))
    core.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[bos])
    marks: dict[str, Any] = {
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "additional_special_tokens": [*SPECIALS[3:], *more_specials],
    }
    options = {"padding_side": "left", "model_max_length": LONGEST}
    return PreTrainedTokenizerFast(tokenizer_object=core, chat_template=chat_template, **marks, **options)
