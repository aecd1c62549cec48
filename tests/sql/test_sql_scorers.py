"""The scorers' macros: cases of each, and what holds whatever a model writes."""

import re
import string
import sys
import unicodedata
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.slow

ANY_TEXT = st.one_of(
    st.text(max_size=60),
    st.text(alphabet="0123456789.,-+/%$€eE #\\{}×^'ABCDabcd ()[]*:\nanswer is", max_size=60),
)


def gather(**strategies):
    """Random cases, as many as hypothesis would try one by one. `ask_of_all` has one query for all of them."""
    cases = []

    @given(st.fixed_dictionaries(strategies))
    def gather_one(case):
        cases.append(case)

    gather_one()
    assert len(cases) >= 60, "letters in frames are sixty, and all others are more"
    return cases


def check_all(cases, values, is_right):
    """Each case is right with its value; the shortest that is not is named."""
    wrong = [(case, value) for case, value in zip(cases, values, strict=True) if not is_right(value, **case)]
    assert not wrong, f"{len(wrong)} of {len(cases)}, such as {min(wrong, key=lambda pair: len(repr(pair)))}"


@pytest.fixture
def score(schema):
    """Return a macro's result: (value, extracted, explanation), or None for no score."""

    def call(macro, *arguments):
        marks = ", ".join("?" * len(arguments))
        ((found,),) = schema.execute(f"select score_{macro}({marks})", list(arguments)).fetchall()
        return None if found is None else (found["value"], found["extracted"], found["explanation"])

    return call


# --- exact_match


@pytest.mark.parametrize(
    ("answer", "target", "ignore_case", "ignore_punctuation", "value", "extracted"),
    [
        ("4", "4", False, False, 1.0, "4"),
        (" 4\n", "\t4 ", False, False, 1.0, "4"),
        ("a b", "a  b", False, False, 0.0, "a b"),
        ("Paris", "paris", False, False, 0.0, "Paris"),
        ("Paris", "PARIS", True, False, 1.0, "paris"),
        ("ÉCOLE", "école", True, False, 1.0, "école"),
        ("Paris.", "Paris", False, False, 0.0, "Paris."),
        ("“Paris”.", "“Paris”", False, True, 1.0, "“Paris”"),
        ("4 .", "4", False, True, 1.0, "4"),
        ("", "", False, False, 1.0, ""),
        (" \n", "", False, False, 1.0, ""),
        ("", "4", False, False, 0.0, ""),
    ],
)
def test_exact_match(score, answer, target, ignore_case, ignore_punctuation, value, extracted):
    assert score("exact_match", answer, target, ignore_case, ignore_punctuation)[:2] == (value, extracted)


def test_all_of_pythons_punctuation_is_ignored_and_no_more(score):
    assert score("exact_match", f"a{string.punctuation}b", "ab", False, True)[0] == 1.0
    for sign in "¡–“”«»…§":
        assert score("exact_match", f"a{sign}b", "ab", False, True)[0] == 0.0


def test_white_space_is_what_python_strips(schema):
    characters = [
        chr(code)
        for code in range(1, sys.maxunicode + 1)
        if chr(code).isspace() or unicodedata.category(chr(code)) in ("Zs", "Zl", "Zp", "Cc", "Cf")
    ]
    assert sum(character.isspace() for character in characters) == 29
    texts = [f"{c}{c}x{c}" for c in characters]
    found = schema.execute("select strip_space(unnest(?))", [texts]).fetchall()
    assert [text for (text,) in found] == [text.strip() for text in texts]


# --- contains


@pytest.mark.parametrize(
    ("answer", "target", "ignore_case", "value"),
    [
        ("It is Paris, of course", "paris", True, 1.0),
        ("It is Paris, of course", "paris", False, 0.0),
        ("comparison", " paris ", True, 1.0),
        ("100%", "%", False, 1.0),
        ("", "x", True, 0.0),
        ("anything", "", True, 0.0),
        ("a_b", "a%b", True, 0.0),
    ],
)
def test_contains(score, answer, target, ignore_case, value):
    assert score("contains", answer, target, ignore_case)[:2] == (value, answer.strip())


# --- regex


@pytest.mark.parametrize(
    ("answer", "target", "pattern", "group", "take", "ignore_case", "value", "extracted"),
    [
        ("a=1, b=2", "1", r"=(\d)", 1, "first", False, 1.0, "1"),
        ("a=1, b=2", "2", r"=(\d)", 1, "last", False, 1.0, "2"),
        ("a=1, b=2", "=2", r"=(\d)", 0, "last", False, 1.0, "=2"),
        ("ANSWER: yes", "YES", r"answer: (\w+)", 1, "first", True, 1.0, "yes"),
        ("ANSWER: yes", "yes", r"answer: (\w+)", 1, "first", False, 0.0, None),
        ("x", "x", r"(y)?x", 1, "first", False, 0.0, None),
        ("say  42 ", "42", r"say(.*)", 1, "first", False, 1.0, "42"),
        ("line\n#### 7", "7", r"(?m)^#### (\d+)$", 1, "first", False, 1.0, "7"),
        ("", "", "^$", 0, "first", False, 1.0, ""),
    ],
)
def test_regex(score, answer, target, pattern, group, take, ignore_case, value, extracted):
    assert score("regex", answer, target, pattern, group, take, ignore_case)[:2] == (value, extracted)


