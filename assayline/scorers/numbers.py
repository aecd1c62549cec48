"""The scorer numeric: the number that an answer gives against the target's.

| evidence, strongest first | found by |
|---|---|
| the last `#### 42`, as GSM8K marks answers (a heading is none) | stated |
| the last filled `\\boxed{42}` | stated |
| a last line that is only a number | only |
| the last announcement: "the answer is 42", a line `A: 42`, `{"answer": 42}`, `<answer>42</answer>` | stated |
| the only number | only |
| the last of several numbers | last |

The part behind the last = of an equation counts. Text after a new question or turn does not count. A mark or an
announcement with something else than a number (`3\\pi`, `2\\sqrt{3}`, `5x`, a time, a ratio, 5 or 6) gives none.
"""

import re
from decimal import Decimal, DecimalException
from typing import Any, Literal, NamedTuple

from assayline.scorers import Score
from assayline.scorers.reading import IT, cut_next_question, find_announcements, plain_signs

ROUNDING = 1e-15
"""Of doubles, as a share; always allowed."""


class Quantity(NamedTuple):
    """A number as it was read."""

    value: float | Decimal
    """A Decimal beyond the range of doubles."""
    is_percent: bool


def score_numeric(
    answer: str,
    target: str,
    row: dict[str, Any],
    tolerance: float = 0.0,
    relative_tolerance: float = 0.0,
    take: Literal["first", "last"] = "last",
) -> Score:
    """Return 1 if the number that the answer gives is the target's.

    They agree if |a - t| <= max(tolerance, relative_tolerance x |t|), as doubles, and beyond their range as decimals.
    Units and currencies do not count. If only one side is a percentage, 50% equals 50 and 0.5. `take: first` takes the
    first number unless `####` marks one.
    """
    (found, found_by), (wanted, _) = take_number(answer, take), take_number(target, "last")
    shown = found and _write(found)
    if wanted is None:
        return Score(0.0, shown, "no number in the target", found_by)
    if found is None:
        return Score(0.0, None, "no number in the answer")
    scales = [1.0]
    if found.is_percent != wanted.is_percent:
        scales.append(0.01 if found.is_percent else 100.0)
    if any(_agree(found.value, wanted.value, scale, tolerance, relative_tolerance) for scale in scales):
        return Score(1.0, shown, "the number of the target", found_by)
    return Score(0.0, shown, f"{shown}, not {_write(wanted)}", found_by)


def _agree(found: float | Decimal, wanted: float | Decimal, scale: float, most: float, most_share: float) -> bool:
    if isinstance(found, Decimal) or isinstance(wanted, Decimal):
        exact = Decimal(wanted)
        allowed = max(Decimal(most), Decimal(most_share + ROUNDING) * abs(exact))
        return abs(Decimal(found) * Decimal(scale) - exact) <= allowed
    return abs(found / 100 - wanted if scale == 0.01 else found * scale - wanted) <= max(
        most, (most_share + ROUNDING) * abs(wanted)
    )


def _write(number: Quantity) -> str:
    """Write 42, 42.0, $42 and 4.2e1 as one answer, and one vote."""
    value = number.value
    if isinstance(value, Decimal):
        text = str(value.normalize())
    else:
        text = str(int(value)) if abs(value) < 1e15 and value == int(value) else repr(value)
    return text + "%" * number.is_percent


# --- how a number is written

