"""The shape of the tiny models' Llama, as its config.json has it."""

from typing import Any

from examples.tiny_tokenizer import LONGEST, VOCABULARY

LAYOUT = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "max_position_embeddings": LONGEST}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 4}  # 32 wide: vLLM on a CPU wants multiples of 32
KIND = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "float32", "hidden_act": "silu"}
EPSILON, ROTATION = 1e-6, 10000.0
CONFIG: dict[str, Any] = {**KIND, "vocab_size": VOCABULARY, **LAYOUT, **HEADS, "tie_word_embeddings": False}
CONFIG |= {"rms_norm_eps": EPSILON, "rope_theta": ROTATION}
