"""Scorers that compare texts: exact_match, contains, regex and token_f1.

Canonically equivalent texts are one text: both sides are composed (NFC; Unicode Standard Annex 15).
"""

import string
from collections import Counter
from functools import lru_cache
from typing import Any, Literal
from unicodedata import normalize

import regex

from assayline.scorers import Score, shorten
from assayline.scorers.reading import cut_next_question

NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
WIDE_PUNCTUATION = regex.compile(r"[\p{P}&&[\u3000-\u303f\uff00-\uff65]]", regex.V1)
WITHOUT_BLANKS = r"\p{Han}\p{Hiragana}\p{Katakana}\u30fc\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}"
WORD = regex.compile(rf"[{WITHOUT_BLANKS}]\p{{M}}*|[^\s\x1c-\x1f{WITHOUT_BLANKS}]+")
"""A character of a script without blanks between words, or a word."""
ARTICLES = frozenset(("a", "an", "the"))
MOST_SEARCH_S = 2.0
"""Longest search of a pattern in one answer."""


def score_exact_match(answer: str, target: str, row: dict[str, Any], ignore_case: bool = False) -> Score:
    """Return 1 if answer and target are the same text, apart from surrounding white space.

    `ignore_case` compares in lower case. Inner white space counts. As exact_match of lm-evaluation-harness, which does
    not strip.
    """
    found, wanted = (_reduce(text, ignore_case) for text in (answer, target))
    if found == wanted:
        return Score(1.0, found, "the same text as the target")
    return Score(0.0, found, f"not the target: {shorten(wanted)}")


def score_contains(answer: str, target: str, row: dict[str, Any], ignore_case: bool = True) -> Score:
    """Return 1 if the target, without surrounding white space, is in the answer, inside words too.

    The extracted answer is all of it. Text after a new question does not count (`cut_next_question`). An empty target
    is never found.
    """
    wanted, extracted = _reduce(target, ignore_case), answer.strip()
    if not wanted:
        return Score(0.0, extracted, "the target is empty, and would be anywhere")
    if wanted in _reduce(cut_next_question(answer), ignore_case):
        return Score(1.0, extracted, "the target is in the answer")
    return Score(0.0, extracted, f"not in the answer: {shorten(normalize('NFC', target.strip()))}")


def score_regex(
    answer: str,
    target: str,
    row: dict[str, Any],
    pattern: str,
    take: Literal["first", "last"] = "first",
) -> Score:
    """Return 1 if the first or last match of a pattern in the answer is the target: its first group, if it has groups.

    Both are stripped of white space, and in lower case if the pattern ignores case. A group that took no part in its
    match has found nothing. Raises TimeoutError for a search longer than 2 s.
    """
    found, compiled = None, compile_pattern(pattern)
    for match in compiled.finditer(normalize("NFC", answer), timeout=MOST_SEARCH_S):
        found = match[min(1, compiled.groups)]
        if take == "first":
            break
    if found is None:
        return Score(0.0, None, "the pattern finds nothing in the answer")
    found, wanted = found.strip(), normalize("NFC", target).strip()
    if found == wanted or (compiled.flags & regex.IGNORECASE and found.lower() == wanted.lower()):
        return Score(1.0, found, "found the target")
    return Score(0.0, found, f"found {shorten(found)}, not {shorten(wanted)}")


def score_token_f1(answer: str, target: str, row: dict[str, Any]) -> Score:
    """Return F1 over the words of answer and target, each counted as often as it occurs; 1 if both have none.

    Words are those of SQuAD's evaluation script (Rajpurkar et al. 2016, and 2018 for empty answers): lower case,
    without ASCII punctuation and without a, an, the. In scripts without blanks between words each character is one, and
    wide punctuation does not count, as in MLQA (Lewis et al. 2020).
    """
    found, wanted = _list_words(answer), _list_words(target)
    shared = (Counter(found) & Counter(wanted)).total()
    value = 2 * shared / (len(found) + len(wanted)) if found or wanted else 1.0
    counts = f"{shared} words shared, of {len(found)} in the answer and {len(wanted)} in the target"
    return Score(value, " ".join(found), counts)


@lru_cache
def compile_pattern(pattern: str) -> Any:
    """Compile a pattern. Raises ValueError."""
    try:
        return regex.compile(pattern)
    except regex.error as error:
        raise ValueError(f"is not a valid regular expression: {error}") from None


def _reduce(text: str, ignore_case: bool) -> str:
    return normalize("NFC", text.lower() if ignore_case else text).strip()


def _list_words(text: str) -> list[str]:
    plain = normalize("NFC", text.lower()).translate(NO_PUNCTUATION)
    if plain.isascii():
        return [word for word in plain.split() if word not in ARTICLES]
    return [word for word in WORD.findall(WIDE_PUNCTUATION.sub(" ", plain)) if word not in ARTICLES]