SIGN = "[-+]?"
DIGITS = (
    r"(?:(?:\d{1,2}(?:,\d{2})+,\d{3}(?!\d)|\d{1,3}(?:[,'’\xa0\u2009\u202f]\d{3})+|\d{1,3}(?: \d{3})+(?![\d/]))"
    r"(?:\.\d+)?|\d+\s+\d+/\d+|\d+\^[-+]?\d+|\d+(?:\.\d+)?|\.\d+)"
)
NUMBER = re.compile(
    r"(?:[A-Za-z_](?:[A-Za-z_]|-?\d+(?:\.\d+)*)*(?:\^[-+]?\d+)?[-.]?[\s,;:]*)+"
    rf"|({SIGN}(?:[$€£¥₹]\s?)?{SIGN}{DIGITS}(?:[eE][-+]?\d+)?(?:/\d+|\s?\\?%)?)(?:[A-Za-z)\]]?-|[^\d]|$)"
)
"""Words, so that the digits of H2O and GPT-4 do not count, or a number as group 1.

A hyphen after a digit, a unit of one letter or a bracket is consumed with it: in 10-4 it is not a sign.
"""
EXACT = re.compile(r"-?\d+(?:\.\d+)?")
FRACTION = re.compile(r"\s*([-+]*)\s*(?:(\d+) )?([-+0-9.eE]+)/(\d+)")
TAIL_CHARS = 100
"""A long answer without a statement is read from here: behind the first number there, all are as in the whole text."""

LATEX = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"(\d)\\[,:; ](\d{3})", r"\1,\2"),
        (r"(\d)\s*\\[dt]?frac", r"\1 \\frac"),
        (r"\\[dt]?frac\s*\{\s*(-?)\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}", r"\1\2/\3"),
        (r"\\[dt]?frac\s?(\d)\s?(\d)", r"\1/\2"),
    )
]
POWER = re.compile(r"\^\s?\{\s*([-+]?\d+)\s*\}")
SCIENTIFIC = re.compile(r"(\d)\s*(?:[×x*·]|\\times|\\cdot)\s*10\s?\^\s?([-+]?\d+)")
HAS_DECIMAL_COMMA = re.compile(r"\d,\d{1,2}(?:[^\d]|$)")
POINTS_AND_COMMA = re.compile(r"(^|[^\d.,])(\d{1,3})\.(\d{3}),(\d{1,2})([^\d,]|$)")
DECIMAL_COMMA = re.compile(r"(^|[^\d.,])(\d+),(\d{1,2})([^\d,]|,[^\d]|$)")
POINTS = re.compile(r"(?<![\d.,])\d{1,3}(?:\.\d{3}){2,}(?![\d]|\.\d)")


def plain_numbers(text: str) -> str:
    """Write LaTeX's numbers and those of other scripts as a keyboard has them: \\frac{1}{2} is 1/2, 1{,}234 is 1,234.

    3 x 10^5 is 3e5. A single comma before one or two digits is a decimal comma: 3,5 is 3.5, 1.234,50 is 1234.50, and
    1.234.567 is 1234567.
    """
    text = plain_signs(text)
    if "\\" in text or "{,}" in text:
        text = text.replace("{,}", ",").replace("\\!", "").replace("\\$", "$")
        for pattern, replacement in LATEX:
            text = pattern.sub(replacement, text)
    if "^" in text:
        text = SCIENTIFIC.sub(r"\1e\2", POWER.sub(r"^\1", text))
    if "," in text and HAS_DECIMAL_COMMA.search(text):
        return DECIMAL_COMMA.sub(r"\1\2.\3\4", POINTS_AND_COMMA.sub(r"\1\2\3.\4\5", text))
    return POINTS.sub(lambda number: number[0].replace(".", ""), text) if "." in text else text


def find_numbers(text: str) -> list[str]:
    """Return the numbers in a text as written, with sign, currency, exponent, % or denominator; 1 1/2 is one number."""
    return [match[1] for match in NUMBER.finditer(plain_numbers(text)) if match[1]]