# --- numeric

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
def test_numbers_are_found_in_a_text(evaluate, text, numbers):
    assert evaluate("find_numbers(?)", text) == numbers


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
        ("10^400", float("inf"), False),
        ("-$1/4", -0.25, False),
    ],
)
def test_a_number_is_read(evaluate, token, number, is_percent):
    assert evaluate("read_number(?)", token) == {"number": number, "is_percent": is_percent}


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
        ("1e999", "1", 0.0, "inf"),
        ("-0", "0", 1.0, "0"),
    ],
)
def test_numeric(score, answer, target, value, extracted):
    assert score("numeric", answer, target, 0.0, 0.0, "last")[:2] == (value, extracted)


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
def test_take_number_reads_gsm8ks_mark_and_no_heading(evaluate, answer, number):
    assert evaluate("take_number(?, 'last')", answer)["number"] == number


@pytest.mark.hypothesis
def test_take_number_agrees_with_a_reader_in_python(ask_of_all):
    """Lines with and without a mark, read by Python's own regular expressions."""

    def read(text):
        marked = [
            line
            for line in re.findall("####([^\n]*)", text)
            if re.match(r"[^A-Za-z\d]*\d", line) and not re.match(r"\s*\d{1,2}[.):]\s+\S", line)
        ]
        numbers = re.findall(r"(?<!\S)-?\d+", re.sub(r"[#.:)]", " ", marked[-1] if marked else text))
        return float(numbers[0 if marked else -1]) if numbers else None

    line = st.sampled_from(
        ["#### {}", "####{}", "#### {}. Add", "#### {}: add", "#### Step {}", "#### ", "so {}", "no"]
    )
    lines = st.lists(st.tuples(line, st.integers(-999, 999)), min_size=1, max_size=5)
    cases = [{"text": "\n".join(form.format(number) for form, number in one["lines"])} for one in gather(lines=lines)]
    found = ask_of_all("take_number(text, 'last')", cases)
    check_all(cases, found, lambda value, text: value["number"] == read(text))


def test_numeric_tolerances_and_the_first_number(score):
    assert score("numeric", "about 9.9", "10", 0.1, 0.0, "last")[0] == 1.0
    assert score("numeric", "about 9.8", "10", 0.1, 0.0, "last")[0] == 0.0
    assert score("numeric", "990", "1000", 0.0, 0.01, "last")[0] == 1.0
    assert score("numeric", "989", "1000", 0.0, 0.01, "last")[0] == 0.0
    assert score("numeric", "7 of 9", "7", 0.0, 0.0, "first")[:2] == (1.0, "7")
    assert score("numeric", f"1{'0' * 400}", f"2{'0' * 400}", 0.0, 0.0, "last")[0] == 0.0, "both beyond a double"
    assert score("numeric", "7", "a dozen", 0.0, 0.0, "last") == (0.0, "7", "no number in the target")


@pytest.mark.hypothesis
def test_a_number_in_words_is_itself(ask_of_all):
    numbers = st.floats(allow_nan=False, allow_infinity=False)
    drawn = gather(number=numbers, words=st.sampled_from(["{}", "= {}.", "so {} km", "${}"]))
    cases = [{"text": one["words"].format(repr(one["number"])), "target": repr(one["number"])} for one in drawn]
    found = ask_of_all("score_numeric(text, target, 0, 0, 'last')", cases)
    check_all(cases, found, lambda value, text, target: value["value"] == 1.0)


@pytest.mark.hypothesis
def test_thousands_separators_change_nothing(ask_of_all):
    drawn = [one["number"] for one in gather(number=st.integers(-(10**15), 10**15))]
    cases = [
        {"text": text, "target": str(number)}
        for number in drawn
        for text in (f"{number:,}", f"{number:,}".replace(",", "'"), f"The total is {number:,} dollars.")
    ]
    found = ask_of_all("score_numeric(text, target, 0, 0, 'last')", cases)

    def is_right(value, text, target):
        return value["value"] == 1.0 and (value["extracted"] == target or abs(int(target)) >= 10**15)

    check_all(cases, found, is_right)


