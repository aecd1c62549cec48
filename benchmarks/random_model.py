"""A Llama of any shape with random weights and a byte-level tokenizer. Speed does not depend on the weights' values.

python -m benchmarks.random_model FOLDER --layers 8 --hidden 512
"""

import argparse
from pathlib import Path
from typing import Any

VOCABULARY = 8192
SPECIALS = ("<unk>", "<bos>", "<eos>")
FIRST_WORD = len(SPECIALS) + 256
"""Lower ids are special tokens and single bytes, which may have no text to stream."""


def build_random_model(
    folder: Path, layers: int, hidden: int, *, weights: bool = True, vocabulary: int = VOCABULARY, **changes: Any
) -> Path:
    """Write config, tokenizer and float32 weights, unless vLLM generates the weights (load_format: dummy).

    `changes` override fields of LlamaConfig that otherwise follow from `layers` and `hidden`.
    """
    if (folder / "tokenizer.json").exists():
        return folder
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    heads = max(hidden // 64, 1)
    fields: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": 4 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "max_position_embeddings": 2048,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "architectures": ["LlamaForCausalLM"],
    }
    config = LlamaConfig(**fields | changes)
    if weights:
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
        model.lm_head.weight.data[:FIRST_WORD] = 0  # never the likeliest, so that each output token has text
        model.save_pretrained(folder)
    else:
        config.save_pretrained(folder)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {token: i for i, token in enumerate([*SPECIALS, *letters])}
    words |= {f"<{i}>": i for i in range(FIRST_WORD, vocabulary)}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>", unk_token="<unk>")
    turns = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    fast.chat_template = "{{ bos_token }}" + turns + "assistant:"
    fast.save_pretrained(folder)
    return folder


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=512)
    given = parser.parse_args()
    print(build_random_model(given.folder, given.layers, given.hidden))