def read_number(token: str) -> Quantity | None:
    """Return the value of a number as `find_numbers` gives it; None for x/0 and for a power beyond all ranges."""
    digits = re.sub(r"[^-+0-9.eE/^ ]", "", re.sub(r"(\d)\s+(\d+/)", r"\1 \2", token))
    is_percent = token.endswith("%")
    try:
        if "/" in digits:
            fraction = FRACTION.match(digits)
            assert fraction is not None
            sign, whole, part, parts = fraction.groups()
            value: float | Decimal = float(whole or 0) + float(part) / float(parts)
            return Quantity(-value if "-" in sign else value, is_percent)
        base, _, power = digits.replace(" ", "").partition("^")
        value = float(base) ** float(power) if power else float(base)
        if value in (float("inf"), float("-inf")):
            value = Decimal(base)
        return Quantity(value, is_percent)
    except OverflowError:
        try:
            return Quantity(Decimal(base) ** Decimal(power), is_percent)
        except DecimalException:
            return None
    except (ZeroDivisionError, ValueError, DecimalException):
        return None


# --- what a number is part of

SCALES = {"dozen": 12.0} | {f"e{digits}": 10.0**digits for digits in (*range(2, 10), 12)}
MONEY = {"k": "e3", "m": "e6", "mn": "e6", "b": "e9", "bn": "e9", "t": "e12", "tn": "e12"}
SCALE_WORDS = {
    "dozen": "dozen|dutzend|douzaines?|docenas?|dúzias?|dozzin[ae]|dozijn",
    "e2": "hundred|hundert|cents?(?= mille)|सौ|百(?!分)|백",
    "e3": "thousand|tausend|mille|mil(?! mill)|mila|duizend|tusen|tysiąc[ae]?|tysięcy|tisíce?|тысяч[аи]?|тыс\\.?"
    "|тисяч[аі]?|bin|ribu|elfu|nghìn|ngàn|हज़ार|हजार|হাজার|వేలు|వేల|พัน|ألف|آلاف|هزار|אלף|千(?![克米瓦卡焦赫伏])|천",
    "e4": "万|萬|만|หมื่น",
    "e5": "lakhs?|lacs?|लाख|লাখ|লক্ষ|లక్షలు|లక్షల|లక్ష|แสน",
    "e6": "millions?|millionen|mn|mio\\.?|millón|millones|milhão|milhões|milion[iye]|milion(?:ów|ů)?|milioni|miljoen"
    "|miljon(?:er)?|миллион(?:а|ов)?|млн\\.?|мільйон(?:а|ів)?|milyon|juta|triệu|मिलियन|ล้าน|مليون|ملايين|میلیون|מיליון|百万|百萬",
    "e7": "crores?|करोड़|करोड|কোটি|కోట్లు|కోట్ల|కోటి",
    "e8": "亿|億|억",
    "e9": "billions?(?!en)|bn|milliarden?|mrd\\.?|milliards?|mil millones|bilhão|bilhões|miliard[iay]?"
    "|miliardů|miliardów|miljard(?:er)?|миллиард(?:а|ов)?|млрд\\.?|мільярд(?:а|ів)?|milyar|miliar|tỷ|tỉ|بليون|مليار(?:ات)?|میلیارد|מיליארד|十亿|十億",
    "e12": "trillions?(?!en)|tn|billionen|billones|billón|biljoen|biliões|bilioni|biliony|триллион(?:а|ов)?"
    "|трлн\\.?|trilhão|trilhões|trilyun|trilyon|triliun|تريليون|兆|万亿|萬億|조",
}
"""Words that multiply, in the languages that are read; German and Spanish billions are 10^12."""
SCALE = re.compile(
    r"[\s~-]*(?:\\[,;: ]\s*)*(?:"
    + "|".join(f"(?P<{name}>{words})" for name, words in reversed(SCALE_WORDS.items()))
    + r")(?![A-Za-zÀ-ɏЀ-ӿ])",
    re.IGNORECASE,
)
SCALE_OF_MONEY = re.compile(r"([kmbtKMBT]|\s?(?:mn|bn|tn|[KMBT]))(?![A-Za-z])")
AND_A_HALF = re.compile(r"\s+and\s+(?:a|one)[\s-]half\b", re.IGNORECASE)
PERCENT = re.compile(
    r"\s*(?:percent(?:age)?\b|per\s?cent\b|pct\b|prozent\b|por\s?cien(?:to)?\b|por cento\b|pour\s?cents?\b|per cento\b"
    r"|procent|процент|відсот|persen\b|phần trăm|퍼센트|パーセント|प्रतिशत|শতাংশ|శాతం|เปอร์เซ็นต์"
    r"|في المئة|بالمئة|بالمائة|درصد|אחוז)",
    re.IGNORECASE,
)
NEGATION = re.compile(
    r"(?<![\d)}])(?<!\d\s)(?:\b(?:minus|negative|negativ|moins|menos|meno|negatief|eksi|âm)\s|\bминус\s|\bмінус\s|سالب\s|ناقص\s|منفی\s"
    r"|माइनस\s|ऋण\s|ลบ\s?|マイナス\s?|마이너스\s?|[负負])[\s*_$(]*$",
    re.IGNORECASE,
)
DENIED = re.compile(
    r"(?:\b(?:not|cannot|nicht|pas|niet|nie|inte|bukan)|n['’]t|\bno es|\bnão é|\bnon è|\bне|不是|并非)"
    r"(?:\s+(?:be|the|equal to|exactly|number|answer|la|die))*[\s*_(\"“$]*\Z",
    re.IGNORECASE,
)
FUNCTIONS = "sqrt|log|ln|lg|exp|sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan"
SYMBOLS = "pi|theta|alpha|beta|gamma|delta|lambda|mu|phi|omega|sigma|tau|rho|infty|binom"
OPERATORS = r"\\(?:times|cdot|div|pm|mp|leq?|geq?|neq?|lt|gt|mod|bmod|pmod)(?![A-Za-z])"
PART_BEFORE = re.compile(
    rf"(?:\\(?:{FUNCTIONS}|{SYMBOLS})(?![A-Za-z])\s*(?:\[[^\]]*\])?[\s{{}}(/*^_-]*|\\(?:pm|mp|leq?|geq?|neq?|lt|gt)\s*|[√π≤≥≠±]\s*[(/]?"
    rf"|(?<![A-Za-z])[b-zB-HJ-Z]\s*[*/^]\s*|\b(?:{FUNCTIONS})\s*\(?\s*|[\w)}}]\s?[<>]=?\s*)$"
)
TAG_BEFORE = re.compile(r"<[^<>\n]*>[\s*_\"'`$({]*$")
PART_AFTER = re.compile(
    rf"\s*(?:\\[,;:! ]\s*)*(?:\\(?:{FUNCTIONS}|{SYMBOLS})(?![A-Za-z])|\\[dt]?frac|{OPERATORS}|[π√∞θφ±]"
    r"|\^(?!\s*\{?\s*(?:\\circ|°|\\?(?:text|mathrm)?\{?(?:st|nd|rd|th)\b))|_\s*[\d{]|!(?=\s*[$}])|:(?=\d)"
    r"|[-+]\s*(?:\d*\s?[b-hj-zB-HJ-Z](?![A-Za-z])|\d*\\[a-z]|\d*\()|/\s*(?:[a-gi-ln-rt-z](?![A-Za-z])|\\)|[<>≤≥≠]\s*\w+(?![\w]*>))"
    r"|(?:[abcdeijknopqruvwxyzBDEGHIKMOPQRSTUXYZ]|(?![nr]d)[abcdnkxyz]{2,4}|pi)(?![A-Za-z])|i?(?:sqrt|sin|cos|tan|log|ln|exp)\b"
    r"|\s+[xyznk](?=\s*(?:[-+*/^.,;}$)]|$))|\(\s*(?:[-+]?\d*[a-zA-Z]\s*[-+*/^)]|\\)|\s+times\s+(?:as|the|more)\b"
    r"|\s+(?:pi|sqrt|squared|cubed|factorial|to the|tenths|hundredths|thousandths|millionths"
    r"|halves|thirds|quarters|fifths)\b"
)
"""A factor, an operator with a variable, a power, a base, a factorial, a time or a comparison behind a number."""
ARITHMETIC = re.compile(r"\s*(?:\\times|\\cdot|\\div|[-+*×·÷/])\s*[$(]?\d|\s+(?:x|times|plus|minus|divided by)\s+\d")
SEVERAL = re.compile(
    r"\s*,?\s*(?:or|oder|ou|eller|lub|atau|veya|или|або|或|または|또는|أو|या|to|bis|until)\s+[-$€£]?\d|\s?[–—-]\s?\d|,\s?-?\d+\s*[,)\]]",
    re.IGNORECASE,
)
WORDS_IN_BOX = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)\s*\{([^{}]*)\}(?:\^\{?-?\d\}?)?")
NEXT_NAME = re.compile(r"=[^=]*[,;]\s*\\?[A-Za-z_]\w*\s*=")
NAMED = re.compile(rf"\\(?:{FUNCTIONS}|{SYMBOLS})(?![A-Za-z])")
UNIT_POWER = re.compile(r"\^\s*\{?\s*-?\d\s*\}?")


