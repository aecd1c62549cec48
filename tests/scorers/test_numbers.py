"""The scorer numeric: how numbers are written, which one counts, and what is not a number."""

import re
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assayline.scorers.numbers import find_numbers, read_number, score_numeric, take_number

NUMBERS = [
    ("42", ["42"]), ("The answer is 42.", ["42"]), ("5 - 3 = 2", ["5", "3", "2"]), ("5-3=2", ["5", "3", "2"]),
    ("x = -3", ["-3"]), ("x=−3, x^2 = 9", ["-3", "9"]), ("it is +5", ["+5"]), ("-$5 or $-5", ["-$5", "$-5"]),
    ("€ 7", ["€ 7"]), ("1'234 and 1’234", ["1'234", "1’234"]), ("1\u202f234\u00a0567", ["1\u202f234\u00a0567"]),
    ("12 345,60 and 1 234 567", ["12 345.60", "1 234 567"]),
    ("2024 100 in 1 2 3 of 12 3456", ["2024", "100", "1", "2", "3", "12", "3456"]), ("1, 2, 3", ["1", "2", "3"]),
    ("1,2,3", ["1", "2", "3"]), ("12,34", ["12.34"]), ("1.234,50 €", ["1234.50"]), ("(1,2,3)", ["1", "2", "3"]),
    (r"\boxed{1\frac{1}{2}}, $\frac12$, $-\frac{3}{4}$", ["1 1/2", "$1/2", "$-3/4"]),
    (r"2^{10}, 10⁶ and 5 cm²", ["2^10", "10^6", "5"]), ("1½ cups at –5 °C, pages 3–4", ["1 1/2", "-5", "3", "4"]),
    ("४२, ٤٢, ৪২ and ４２", ["42"] * 4), ("๔๒ ౪౨ ௪௨ ૪૨ ೪೨ ൪൨ ੪੨ ୪୨ ៤២ ၄၂ ໔໒", ["42"] * 11), ("١٬٢٣٤٫٥", ["1,234.5"]),
    ("1.234.567, 1.234.567.890. 1.2.3 and 10.0.0.1", ["1234567", "1234567890", "1.2", "3", "10.0", "0.1"]),
    (r"12\,500 tiles for \$30", ["12,500", "$30"]), ("50%", ["50%"]), (r"10\%", [r"10\%"]), ("1/2 cup", ["1/2"]),
    (".5", [".5"]), ("5.", ["5"]), ("1e-5", ["1e-5"]), ("3.2 × 10^5", ["3.2e5"]), (r"3.2 \times 10^{-5}", ["3.2e-5"]),
    (r"\frac{1}{2}", ["1/2"]), (r"$\boxed{1{,}234}$", ["1,234"]), ("5km, 10kg", ["5", "10"]), ("3x4", ["3", "4"]),
    ("20x-5=15", ["20", "5", "15"]), ("H2O, GPT-4, v1.5, Qwen2.5", []), ("No.5", ["5"]), ("答案是42。", ["42"]),
    ("#### 42", ["42"]), ("", []),
]  # fmt: skip


@pytest.mark.parametrize(("text", "numbers"), NUMBERS)
def test_numbers_are_found_in_a_text(text, numbers):
    assert find_numbers(text) == numbers


@pytest.mark.parametrize(
    ("token", "number", "is_percent"),
    [
        ("42", 42.0, False),
        ("$1,234.50", 1234.5, False),
        ("-$5", -5.0, False),
        ("1'234", 1234.0, False),
        ("50 %", 50.0, True),
        ("1/4", 0.25, False),
        ("1/0", None, False),
        (".5", 0.5, False),
        ("-1 1/2", -1.5, False),
        ("2^10", 1024.0, False),
        ("10^400", Decimal("1e400"), False),
        ("-$1/4", -0.25, False),
    ],
)
def test_a_number_is_read(token, number, is_percent):
    assert read_number(token) == (None if number is None else (number, is_percent))


@pytest.mark.parametrize(
    ("answer", "target", "value", "extracted"),
    [
        ("12 + 30 = 42", "42", 1.0, "42"),
        ("$1,234", "1234.0", 1.0, "1234"),
        ("0.5", "1/2", 1.0, "0.5"),
        ("50%", "0.5", 1.0, "50%"),
        ("50%", "50", 1.0, "50%"),
        ("0.333", "33.3%", 1.0, "0.333"),
        ("0.05%", "5%", 0.0, "0.05%"),
        ("9007199254740993", "9007199254740992", 1.0, "9007199254740992.0"),  # doubles end here
        ("100000000000001", "100000000000002", 0.0, "100000000000001"),
        ("41", "so 40 + 2\n#### 42", 0.0, "41"),
        ("#### 42\n\nQuestion: 7 + 8", "so 40 + 2\n#### 42", 1.0, "42"),
        ("1e999", "1", 0.0, "1E+999"),
        ("-0", "0", 1.0, "0"),
    ],
)
def test_numeric(answer, target, value, extracted):
    assert score_numeric(answer, target, {})[:2] == (value, extracted)


