"""Small real tokenizers, trained in a moment: byte-level BPE with a BOS that the tokenizer itself would add."""

import itertools
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}{{ eos_token }}\n"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SYLLABLES = ("ba", "ko", "mi", "tu", "re", "sol", "fan", "dex")
WORDS = [a + b + c for a, b, c in itertools.product(SYLLABLES, repeat=3)]


def build_tokenizer(vocab_size: int = 600) -> Any:
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<bos>", "<eos>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator([" ".join(WORDS)] * 4, trainer)
    raw.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 0)])
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>", chat_template=CHAT_TEMPLATE
    )


@pytest.fixture(scope="session")
def session_tokenizer() -> Any:
    return build_tokenizer()


@pytest.fixture
def tokenizer(session_tokenizer: Any) -> Any:
    """The tokenizer with its template as it was, whatever a test before has set."""
    session_tokenizer.chat_template = CHAT_TEMPLATE
    return session_tokenizer