@pytest.mark.hypothesis
def test_the_end_of_a_long_text_is_enough_for_its_last_number(ask_of_all):
    cases = gather(text=st.text("0123456789.,-/%e ×^'AB){}\n", min_size=90, max_size=160))
    pair = "{'found': take_number(text, 'last').number, 'expected': read_number(find_numbers(text)[-1]).number}"
    check_all(cases, ask_of_all(pair, cases), lambda value, text: value["found"] == value["expected"])


# --- choice


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        ("B", "B"),
        ("(B)", "B"),
        ("B. Paris", "B"),
        ("b) Paris", "B"),
        ("The answer is (B).", "B"),
        ("the answer is: **B**", "B"),
        ("Answer: b", "B"),
        ("The correct option is C because A is wrong.", "C"),
        (r"So \boxed{C}", "C"),
        (r"The answer is $\boxed{\text{C}}$.", "C"),
        ("The answer is A. Wait. The answer is D.", "D"),
        ("The answer is a dog, so (D)", "D"),
        ("A dog barks, so it must be C", "C"),
        ("B\n\nExplanation: A is wrong, C too.", "B"),
        ("Both A and B look right, but only C is", "C"),
        ("答案是B。", "B"),
        ("It's (A), not (B)", "A"),
        ("Because", None),
        ("E", None),
        ("B's", None),
        ("", None),
    ],
)
def test_the_letter_that_an_answer_settles_on(evaluate, answer, letter):
    assert evaluate("take_letter(strip_space(?), 'ABCD').letter", answer) == letter


@pytest.mark.parametrize(
    ("target", "letters", "letter"),
    [
        ("B", "ABCD", "B"),
        ("b", "ABCD", "B"),
        ("(B)", "ABCD", "B"),
        ("B. Paris", "ABCD", "B"),
        ("1", "ABCD", "B"),
        ("0", "ABCD", "A"),
        ("4", "ABCD", None),
        ("1", "1234", "1"),
        ("E", "ABCD", None),
        ("", "ABCD", None),
    ],
)
def test_the_letter_of_a_target(evaluate, target, letters, letter):
    assert evaluate("target_letter(?, ?)", target, letters) == letter


def test_choice_says_why(score):
    assert score("choice", "(C)", "2", "ABCD") == (1.0, "C", "the letter of the target")
    assert score("choice", "(C)", "A", "ABCD") == (0.0, "C", "C, not A")
    assert score("choice", "I do not know", "A", "ABCD") == (0.0, None, "no letter in the answer")
    assert score("choice", "A", "Paris", "ABCD") == (0.0, "A", "the target is none of ABCD: Paris")
    assert score("choice", "The answer is 3", "3", "1234")[0] == 1.0


@pytest.mark.hypothesis
def test_a_letter_in_a_frame_is_itself(ask_of_all):
    frames = st.sampled_from(["{}", "({})", "{}.", "Answer: {}", "**{}**", "It is ({})."])
    drawn = gather(letter=st.sampled_from("ABCDEFGHIJ"), frame=frames)
    cases = [{"text": one["frame"].format(one["letter"]), "letter": one["letter"]} for one in drawn]
    found = ask_of_all("take_letter(text, 'ABCDEFGHIJ').letter", cases)
    check_all(cases, found, lambda value, text, letter: value == letter)


# --- token_f1


def squad_f1(answer, target):
    """Written after the description of SQuAD's metric, with Python's own means."""

    def words(text):
        bare = "".join(sign for sign in text.lower() if sign not in string.punctuation)
        return re.sub(r"\b(a|an|the)\b", " ", bare).split()

    found, wanted = words(answer), words(target)
    if not found or not wanted:
        return float(found == wanted)
    shared = sum((Counter(found) & Counter(wanted)).values())
    if shared == 0:
        return 0.0
    precision, recall = shared / len(found), shared / len(wanted)
    return 2 * precision * recall / (precision + recall)


@pytest.mark.parametrize(
    ("answer", "target", "value", "extracted"),
    [
        ("The cat sat", "a cat, sat!", 1.0, "cat sat"),
        ("cat cat cat", "cat", 0.5, "cat cat cat"),
        ("dog", "cat", 0.0, "dog"),
        ("the", "an", 1.0, ""),
        ("", "cat", 0.0, ""),
    ],
)
def test_token_f1(score, answer, target, value, extracted):
    assert score("token_f1", answer, target)[:2] == (value, extracted)


WORDS = st.lists(
    st.one_of(
        st.sampled_from(["the", "a", "cat", "Cat,", "sat", "an", "don't", "U.S."]),
        st.text(string.printable, max_size=5),
    ),
    max_size=12,
).map(" ".join)


@pytest.mark.hypothesis
def test_token_f1_against_python(ask_of_all):
    cases = gather(answer=WORDS, target=WORDS)
    found = ask_of_all("score_token_f1(answer, target)", cases)
    check_all(cases, found, lambda value, answer, target: value["value"] == pytest.approx(squad_f1(answer, target)))


