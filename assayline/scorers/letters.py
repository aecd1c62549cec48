"""The scorer choice: the letter that an answer settles on against the target's.

| evidence, strongest first | found by |
|---|---|
| the last `\\boxed{B}` | stated |
| the last announcement: "the answer is (B)", "Answer: b", "答案是B", "it must be B", a JSON key or tag | stated |
| the last "B is correct" | stated |
| the last line that is a letter | only |
| the letter at the start, alone or before a remark: "B. Paris", "B (A is a trap)", "B because A is false" | only |
| the only capital | only |
| the last of several capitals | last |

Text after a new question or turn does not count. Letters that are listed together ("A or B"), denied ("not B", "B is
wrong") or compared with ("unlike B"), an article A, a pronoun I and the letters before options that are listed line by
line do not count. An announced letter may be one of another alphabet: by its place, or by its shape in Cyrillic.
"""

import re
from functools import lru_cache
from typing import Any, NamedTuple

from assayline.scorers import Score, shorten
from assayline.scorers.reading import IT, cut_next_question, find_announcements, plain_signs

ALPHABETS = {
    "АБВГ": "ABBD", "СЕ": "CE", "ΑΒΓΔΕ": "ABCDE", "אבגדה": "ABCDE", "أبجدا": "ABCDA", "কখগঘ": "ABCD", "অবডঢ": "ABCD",
    "कखगघ": "ABCD", "अबसद": "ABCD", "กขคง": "ABCD", "가나다라": "ABCD", "アイウエ": "ABCD", "甲乙丙丁": "ABCD",
}  # fmt: skip
"""Letters of other alphabets that label options. Cyrillic ones of a Latin shape are that letter: С is C, В is B."""
OTHER_LETTERS = "".join(ALPHABETS)
TO_LATIN = str.maketrans(OTHER_LETTERS, "".join(ALPHABETS.values()))


class Rules(NamedTuple):
    """The patterns for one set of letters."""

    listed: re.Pattern[str]
    denied: re.Pattern[str]
    boxed: re.Pattern[str]
    announced: re.Pattern[str]
    confirmed: re.Pattern[str]
    alone: re.Pattern[str]
    first: re.Pattern[str]
    labels: re.Pattern[str]
    items: re.Pattern[str]
    capital: re.Pattern[str]


def score_choice(answer: str, target: str, row: dict[str, Any], letters: str = "ABCD") -> Score:
    """Return 1 if the letter that the answer settles on is the target's.

    The target is a letter, bare or as in "(B)" and "B. text", or, if the letters have no digits, its 0-based place, as
    in MMLU.
    """
    (found, found_by), wanted = take_letter(answer, letters), find_target(target, letters)
    if wanted is None:
        return Score(0.0, found, f"the target is none of {letters}: {shorten(target)}", found_by)
    if found is None:
        return Score(0.0, None, "no letter in the answer")
    if found == wanted:
        return Score(1.0, found, "the letter of the target", found_by)
    return Score(0.0, found, f"{found}, not {wanted}", found_by)


def find_target(target: str, letters: str) -> str | None:
    """Return the letter that a target means; None if it is none."""
    target = plain_signs(target.strip())
    if target.isdigit() and not re.search(r"\d", letters):
        return letters[int(target)] if len(target) < 3 and int(target) < len(letters) else None
    match = re.match(rf"\(?([{letters}{letters.lower()}])(?:\)?$|[.:)](?:\s|$))", target)
    return match[1].upper() if match else None


def take_letter(text: str, letters: str) -> tuple[str | None, str | None]:
    """Return the letter that a text settles on, in upper case, and how it was found; the module has the rules."""
    rules = _compile(letters)
    plain = plain_signs(cut_next_question(text).strip())
    if len(plain) == 1:
        return (_latin(plain), "only") if _latin(plain) in letters else (None, None)
    plain = rules.denied.sub(" - ", rules.listed.sub("", plain))
    if stated := _find_stated(plain, rules):
        return stated, "stated"
    if alone := rules.alone.findall(plain):
        return _latin(alone[-1]), "only"
    if len(rules.labels.findall(plain)) < 2 and (first := rules.first.match(plain)):
        return (first[1] or first[2]).upper(), "only"
    if len(rules.items.findall(plain)) >= 2:
        plain = rules.items.sub(" ", plain)
    plain = ARTICLE.sub("", A_AS_LETTER.sub(r"A. \1", plain))
    capitals = rules.capital.findall(plain)
    if not capitals:
        return None, None
    return capitals[-1], "only" if len(set(capitals)) == 1 else "last"


def _find_stated(plain: str, rules: Rules) -> str | None:
    if "\\boxed" in plain and (boxed := rules.boxed.findall(plain)):
        return _latin(boxed[-1])
    for end in reversed(find_announcements(plain, f"{IT}|{CHOOSE}")):
        if letter := rules.announced.match(plain, end):
            return _latin(letter[1])
    confirmed = rules.confirmed.findall(plain)
    return _latin(confirmed[-1]) if confirmed else None


