"""The tokenizer of the tiny models: bytes, a few merges, and the marks of a chat.

Like many real ones it puts a BOS in front by itself, and so do the models' chat templates: whoever tokenizes a rendered
chat with special tokens sees two.
"""

from collections.abc import Iterable
from typing import Any

BOS, EOS, PAD, END = "<|begin_of_text|>", "<|end_of_text|>", "<|pad|>", "<|end|>"
SPECIALS = [PAD, BOS, EOS, END, "<|system|>", "<|user|>", "<|assistant|>"]
VOCABULARY = 384
LONGEST = 1024


def build_tokenizer(texts: Iterable[str], chat_template: str, more_specials: Iterable[str] = ()) -> Any:
    """A byte-level BPE with merges from these texts (short prompts train fast) and digits kept apart."""
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
