"""A tiny chat model that really answers: built and trained here, on two CPU cores, in about a minute.

Examples and tests need a model whose answers can be right or wrong, with nothing to download. This one (a Llama of one
million parameters) adds and subtracts single digits when it is asked in its own chat template, and fails when the
template is wrong: it shows at once whether a pipeline renders chats properly. Like many real tokenizers, this one puts
a BOS in front by itself, and so does its chat template: who tokenizes a rendered chat with special tokens sees two.

Run: python -m examples.tiny_model [--output DIR] [--force]
"""

from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
STAMP = "tiny-model.json"  # written last; names the recipe and every file, so a folder can be trusted or not
BOS, EOS, PAD, END = "<|begin_of_text|>", "<|end_of_text|>", "<|pad|>", "<|end|>"
ROLES = ("system", "user", "assistant")
CHAT_TEMPLATE = """{{- bos_token }}
{%- for message in messages %}
    {%- if message['role'] not in ['system', 'user', 'assistant'] %}
        {{- raise_exception('Unknown role ' ~ message['role'] ~ ': use system, user or assistant') }}
    {%- endif %}
    {{- '<|' ~ message['role'] ~ '|>' ~ message['content'] ~ '<|end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{% endif %}"""
# Two templates of other models: what a pipeline may send by mistake. "plain" is the contents alone, without roles.
WRONG_TEMPLATES = {
    "plain": "{{ messages | map(attribute='content') | join(' ') }}",
    "chatml": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n",
}
PHRASINGS = {  # name: (addition, subtraction)
    "what": ("What is {a} + {b}?", "What is {a} - {b}?"),
    "equation": ("{a} + {b} =", "{a} - {b} ="),
    "words": ("How much is {a} plus {b}?", "How much is {a} minus {b}?"),
    "compute": ("Compute {a} + {b}.", "Compute {a} - {b}."),
    "command": ("Add {b} to {a}.", "Subtract {b} from {a}."),
}
PREFILL = "The answer is"  # some answers are trained to go on from it, so that a prefilled assistant turn works
ADVICE = ("Answer with a number only.", "You are a helpful assistant.", "Think, then answer.", "Be brief.")
VOCABULARY, STEPS, BATCH, LENGTH, THREADS = 384, 300, 32, 96, 2
LEARNING_RATE = 3e-3


def build_rows() -> list[dict[str, Any]]:
    """The rows of examples/arithmetic.jsonl: every sum, and every difference that is not negative, asked once.

    Training leaves out exactly these questions (each pair is trained in the other phrasings), so they test the model.
    """
    names, rows = list(PHRASINGS), []
    for operation in ("addition", "subtraction"):
        for a, b in ((a, b) for a in range(10) for b in range(10)):
            if operation == "subtraction" and a < b:
                continue
            phrasing = names[(a * 3 + b) % len(names)]
            question = PHRASINGS[phrasing][operation == "subtraction"].format(a=a, b=b)
            answer = str(a + b if operation == "addition" else a - b)
            rows.append(
                {"a": a, "b": b, "operation": operation, "phrasing": phrasing, "question": question, "answer": answer}
            )
    return rows


def build_facts() -> list[tuple[str, str]]:
    """The questions and answers to train on: every pair in every phrasing but the one that `build_rows` asks."""
    facts = []
    for row in build_rows():
        for name, forms in PHRASINGS.items():
            if name != row["phrasing"]:
                question = forms[row["operation"] == "subtraction"].format(a=row["a"], b=row["b"])
                facts.append((question, row["answer"]))
    return facts


def build_tokenizer() -> Any:
    """A byte-level BPE with some merges (short prompts train fast) and digits kept apart, as a transformers tokenizer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    specials = [PAD, BOS, EOS, END, *(f"<|{role}|>" for role in ROLES)]
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=specials,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    core.train_from_iterator([question for question, _ in build_facts()] + [PREFILL, *ADVICE] * 20, trainer)
    core.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=[(BOS, core.token_to_id(BOS))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        additional_special_tokens=specials[3:],
        chat_template=CHAT_TEMPLATE,
        padding_side="left",
        model_max_length=1024,
        clean_up_tokenization_spaces=False,
    )


def build_model(tokenizer: Any) -> Any:
    """The untrained Llama. Heads of 64, because vLLM's CPU attention wants a multiple of 32."""
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    ids = {"bos_token_id": tokenizer.bos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        eos_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=False,
        dtype="float32",
        **ids,
    )
    model: Any = LlamaForCausalLM(config)
    # The end of a turn ends the answer, and only the generation config says so (as in Llama 3).
    stops = [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids(END)]
    model.generation_config = GenerationConfig(eos_token_id=stops, do_sample=False, **ids)
    return model
