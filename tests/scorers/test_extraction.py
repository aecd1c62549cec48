"""Answers in eight styles and six languages: what is stated is read, and nothing is made up."""

import itertools

import pytest

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


@pytest.mark.parametrize(
    ("text", "letter", "found_by"),
    [
        ("I cannot tell from what is given.", None, None),
        ("The third option fits, I believe.", None, None),
        ("A man walks into a bar.", None, None),
        ("It is either A or B.", None, None),
        ("Options A, C and D are wrong.", None, None),
        ("Answer: C/D", None, None),
        ("It is either A, or perhaps B.", None, None),
        ("The answer is not A.", None, None),
        ("It can't be the option (B)!", None, None),
        ("My choice would be D, not B.", "D", "only"),
        ("The answer isn't A or C; it's (B)", "B", "stated"),
        ("Nicht A, sondern B", "B", "only"),
        ("Ответ не A, а B", "B", "only"),
        ("答案不是A，是B", "B", "only"),
        ("D, since I checked it twice", "D", "only"),
        ("A) rust\nB) frost\nC) dust", None, None),
        ("A. rust\nB. frost\nC. dust\n\nAs for me, B fits.", "B", "only"),
        ("A. false\nB. true\n\n**B**", "B", "only"),
        ("Option B is correct. Option A is wrong.", "B", "stated"),
        ("The correct option, therefore, is B. A is wrong.", "B", "stated"),
        ("It must be (B), rather than (D).", "B", "stated"),
        (r"\boxed{\textbf{B. 12}}, not A", "B", "stated"),
        ("{'choice': 'B', 'why': 'C is false'}", "B", "stated"),
        ("الإجابة: ب", "B", "stated"),
        ("答案：Ｂ", "B", "stated"),
    ],
)
def test_a_letter_that_nobody_stated_is_not_made_up(text, letter, found_by):
    assert take_letter(text, "ABCDEFGHIJ") == (letter, found_by)


@pytest.mark.parametrize(
    ("text", "number", "found_by"),
    [
        ("The answer is 6 × 7 = 42.", 42.0, "stated"),
        ("The answer is: she sold 48 + 24 = 72 clips.", 72.0, "last"),
        ("The answer is about $1,200 a month, for 12 months.", 1200.0, "stated"),
        (r"The answer is 30, of 60: \boxed{}", 30.0, "stated"),
        ("الإجابة: ٤٢", 42.0, "stated"),
        ("उत्तर: ४२", 42.0, "stated"),
        ("Die Antwort ist 3,5 Meter.", 3.5, "stated"),
        ("A resposta é 3,5. Revi 4 vezes.", 3.5, "stated"),
        ("La risposta è 42. Ho provato 2 volte.", 42.0, "stated"),
        ("La réponse est 42. Vérifié 2 fois.", 42.0, "stated"),
        ("7に2を掛けます。答えは１４です。3回確かめました。", 14.0, "stated"),
        ("정답은 42입니다. 2번 확인했습니다.", 42.0, "stated"),
        ("Đáp án là 42. Tôi đã kiểm tra 2 lần.", 42.0, "stated"),
        ("คำตอบคือ 42 ตรวจแล้ว 2 ครั้ง", 42.0, "stated"),
        ("Odpowiedź to 42. Sprawdziłem 2 razy.", 42.0, "stated"),
        ("Cevap: 42. 2 kez denedim.", 42.0, "stated"),
        ("42", 42.0, "only"),
        ("none", None, None),
    ],
)
def test_how_a_number_was_found(text, number, found_by):
    found, how = take_number(text)
    assert (found and found.value, how) == (number, found_by)