# lm-evaluation-harness 0.4.13, gsm8k: strict-match takes the first `#### (\-?[0-9\.\,]+)`, flexible-extract the last
# number. If they find another number than ours, it is behind the answer.
@pytest.mark.parametrize(
    ("answer", "number"),
    [
        ("He lost $5.\n#### -5", -5.0),
        ("#### $1,234.50", 1234.5),  # strict: none
        ("#### **42**", 42.0),  # strict: none
        ("#### 42 apples, of 50", 42.0),  # flexible: 50
        ("#### 42\n\nQuestion: 7 + 8\n", 42.0),  # flexible: 8
        ("#### 12\nNo, wait.\n#### 15", 15.0),  # strict: 12, the first
        ("#### 1/2", 0.5),  # strict: 1; flexible: 2
        (r"#### $\frac{1}{2}$", 0.5),  # strict: none; flexible: 2
        # Chat models write #### before headings.
        ("#### Answer\nThe 3 boys have 24 apples in all.", 24.0),  # strict: none
        ("#### Step 2: Sum\n5 + 7 = 12\n\nSo the answer is 12.", 12.0),  # strict: none
        ("#### 1. Compute\n6*7 = 42\n**42**", 42.0),  # strict: 1
        ("#### 2) Sum up\nIt is 42.", 42.0),  # strict: 2
        ("The answer is 42.\n\n#### ", 42.0),  # strict: none
        ("#### 1. Compute\n6*7 = 42\n#### 42", 42.0),  # strict: 1
        ("#### 42\n#### Check\n42 / 7 = 6", 42.0),  # flexible: 6
        ("#### none", None),
    ],
)
def test_take_number_reads_gsm8ks_mark_and_no_heading(answer, number):
    found, _ = take_number(answer)
    assert (found and found.value) == number


LINE = st.sampled_from(["#### {}", "####{}", "#### {}. Add", "#### {}: add", "#### Step {}", "#### ", "so {}", "no"])


@pytest.mark.hypothesis
@given(lines=st.lists(st.tuples(LINE, st.integers(-999, 999)), min_size=1, max_size=5))
def test_take_number_agrees_with_a_reader_in_python(lines):
    """Lines with and without a mark, read by Python's own regular expressions."""
    text = "\n".join(form.format(number) for form, number in lines)
    marked = [
        line
        for line in re.findall("####([^\n]*)", text)
        if re.match(r"[^A-Za-z\d]*\d", line) and not re.match(r"\s*\d{1,2}[.):]\s+\S", line)
    ]
    numbers = re.findall(r"(?<!\S)-?\d+", re.sub(r"[#.:)]", " ", marked[-1] if marked else text))
    found, _ = take_number(text)
    assert (found and found.value) == (float(numbers[0 if marked else -1]) if numbers else None)


def test_numeric_tolerances_and_the_first_number():
    assert score_numeric("about 9.9", "10", {}, 0.1, 0.0, "last")[0] == 1.0
    assert score_numeric("about 9.8", "10", {}, 0.1, 0.0, "last")[0] == 0.0
    assert score_numeric("990", "1000", {}, 0.0, 0.01, "last")[0] == 1.0
    assert score_numeric("989", "1000", {}, 0.0, 0.01, "last")[0] == 0.0
    assert score_numeric("7 of 9", "7", {}, 0.0, 0.0, "first")[:2] == (1.0, "7")
    assert score_numeric(f"1{'0' * 400}", f"2{'0' * 400}", {}).value == 0.0, "both beyond a double"
    assert score_numeric("7", "a dozen", {}, 0.0, 0.0, "last")[:3] == (0.0, "7", "no number in the target")


@pytest.mark.hypothesis
@given(
    number=st.floats(allow_nan=False, allow_infinity=False), words=st.sampled_from(["{}", "= {}.", "so {} km", "${}"])
)
def test_a_number_in_words_is_itself(number, words):
    assert score_numeric(words.format(repr(number)), repr(number), {}).value == 1.0


@pytest.mark.hypothesis
@given(number=st.integers(-(10**15), 10**15))
def test_thousands_separators_change_nothing(number):
    for text in (f"{number:,}", f"{number:,}".replace(",", "'"), f"The total is {number:,} dollars."):
        score = score_numeric(text, str(number), {})
        assert score.value == 1.0 and (score.extracted == str(number) or abs(number) >= 10**15)