# --- which number counts

BOX = re.compile(r"\\boxed\s*\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}")
MARK = re.compile("####([^\n]*)")
HEADING = re.compile(r"\s*\d{1,2}[.):]\s+\S")
STARTS = re.compile(r"(?:[^\w\\]|_|\\[A-Za-z]+|\\[^A-Za-z]|[a-z]\s*=|(?:minus|negative)\s)*+\d", re.IGNORECASE)
LAST_LINE = re.compile(
    rf"[\s*_`$>(\[{{=≈]*?({SIGN}(?:[$€£¥₹]\s?)?{SIGN}\d[\d.,']*(?: \d{{3}})*(?:/\d+)?\s?\\?%?)[\s*_`$.)\]}}]*"
)
STATEMENT_CHARS = 500
"""Longest statement that is read behind the words that announce it."""
LABEL = r"\n[ \t>*_#-]*(?:a|ans|result|r|resp)[*_ \t]*(?=[:：])"
ABOUT = re.compile(
    r"\s*(?:about|approximately|around|roughly|exactly|only|etwa|rund|environ|aproximadamente|circa|约|約)\b",
    re.IGNORECASE,
)
SEGMENT_END = re.compile(r"[.!?][\"”*_)]*(?:\s|$)|[。！？]|</|\",|\n|$")