# --- loglikelihood


@pytest.mark.parametrize(("normalize", "extracted"), [("none", "no"), ("bytes", "certainly"), ("tokens", "não")])
def test_the_likeliest_option(score, normalize, extracted):
    options, logprobs, tokens = ["no", " certainly", "não"], [-2.0, -6.0, -3.5], [1, 2, 3]
    value, found, _ = score("loglikelihood", options, logprobs, tokens, extracted, normalize)
    assert (value, found.strip()) == (1.0, extracted)
    assert score("loglikelihood", options, logprobs, tokens, "yes", normalize)[0] == 0.0


def test_loglikelihood_says_why(score):
    two = (["yes", "no"], [-1.5, -2.0], [1, 1])
    assert score("loglikelihood", *two, "no", "none") == (0.0, "yes", "yes (-1.5) is likelier than no (-2.0)")
    assert score("loglikelihood", ["a", "b"], [-1.0, -1.0], [1, 1], "0", "none")[:2] == (
        1.0,
        "a",
    )  # the first of equals
    assert score("loglikelihood", ["a", ""], [-1.0, -1.0], [1, 0], "b", "bytes")[0] == 0.0
    assert score("loglikelihood", *two, "no", "none")[2] == "yes (-1.5) is likelier than no (-2.0)"
    assert score("loglikelihood", *two, "maybe", "none")[2] == "the target is none of the options: maybe"


@pytest.mark.parametrize(
    ("target", "options", "index"),
    [
        ("y", ["x", "y"], 1),
        (" y ", ["x", "y"], 1),
        ("y", [" x", " y"], 1),
        ("1", ["x", "y"], 1),
        ("1", ["2", "1", "0"], 1),  # a text before a place
        ("B", ["x", "y"], 1),
        ("a", ["x", "y"], 0),
        ("C", ["x", "y"], None),
        ("1.5", ["x", "y", "z"], None),
        ("-1", ["x", "y"], None),
        (None, ["x"], None),
        ("x", None, None),
    ],
)
def test_the_option_that_a_target_means(evaluate, target, options, index):
    assert evaluate("find_option(?, ?::varchar[])", target, options) == index


# --- all of them

CALLS = {
    "exact_match": (True, True),
    "contains": (True,),
    "regex": (r"(\d+)", 1, "last", True),
    "numeric": (0.0, 0.0, "last"),
    "choice": ("ABCD",),
    "token_f1": (),
}


@pytest.mark.parametrize("macro", CALLS)
def test_no_target_no_score_and_no_answer_no_point(score, macro):
    assert score(macro, "answer", None, *CALLS[macro]) is None
    assert score(macro, None, None, *CALLS[macro]) is None
    assert score(macro, None, "target", *CALLS[macro]) == (0.0, None, "no answer")


def is_score(value, **_):
    return 0 <= value["value"] <= 1 and value["explanation"] and len(value["explanation"]) < 250


@pytest.mark.hypothesis
@pytest.mark.parametrize("macro", CALLS)
def test_scores_of_any_answer_are_between_0_and_1(ask_of_all, macro):
    drawn = gather(answer=ANY_TEXT, target=ANY_TEXT)
    cases = [{key: text.encode("utf-8", "replace").decode() for key, text in one.items()} for one in drawn]
    marks = "".join(", ?" for _ in CALLS[macro])
    check_all(cases, ask_of_all(f"score_{macro}(answer, target{marks})", cases, CALLS[macro]), is_score)


@st.composite
def draw_likelihoods(draw):
    count = draw(st.integers(1, 5))
    options = draw(st.lists(st.text(st.characters(codec="utf-8"), max_size=5), min_size=count, max_size=count))
    chances = st.one_of(st.none(), st.floats(max_value=0), st.just(float("nan")))
    logprobs = draw(st.lists(chances, min_size=count, max_size=count))
    target = draw(st.one_of(st.sampled_from(options), st.sampled_from(["0", "B", "zebra"])))
    return {"options": options, "logprobs": logprobs, "tokens": [1] * count, "target": target}


@pytest.mark.hypothesis
def test_scores_of_any_likelihoods_are_between_0_and_1(ask_of_all):
    drawn = gather(case=draw_likelihoods(), normalize=st.sampled_from(["none", "bytes", "tokens"]))
    cases = [{**one["case"], "normalize": one["normalize"]} for one in drawn]
    found = ask_of_all(
        "score_loglikelihood(options, logprobs, tokens, target, normalize)",
        cases,
        options="varchar[]",
        logprobs="double[]",
        tokens="integer[]",
    )
    check_all(cases, found, lambda value, **_: value["value"] in (0.0, 1.0) and value["explanation"])