@pytest.mark.hypothesis
@given(text=st.text("0123456789.,-/%e ×^'AB){}\n", min_size=90, max_size=160))
def test_the_end_of_a_long_text_is_enough_for_its_last_number(text):
    tokens = find_numbers(text)
    number, found_by = take_number(text)
    assert found_by != "last" or number == read_number(tokens[-1]) or len(tokens) < 2


RIGHT = [
    # grouping
    ("The town has 1,23,456 people.", "123456"), ("₹12,34,567", "1234567"), ("The answer is 1,00,000.", "100000"),
    ("#### 10,50,000", "1050000"), ("उत्तर: १,२३,४५६", "123456"), ("It costs Rs. 1,50,000.50 in all.", "150000.5"),
    ("-1,23,456", "-123456"),
    # words that scale or negate
    ("The answer is 2.5 million.", "2500000"), ("It costs $4.2 billion.", "4200000000"),
    ("The answer is 12 thousand.", "12000"), ("The answer is 3 lakh.", "300000"), ("उत्तर: 5 करोड़", "50000000"),
    ("Die Antwort ist 3,5 Millionen.", "3500000"), ("Die Antwort ist 2 Milliarden Euro.", "2000000000"),
    ("La respuesta es 5 mil.", "5000"), ("La respuesta es 2 millones de euros.", "2000000"),
    ("La réponse est 4 milliards.", "4000000000"), ("Ответ: 7 тысяч", "7000"), ("Ответ: 3 млн рублей", "3000000"),
    ("答案是3万。", "30000"), ("答案是2亿", "200000000"), ("答えは5万円です。", "50000"),
    ("정답은 3만 원입니다", "30000"),
    ("Cevap: 5 milyon", "5000000"), ("الإجابة: 3 مليون", "3000000"), ("So the profit is $3k", "3000"),
    ("Revenue: $4.2B", "4200000000"), (r"\boxed{3 \text{ million}}", "3000000"),
    (r"\boxed{2.5\,\text{billion dollars}}", "2500000000"), ("She has 3 dozen eggs.", "36"),
    ("The answer is 2 hundred thousand.", "200000"), ("The answer is minus 5.", "-5"),
    ("The answer is negative 12.", "-12"), ("Die Antwort ist minus 7.", "-7"), ("答案是负5", "-5"),
    ("The answer is 5 and a half.", "5.5"), ("The answer is 50 percent.", "0.5"), ("Ответ: 50 процентов", "50%"),
    # units and other company
    (r"\boxed{12\text{ cm}}", "12"), (r"\boxed{12\text{ cm}^2}", "12"), (r"\boxed{45^\circ}", "45"),
    (r"\boxed{25\%}", "25"), (r"\boxed{\$42}", "42"), (r"\boxed{x = 7}", "7"), (r"\boxed{\text{Total: } 42}", "42"),
    (r"\boxed{\frac{3}{4}}", "0.75"), (r"\boxed{2^{10}}", "1024"), ("The answer is 5km.", "5"),
    ("The answer is 10 kg, or so.", "10"), ("The answer is 5 apples and no pears", "5"), ("It weighs 3 千克", "3"),
    # marks before prose
    ("so it is 2 * 30 = 60 liters of water.\nIn total 30 + 60 = 90.\nA: 90", "90"),
    ("The answer is 2 plus what was there. It is 14 - 3 = 11 now.\n#### 13", "13"),
    ("The answer is 3 more than 10.\n\n13", "13"), ("First the answer is 10. Then I add 5.\n\n**15**", "15"),
    ("**Answer:** 42\n\n*Check:* 6 * 7 and 2 * 21 both work.", "42"),
    ("Step 1: 5 + 3 = 8\nStep 2: 8 * 2 = 16\nAnswer: 16", "16"),
    ("This is 5 more than before.\nHence the answer is 17.", "17"), ("It's 4 rows of 6.\nAns: 24", "24"),
    ('{"reasoning": "3 + 4", "answer": 7}', "7"),
    # the model goes on asking
    ("6 + 9 = 15, 15 - 4 = 11.\n#### 11\n\nQuestion: Tom has 3 pens.\nAnswer: 5\n#### 5", "11"),
    ("The answer is 11.\n\nQ: A train has 7 cars.\nA: 7 + 2 = 9. The answer is 9.", "11"),
    ("11\n\n**Question 2:** What is 3 + 4?\n**Answer:** 7", "11"),
    ("The answer is 11.<|im_end|>\n<|im_start|>user\nWhat is 2 + 2? The answer is 4.", "11"),
    ("11\nUser: and 2 + 2?\nAssistant: 4", "11"), ("#### 11\n### Instruction:\nAdd 2 and 2.\n#### 4", "11"),
    ("The answer is 11. Question: What is 3 + 4? The answer is 7.", "11"),
    ("11\n\nQuestion #2: What is 3 + 4?\n7", "11"),
    ("La respuesta es 11.\n\nPregunta: ¿Cuánto es 2 + 2?\nLa respuesta es 4.", "11"),
    ("答案是11。\n\n问题：2+2是多少？\n答案是4。", "11"), ("Question: How many are there?\nAnswer: 11", "11"),
    # beyond doubles
    (f"1{'0' * 400}", f"1{'0' * 400}"), ("It is not 5 but 6.", "6"),
]  # fmt: skip
WRONG = [
    (r"\boxed{3\pi}", "3"), (r"The area is \boxed{2\sqrt{3}}.", "2"), (r"\boxed{5x}", "5"), (r"\boxed{5x + 3}", "5"),
    (r"\boxed{5 + x}", "5"), (r"\boxed{\sqrt{3}}", "3"), (r"\boxed{\frac{\pi}{2}}", "2"),
    (r"\boxed{\frac{\sqrt{3}}{2}}", "2"), (r"\boxed{3i}", "3"), (r"\boxed{2 + 3i}", "2"), (r"\boxed{e^2}", "2"),
    (r"\boxed{2^n}", "2"), (r"\boxed{\log_2 5}", "5"), (r"\boxed{101_2}", "101"), (r"\boxed{3, 4}", "3"),
    (r"\boxed{(3, 4)}", "3"), (r"\boxed{x = 3, y = 4}", "4"), (r"\boxed{3 \text{ or } 4}", "3"),
    (r"\boxed{x > 3}", "3"), (r"\boxed{\pm 3}", "3"), (r"\boxed{5!}", "5"), ("The area is 9π.", "9"),
    ("The answer is 3√2.", "3"), ("The answer is $4\\pi$.", "4"), ("n = 3k", "3"), ("The answer is 5y.", "5"),
    ("The answer is 2/x.", "2"), ("The answer is 10:30.", "10"), ("The ratio, so the answer is 3:1.", "3"),
    ("#### 2024-05-01", "2024"), ("The answer is 5 or 6.", "5"), ("The answer is 3 million people.", "3"),
    ("It costs $4.2 billion.", "4.2"), ("The answer is 3 lakh.", "3"), ("答案是3万。", "3"),
    ("Die Antwort ist 2 Milliarden.", "2"), ("$3k", "3"), ("The answer is minus 5.", "5"),
    ("The answer is not 5.", "5"), ("It isn't 5.", "5"), ("It is not 5 but 6.", "5"),
    (f"1{'0' * 400}", f"2{'0' * 400}"), ("1e999", "1e998"), ("1,00,000", "1"), ("The answer is 3 squared.", "3"),
    ("The answer is 5 hundredths.", "5"), ("The answer is 5 times the first.", "5"), ("The answer is 4 pi.", "4"),
    ("The answer is > 5.", "5"), ("6 + 5 = 11.\n#### 11\n\nQuestion: 2 + 3?\n#### 5", "5"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "target", "value"), [*((*one, 1.0) for one in RIGHT), *((*one, 0.0) for one in WRONG)]
)
def test_a_number_is_read_and_none_is_made_up(answer, target, value):
    score = score_numeric(answer, target, {})
    assert score.value == value, score