def take_number(text: str, take: str = "last") -> tuple[Quantity | None, str | None]:
    """Return the number that a text gives as its answer, and how it was found; the module has the order of evidence."""
    text = text.strip()
    if EXACT.fullmatch(text):
        return read_number(text), "only"
    plain = plain_numbers(cut_next_question(text))
    if "####" in plain and (mark := _find_mark(plain)):
        return _state(_read_statement(plain, mark))
    if take == "last":
        if "\\boxed" in plain and (box := [box for box in BOX.finditer(plain) if box[1].strip()][-1:]):
            return _state(_read_box(box[0][1]))
        _, is_line, last = plain.rstrip(" \n*_`$.").rpartition("\n")
        if is_line and (line := LAST_LINE.fullmatch(last)) and (number := read_number(line[1])):
            return number, "only"
        is_stated, number = _read_announcements(plain)
        if is_stated:
            return _state(number)
    return _take_any(plain, take)


def _state(number: Quantity | None) -> tuple[Quantity | None, str | None]:
    return number, None if number is None else "stated"


def _find_mark(plain: str) -> re.Match[str] | None:
    """Return the number that the last `####` marks whose line begins with one and is not a heading ("#### 1. Add")."""
    marked = None
    for line in MARK.finditer(plain):
        if STARTS.match(line[1]) and not HEADING.match(line[1]):
            marked = _first_number(plain, line.start(1), line.end(1))
    return marked