def _latin(letter: str) -> str:
    return letter.upper().translate(TO_LATIN)


ARTICLE = re.compile(r"(?a:\b)[AI]\s+[a-zß-öø-ɏα-ωа-яё]")
A_AS_LETTER = re.compile(r"(?a:\b)A\s+(because|since|as|is|was|fits)\b")
CHOOSE = r"choose|pick|select|go\s+with|going\s+with|opt\s+for"
OPENING = r"[\s*_\"“„«'‘`(\[{$]*"
ALONE = r"(?![^\W_]|['’](?=[^\W\d_]))"
"""Nothing of a word follows."""
AND_OR = r",?\s+(?:and|or|nor|und|oder|et|ou|y|o|e|и|или)\s+(?:maybe\s+|perhaps\s+)?"
NOT = (
    r"(?:(?i:\b(?:not|cannot|nicht|pas|niet|nie|inte|bukan|unlike|eliminated?|exclude|reject|discard|rule\s+out|rather\s+than"
    r"|instead\s+of|other\s+than)|n['’]t)(?i:\s+(?:be|the|option|choice|letter|answer|la|die))*\s+|\bне\s+|不是|不选|排除)[*_(]*"
)
IS_WRONG = (
    r"[)\]*_\"'.]*(?:\s+(?i:(?:is|are|was|would\s+be|ist|es|est|é|è|są|jest)(?:\s+\w+ly)?\s+(?:wrong|incorrect|false|not|out|impossible|invalid"
    r"|excluded|eliminated|ruled|a\s+trap|a\s+distractor|falsch|nicht|inkorrekt|incorrect[aoe]|fals[aoe]|faux|fausse|errad[ao]"
    r"|errat[ao]|sbagliat[ao]|fout|onjuist|fel|błędn[aey]|niepoprawn[aey]|yanlış|salah)|(?:is|was|ca|does|wo)n['’]t|cannot|fails"
    r"|contradicts)\b|\s*(?:неверн|неправильн|не\s+подходит|是?错|是?錯|不对|不对|不正确|不對|不正確|は間違|は誤|は違|خطأ|غلط|गलत))"
)
IS_RIGHT = (
    r"[\s)\]*_\"'.]*\s(?i:is|was|ist|es|est)\s+(?i:(?:the|only|la|die)\s+)*"
    r"(?i:correct[ae]?|right|best|answer|richtig|korrekt)\b"
)
REMARK = (
    r"because|since|due|unlike|rather|while|whereas|but|weil|denn|porque|pues|parce|car|perché|want|omdat|потому|так"
    r"|а\s+не|因为|因為"
)


@lru_cache
def _compile(letters: str) -> Rules:
    one, other = f"(?a:\\b)[{letters}]", "".join(sorted(set(OTHER_LETTERS)))
    small = letters.lower() + "".join(letter.lower() for letter in other if letter.lower() != letter)
    return Rules(
        listed=re.compile(rf"{one}(?:\)?(?:\s*[,/&]\s*|{AND_OR})\(?[{letters}](?a:\b))+"),
        denied=re.compile(rf"{NOT}[{letters}](?a:\b)|{one}{IS_WRONG}"),
        boxed=re.compile(
            rf"\\boxed\s*\{{(?:[\s({{$*]|\\(?:text|mathrm|textbf|mathbf)\b)*([{letters}{letters.lower()}]){ALONE}"
        ),
        announced=re.compile(
            r"(?i:\s*(?:option|choice|letter|opción|opção|opzione|buchstabe|вариант|буква|选项|選択肢|الخيار)\b)?"
            rf"(?:{OPENING}\\(?:boxed|text|mathrm|textbf|mathbf)\b)*{OPENING}"
            rf"([{letters}{other}](?!=){ALONE}|[{small}](?=[.,;:!)\]}}*\"\n]|$))"
        ),
        confirmed=re.compile(rf"({one}){IS_RIGHT}"),
        alone=re.compile(rf"^{OPENING}([{letters}{other}{letters.lower()}])[\s.:)\]}}*_\"$`]*$", re.MULTILINE),
        first=re.compile(
            rf"{OPENING}(?:(?i:option|choice|answer)\s+\(?)?(?:([{letters}{letters.lower()}])(?:[.:)\]}}*\"\n]|\s+[-–—:]|\s*$)"
            rf"|(?!I\b)([{letters}])[)\]*_]*(?:\s*[,;(–—-]|\s+(?i:{REMARK})\b))"
        ),
        labels=re.compile(rf"(?:^|[.:;]\s)[\s*_(]*[{letters}][.:)]", re.MULTILINE),
        items=re.compile(rf"^[\s*_(]*[{letters}][.:)][ \t]*[^\s*_]", re.MULTILINE),
        capital=re.compile(rf"({one})(?a:\b)(?!['’])"),
    )