FOUND = [
    ("The answer is 6 × 7 = 42.", 42.0, "stated"), ("The answer is: she sold 48 + 24 = 72 clips.", 72.0, "last"),
    ("The answer is about $1,200 a month, for 12 months.", 1200.0, "stated"),
    (r"The answer is 30, of 60: \boxed{}", 30.0, "stated"), ("الإجابة: ٤٢", 42.0, "stated"),
    ("उत्तर: ४२", 42.0, "stated"), ("Die Antwort ist 3,5 Meter.", 3.5, "stated"),
    ("A resposta é 3,5. Revi 4 vezes.", 3.5, "stated"), ("La risposta è 42. Ho provato 2 volte.", 42.0, "stated"),
    ("La réponse est 42. Vérifié 2 fois.", 42.0, "stated"),
    ("7に2を掛けます。答えは１４です。3回確かめました。", 14.0, "stated"),
    ("정답은 42입니다. 2번 확인했습니다.", 42.0, "stated"), ("Đáp án là 42. Tôi đã kiểm tra 2 lần.", 42.0, "stated"),
    ("คำตอบคือ 42 ตรวจแล้ว 2 ครั้ง", 42.0, "stated"), ("Odpowiedź to 42. Sprawdziłem 2 razy.", 42.0, "stated"),
    ("Cevap: 42. 2 kez denedim.", 42.0, "stated"), ("42", 42.0, "only"), ("none", None, None),
]  # fmt: skip


@pytest.mark.parametrize(("text", "number", "found_by"), FOUND)
def test_how_a_number_was_found(text, number, found_by):
    found, how = take_number(text)
    assert (found and found.value, how) == (number, found_by)
