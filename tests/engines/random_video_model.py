"""A Qwen2.5-VL of random weights: it says nothing of sense, and takes pictures and videos as a whole one does.

Needs torchvision, as its layout in transformers and vLLM does; the set-up for CPUs has it.
"""

import json
from pathlib import Path

SPECIALS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
START, END, IMAGE, VIDEO = SPECIALS
PATCH, MERGED = 14, 2
SMALL = {"shortest_edge": 56 * 56, "longest_edge": 112 * 112}
"""Pixels of a picture or frame."""
PART = f"{{{{- '{START}{IMAGE}{END}' if part['type'] == 'image' else '{START}{VIDEO}{END}' }}}}"
CHAT_TEMPLATE = (
    "{{- bos_token }}{%- for message in messages %}{{- '<|user|>' }}{%- if message['content'] is string %}"
    "{{- message['content'] }}{%- else %}{%- for part in message['content'] %}{%- if part['type'] == 'text' %}"
    "{{- part['text'] }}{%- else %}" + PART + "{%- endif %}{%- endfor %}{%- endif %}{{- '<|end|>' }}{%- endfor %}"
    "{{- '<|assistant|>' }}"
)


def build_video_model(folder: Path) -> Path:
    """Writes model, tokenizer and processor."""
    import torch
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    from examples.tiny_tokenizer import build_tokenizer

    tokenizer = build_tokenizer(["What is shown?"], CHAT_TEMPLATE, SPECIALS)
    ids = dict(zip(SPECIALS, tokenizer.convert_tokens_to_ids(list(SPECIALS)), strict=True))
    text = {
        "vocab_size": 384,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [8, 12, 12]},
    }
    vision = {
        "depth": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_heads": 2,
        "out_hidden_size": 128,
        "patch_size": PATCH,
        "spatial_merge_size": MERGED,
        "temporal_patch_size": 2,
        "window_size": 112,
        "fullatt_block_indexes": [1],
    }
    config = Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        vision_start_token_id=ids[START],
        vision_end_token_id=ids[END],
        image_token_id=ids[IMAGE],
        video_token_id=ids[VIDEO],
        tie_word_embeddings=False,
        dtype="float32",
    )
    torch.manual_seed(0)
    model = Qwen2_5_VLForConditionalGeneration(config)
    for weight in model.parameters():
        if weight.dim() > 1:
            weight.data.mul_(4)  # so that answers differ between pictures, which those of tiny weights do not
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    shape = {"patch_size": PATCH, "merge_size": MERGED, "temporal_patch_size": 2, "size": SMALL}
    shape |= {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}  # vLLM scales in the model, by what stands here
    kinds = {"image_processor_type": "Qwen2VLImageProcessor", "video_processor_type": "Qwen2VLVideoProcessor"}
    content = {**kinds, "processor_class": "Qwen2_5_VLProcessor", **shape}
    (folder / "preprocessor_config.json").write_text(json.dumps(content))
    (folder / "video_preprocessor_config.json").write_text(json.dumps(content))
    return folder
