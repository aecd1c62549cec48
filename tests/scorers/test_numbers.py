"""The scorer numeric: how numbers are written, which one counts, and what is not a number."""

import re
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assayline.scorers.numbers import find_numbers, read_number, score_numeric, take_number

NUMBERS = [
    ("42", ["42"]),
    ("The answer is 42.", ["42"]),
    ("5 - 3 = 2", ["5", "3", "2"]),
    ("5-3=2", ["5", "3", "2"]),
    ("x = -3", ["-3"]),
    ("x=−3, x^2 = 9", ["-3", "9"]),
    ("it is +5", ["+5"]),
    ("-$5 or $-5", ["-$5", "$-5"]),
    ("€ 7", ["€ 7"]),
    ("1'234 and 1’234", ["1'234", "1’234"]),
    ("1\u202f234\u00a0567", ["1\u202f234\u00a0567"]),
    ("12 345,60 and 1 234 567", ["12 345.60", "1 234 567"]),
    ("2024 100 in 1 2 3 of 12 3456", ["2024", "100", "1", "2", "3", "12", "3456"]),
    ("1, 2, 3", ["1", "2", "3"]),
    ("1,2,3", ["1", "2", "3"]),
    ("12,34", ["12.34"]),
    ("1.234,50 €", ["1234.50"]),
    ("(1,2,3)", ["1", "2", "3"]),
    (r"\boxed{1\frac{1}{2}}, $\frac12$, $-\frac{3}{4}$", ["1 1/2", "$1/2", "$-3/4"]),
    (r"2^{10}, 10⁶ and 5 cm²", ["2^10", "10^6", "5"]),
    ("1½ cups at –5 °C, pages 3–4", ["1 1/2", "-5", "3", "4"]),
    ("४२, ٤٢, ৪২ and ４２", ["42"] * 4),
    ("๔๒ ౪౨ ௪௨ ૪૨ ೪೨ ൪൨ ੪੨ ୪୨ ៤២ ၄၂ ໔໒", ["42"] * 11),
    ("١٬٢٣٤٫٥", ["1,234.5"]),
    ("1.234.567, 1.234.567.890. 1.2.3 and 10.0.0.1", ["1234567", "1234567890", "1.2", "3", "10.0", "0.1"]),
    (r"12\,500 tiles for \$30", ["12,500", "$30"]),
    ("50%", ["50%"]),
    (r"10\%", [r"10\%"]),
    ("1/2 cup", ["1/2"]),
    (".5", [".5"]),
    ("5.", ["5"]),
    ("1e-5", ["1e-5"]),
    ("3.2 × 10^5", ["3.2e5"]),
    (r"3.2 \times 10^{-5}", ["3.2e-5"]),
    (r"\frac{1}{2}", ["1/2"]),
    (r"$\boxed{1{,}234}$", ["1,234"]),
    ("5km, 10kg", ["5", "10"]),
    ("3x4", ["3", "4"]),
    ("20x-5=15", ["20", "5", "15"]),
    ("H2O, GPT-4, v1.5, Qwen2.5", []),
    ("No.5", ["5"]),
    ("答案是42。", ["42"]),
    ("#### 42", ["42"]),
    ("", []),
]


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
