"""Eleven kinds of lm-evaluation-harness tasks over local data, for `lm_eval_tasks`."""

import json
import random
from pathlib import Path
from typing import Any

from examples.tiny_model import build_rows

SEED = 7

WORDS = "give the number alone please be brief what is plus minus add to from"

COMMON = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/{data}.jsonl, train: {folder}/{data}_train.jsonl}}}}
test_split: test
"""
GENERATE = """output_type: generate_until
doc_to_text: "<|user|>{{question}}<|end|><|assistant|>"
doc_to_target: "{{answer}}"
generation_kwargs: {do_sample: false, max_gen_toks: 12, until: ["\\n", "<|end|>"]}
"""
BARE = ("<|user|>{{question}}<|end|><|assistant|>", "{{question}}")
"""Prompts for which the chat template adds the role marks."""
SHOTS = """training_split: train
fewshot_split: train
num_fewshot: 2
"""
EXACT = "metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]\n"
NUMBER = '{function: regex, regex_pattern: "(-?[0-9]+)"}'
TASKS = {
    "arithmetic": ("sums", GENERATE + SHOTS + EXACT),
    "arithmetic_chat": ("sums", GENERATE.replace(*BARE) + SHOTS + EXACT),
    "choices": (
        "choices",
        """output_type: multiple_choice
doc_to_text: "Question: {{question}}\\nAnswer:"
doc_to_choice: "{{options}}"
doc_to_target: "{{right}}"
metric_list: [{metric: acc}, {metric: acc_norm}, {metric: exact_match}]
""",
    ),
    "contexts": (
        "contexts",
        """output_type: multiple_choice
doc_to_text: "{{right}}"
doc_to_choice: "{{contexts}}"
doc_to_target: "{{ending}}"
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
""",
    ),
    "mutual": (
        "choices",
        """output_type: multiple_choice
doc_to_text: "{{question}} "
doc_to_choice: "{{options}}"
doc_to_target: "{{right}}"
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}, {metric: acc_mutual_info}]
""",
    ),
    "cloze": (
        "sums",
        """output_type: loglikelihood
doc_to_text: "<|user|>{{question}}<|end|><|assistant|>"
doc_to_target: "{{answer}}"
metric_list: [{metric: perplexity}, {metric: acc, aggregation: mean, higher_is_better: true}]
""",
    ),
    "vote": (
        "sums",
        GENERATE
        + "repeats: 3\n"
        + f"""filter_list:
  - name: majority
    filter: [{NUMBER}, {{function: majority_vote}}, {{function: take_first}}]
  - name: first
    filter: [{NUMBER}, {{function: take_first}}]
"""
        + EXACT,
    ),
    "regex": (
        "sums",
        GENERATE
        + f"""filter_list:
  - name: strict
    filter: [{{function: regex, regex_pattern: "^([0-9])$"}}, {{function: take_first}}]
  - name: flexible
    filter: [{NUMBER}, {{function: take_first}}]
metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
    ignore_case: true
""",
    ),
    "instructions": (
        "sums",
        GENERATE
        + """process_results: !function scoring.process_results
metric_list:
  - {metric: prompt_level, aggregation: mean, higher_is_better: true}
  - {metric: instruction_level, aggregation: !function scoring.share, higher_is_better: true}
""",
    ),
    "text": (
        "texts",
        """output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: word_perplexity}, {metric: byte_perplexity}, {metric: bits_per_byte}]
""",
    ),
}
SUBJECT = """output_type: multiple_choice
doc_to_text: "{{question}} A. {{options[0]}} B. {{options[1]}} C. {{options[2]}} D. {{options[3]}} Answer:"
doc_to_choice: ["A", "B", "C", "D"]
doc_to_target: "{{right}}"
training_split: train
fewshot_split: train
num_fewshot: 1
fewshot_config: {sampler: first_n}
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
GROUP = """group: subjects
task: [subjects_even, subjects_odd]
aggregate_metric_list: [{metric: acc, weight_by_size: true}]
metadata: {version: 1}
"""
SCORING = '''
def process_results(doc, results):
    """Two instructions, as in IFEval: the answer is a number, and it is short."""
    text = results[0].strip()
    kept = [text.lstrip("-").isdigit(), len(text) < 4]
    return {"prompt_level": all(kept), "instruction_level": kept}


def share(items):
    flat = [kept for item in items for kept in item]
    return sum(flat) / len(flat)
'''


def make_rows(count: int) -> list[dict[str, Any]]:
    """Make sums of one digit, which the tiny model knows, and of two, which it does not, with four choices each."""
    draw = random.Random(SEED)
    known = [(row["question"], int(row["answer"])) for row in build_rows()[0]]
    easy = draw.sample(known, min(len(known), count // 2))
    pairs = [(draw.randint(10, 60), draw.randint(2, 30)) for _ in range(count - len(easy))]
    rows = []
    for question, answer in easy + [(f"What is {a} + {b}?", a + b) for a, b in pairs]:
        options = [str(answer), str(answer + draw.randint(1, 5)), str(answer + 10), f"the number {draw.randint(0, 9)}"]
        draw.shuffle(options)
        row = {"question": question, "answer": str(answer), "options": options, "right": options.index(str(answer))}
        rows.append(row)
    return rows


def write_tasks(folder: Path, count: int) -> list[str]:
    """Write data and definitions of every task. Return the names of the tasks without a chat template."""
    draw = random.Random(11)
    rows = make_rows(count)
    draw.shuffle(rows)
    sums = [{"question": row["question"], "answer": row["answer"]} for row in rows]
    choices = [{name: row[name] for name in ("question", "options", "right")} for row in rows]
    contexts = [
        {
            "contexts": [row["question"], f"{row['question']} No:"],
            "ending": f"so {row['answer']}",
            "right": draw.randint(0, 1),
        }
        for row in rows
    ]
    texts = [{"text": " ".join(draw.choices(WORDS.split(), k=length))} for length in (3, 40, 150, 400)]
    data: dict[str, list[dict[str, Any]]] = {
        "sums": sums,
        "choices": choices,
        "contexts": contexts,
        "texts": texts,
        "subjects_even": choices[::2],
        "subjects_odd": choices[1 : len(choices) // 2 : 2],
    }
    data |= {f"{name}_train": lines[-6:] for name, lines in data.items()}
    for name, lines in data.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    subjects = {name: (name, SUBJECT) for name in ("subjects_even", "subjects_odd")}
    for name, (rows_of, definition) in {**TASKS, **subjects}.items():
        (folder / f"{name}.yaml").write_text(COMMON.format(name=name, folder=folder, data=rows_of) + definition)
    (folder / "subjects.yaml").write_text(GROUP)
    (folder / "scoring.py").write_text(SCORING)
    return [name for name in TASKS if name != "arithmetic_chat"] + ["subjects"]
