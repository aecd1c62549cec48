"""Answers in eight styles and six languages: what is stated is read, and nothing is made up."""

import itertools

from assayline.scorers.letters import take_letter
from assayline.scorers.numbers import take_number

LANGUAGES = {
    "en": {
        "answer": "The answer is {}.",
        "label": "**Answer:** {}",
        "remark": "The answer is {}. I checked it {n} times, and {other} would be too much.",
        "steps": "First I looked at {other}, then at {n} more.\n\nFinal answer: {}",
        "doubt": "The answer is {other}. Wait, that is wrong. The answer is {}.",
    },
    "de": {
        "answer": "Die Antwort ist {}.",
        "label": "**Antwort:** {}",
        "remark": "Die richtige Antwort lautet {}. Das habe ich {n} Mal geprüft; {other} wäre zu viel.",
        "steps": "Zuerst dachte ich an {other}, dann an {n} weitere.\n\nAntwort: {}",
        "doubt": "Die Antwort ist {other}. Nein, das stimmt nicht. Die Antwort ist {}.",
    },
    "es": {
        "answer": "La respuesta es {}.",
        "label": "**Respuesta:** {}",
        "remark": "La respuesta correcta es {}. La revisé {n} veces; {other} sería demasiado.",
        "steps": "Primero pensé en {other} y luego en {n} más.\n\nRespuesta: {}",
        "doubt": "La respuesta es {other}. No, eso está mal. La respuesta es {}.",
    },
    "ru": {
        "answer": "Ответ: {}.",
        "label": "**Ответ:** {}",
        "remark": "Ответ — {}. Я проверил это {n} раза; {other} было бы слишком много.",
        "steps": "Сначала я думал про {other}, потом ещё про {n}.\n\nОтвет: {}",
        "doubt": "Ответ: {other}. Нет, это неверно. Ответ: {}.",
    },
    "zh": {
        "answer": "答案是{}。",
        "label": "**答案:** {}",
        "remark": "答案是 {}。我检查了 {n} 遍,{other} 太多了。",
        "steps": "我先想到 {other},又想到 {n} 个。\n\n答案：{}",
        "doubt": "答案是 {other}。不对。答案是 {}。",
    },
    "ar": {
        "answer": "الإجابة هي {}.",
        "label": "**الإجابة:** {}",
        "remark": "الإجابة هي {}. راجعتها {n} مرات، و {other} أكثر من اللازم.",
        "steps": "فكرت أولا في {other} ثم في {n} أخرى.\n\nالإجابة: {}",
        "doubt": "الإجابة هي {other}. لا، هذا خطأ. الإجابة هي {}.",
    },
}
ANY_LANGUAGE = {
    "json": '{{"answer": "{}", "reason": "not {other}, {n} times"}}',
    "box": r"So \boxed{{{}}}, not {other}, of {n}.",
    "tag": "<think>{other}? {n}?</think><answer>{}</answer> ({other} is a trap)",
}
LETTERS = [(right, other) for right, other in itertools.permutations("ABCDI", 2)][::4]
NUMBERS = [("42", "41", 42.0), ("-5", "3", -5.0), ("1,234.5", "9", 1234.5), ("3/4", "0.2", 0.75)]
STYLES = [
    (f"{language}-{style}", text)
    for language, styles in [*LANGUAGES.items(), ("any", ANY_LANGUAGE)]
    for style, text in styles.items()
]


def test_stated_letters_are_read_in_every_style_and_language():
    cases = [
        {"style": style, "text": text.format(right, other=other, n=3), "right": right}
        for style, text in STYLES
        for right, other in LETTERS
    ]
    found = [take_letter(case["text"], "ABCDEFGHIJ") for case in cases]
    wrong = [(case, one) for case, one in zip(cases, found, strict=True) if one != (case["right"], "stated")]
    assert not wrong and len(cases) >= 150


def test_stated_numbers_are_read_in_every_style_and_language():
    cases = [
        {"style": style, "text": text.format(written, other=other, n=3), "right": str(number)}
        for style, text in STYLES
        for written, other, number in NUMBERS
    ]
    found = [take_number(case["text"]) for case in cases]
    wrong = [
        (case, one) for case, one in zip(cases, found, strict=True) if one != ((float(case["right"]), False), "stated")
    ]
    assert not wrong and len(cases) >= 120