def _read_announcements(plain: str) -> tuple[bool, Quantity | None]:
    """Return whether an announcement is followed by a number or an expression, and the number of the last one."""
    for more, start in ((LABEL, 0), (f"{LABEL}|{IT}", plain.rfind("\n", 0, len(plain.rstrip())) + 1)):
        for end in reversed(find_announcements(plain[start:], more)):
            first = ABOUT.match(plain, start + end)
            begin = first.end() if first else start + end
            stop = SEGMENT_END.search(plain, begin, begin + STATEMENT_CHARS)
            segment = plain[begin : stop.start() if stop else begin + STATEMENT_CHARS]
            if not STARTS.match(segment):
                continue
            begin += max(segment.rfind("="), segment.rfind("≈")) + 1
            if not STARTS.match(plain, begin) or (number := _first_number(plain, begin, len(plain))) is None:
                continue
            if not ARITHMETIC.match(plain, number.end(1)):
                return True, _read_statement(plain, number)
    return False, None


def _read_statement(plain: str, number: re.Match[str]) -> Quantity | None:
    return None if SEVERAL.match(plain, number.end(1)) else _read_value(plain, number)


def _read_box(content: str) -> Quantity | None:
    """Return the number of a box, which has nothing else but words, a unit, and what the number equals."""
    bare = WORDS_IN_BOX.sub(lambda words: f" {words[1]} " if SCALE.match(words[1]) else " ", content)
    content = bare if re.search(r"\d", bare) else WORDS_IN_BOX.sub(r" \1 ", content)
    if NEXT_NAME.search(content):
        return None  # x = 3, y = 4
    begin = max(content.rfind("="), content.rfind("≈"), content.rfind(":") if ":" in content else -1) + 1
    if not STARTS.match(content, begin):
        return _read_announcements(content)[1]
    number = _first_number(content, begin, len(content))
    if number is None or NAMED.search(content, begin, number.start(1)) or content[number.end(1) :].startswith("!"):
        return None
    if re.search(r"\d", UNIT_POWER.sub("", content[number.end(1) :])):
        return None
    return _read_statement(content, number)


def _take_any(plain: str, take: str) -> tuple[Quantity | None, str | None]:
    """Return the only number, or the first or last of several, without those that are denied ("not 5")."""
    start = 0 if take == "first" else max(0, len(plain) - TAIL_CHARS)
    tokens = [match for match in NUMBER.finditer(plain, start) if match[1]]
    if start and len(tokens) < 2:
        tokens = [match for match in NUMBER.finditer(plain) if match[1]]
    tokens = [token for token in tokens if not DENIED.search(plain, max(0, token.start(1) - 40), token.start(1))]
    if not tokens:
        return None, None
    number = _read_value(plain, tokens[0 if take == "first" else -1])
    return number, None if number is None else "only" if len(tokens) == 1 else "last"


def _first_number(text: str, start: int, end: int) -> re.Match[str] | None:
    return next((match for match in NUMBER.finditer(text, start, end) if match[1]), None)


def _read_value(plain: str, token: re.Match[str]) -> Quantity | None:
    """Return the value of a number with the words around it: scaled, negated; None if it is part of an expression."""
    start, end = token.span(1)
    before = plain[max(0, start - 40) : start]
    if PART_BEFORE.search(before) and not TAG_BEFORE.search(before):
        return None
    if (number := read_number(token[1])) is None:
        return None
    value, is_percent = number
    if half := AND_A_HALF.match(plain, end):
        value, end = float(value) + 0.5, half.end()
    is_scaled = False
    while scale := SCALE.match(plain, end):
        value, end, is_scaled = float(value) * SCALES[scale.lastgroup or ""], scale.end(), True
    if is_scaled:
        pass
    elif token[1].lstrip("-+")[0] in "$€£¥₹" and (scale := SCALE_OF_MONEY.match(plain, end)):
        value, end = float(value) * SCALES[MONEY[scale[1].strip().lower()]], scale.end()
    elif PERCENT.match(plain, end):
        is_percent = True
    if PART_AFTER.match(plain, end):
        return None
    if NEGATION.search(before) and value > 0:
        value = -value
    return Quantity(value, is_percent)
