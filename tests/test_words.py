"""Lint the words of pages, comments, docstrings, messages and test names.

Each rule of RULES has a pattern, the words to write instead, and an example of either kind.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from assayline import errors

ROOT = Path(__file__).resolve().parents[1]


class Text(NamedTuple):
    """A paragraph, comment, string or name to lint."""

    kind: str
    """page, comment, docstring, string, name or help."""
    place: str
    words: str


class Rule(NamedTuple):
    """Words that the project does not write."""

    name: str
    pattern: str
    instead: str
    bad: str
    good: str
    kinds: tuple[str, ...] = ("page", "comment", "docstring", "string", "name", "help")


COMPARED = (
    "longer|more|fewer|less|worse|better|later|earlier|sooner|older|newer|higher|lower|larger|smaller|faster|slower|"
    "greater|cheaper|shorter|wider|narrower|further|different|room|use|need|reason|doubt|matter|match|way|one|good"
)

RULES = [
    Rule("space before %", r"\d %(?!\w)", "95%", "a 95 % interval", "a 95% interval"),
    Rule("anew", r"\banew\b", "again, or from scratch", "is computed anew", "is computed again"),
    Rule("heed", r"\bheed\w*", "respect, or apply", "the limit is heeded", "the limit is respected"),
    Rule("dear", r"\bdear(er|est)?\b", "expensive, or costs more", "10% dearer", "10% more expensive"),
    Rule("at the most", r"\bat the most\b", "at most N", "two at the most", "at most two"),
    Rule("whoever", r"\bwhoever\b", "anyone who, or name the actor", "for whoever reads it", "for readers"),
    Rule("of before", r"\bof before\b", "earlier, or previous", "the runs of before", "the earlier runs"),
    Rule("be it", r"\bbe it\b", "whether … or …", "any file, be it empty", "any file, even an empty one"),
    Rule(
        "is no",
        rf"(?<!\bthere )(?<!\bso )\b(is|are|was|were) no (?!({COMPARED})\b)\w",
        "is not a …; or is not valid",
        "'x' is no URL",
        "'x' is not a URL; there is no URL; x is no longer used",
    ),
    Rule("beside", r"\bbeside\b", "next to, besides, or at the same time as", "beside the run", "besides the run"),
    Rule("mend", r"\bmend(s|ed|ing)?\b", "fix, or repair", "the flow mends it", "the flow repairs it; amend"),
    Rule("laid over", r"\b(laid|lay|lays) over\b", "merged into, or overrides", "laid over the spec", "merged into it"),
    Rule("played through", r"\bplay(s|ed|ing)? through\b", "simulated", "steps are played through", "is simulated"),
    Rule("taken for dead", r"\btak(e|es|en) for dead\b", "declared dead", "is taken for dead", "is declared dead"),
    Rule(
        "Of a …",
        r"(^|[.!?:;] )Of (a|an|the|each|all)\b",
        "a verb, a possessive or a noun phrase first",
        "Of a run that was killed, rows are kept",
        "Of these, two fail. The rows of a killed run are kept",
    ),
    Rule(
        "free relative",
        r"^(What|Who|Whatever|Whoever|Those)\s",
        "an imperative, or a noun that names the thing",
        "What a worker had claimed",
        "Claims of a worker",
        kinds=("docstring",),
    ),
    Rule(
        "sounds and films",
        r"\bfilms?\b|\bsounds\b(?! (like|right|good|better|as))|\b(a|the|its|and|or|no|of|one) sounds?\b",
        "audio, video",
        "images, sounds and films",
        "images, audio and video; this sounds right; a statistically sound test",
    ),
    Rule(
        "free relative",
        r"^test (what|who|whoever|whatever|it|they|those)\b(?! if\b)",
        "test_<unit>_<behaviour>[_when_<condition>]",
        "test what is not valid is refused",
        "test fetch refuses an invalid url",
        kinds=("name",),
    ),
]

EXCEPTIONS: dict[str, str] = {}
"""Words that break a rule on purpose, by the file in which they are. Ten lines at most."""

CODE = ("assayline", "flows", "tasks", "scripts", "benchmarks", "examples", "tests")
FOLDERS = ("pages", "docs", "Makefile", "sql", *CODE)


@cache
def read_texts(folder: str) -> tuple[Text, ...]:
    return tuple(_read(folder))


def _read(folder: str) -> Iterator[Text]:
    if folder == "Makefile":
        yield from read_makefile(ROOT / "Makefile")
    elif folder in ("pages", "docs"):
        for file in sorted(ROOT.glob("*.md") if folder == "pages" else (ROOT / "docs").rglob("*.md")):
            yield from read_page(file)
    elif folder == "sql":
        for file in sorted((ROOT / "sql").rglob("*.sql")):
            yield from read_sql(file)
    else:
        for file in sorted((ROOT / folder).rglob("*.py")):
            # assayline/flows and assayline/tasks are links to folders that have their own turn.
            if file == file.resolve() and file != Path(__file__):
                yield from read_python(file)


def read_page(file: Path) -> Iterator[Text]:
    """The paragraphs of a page, without fenced code and without the contents of code spans and links."""
    number, paragraph, fenced = 0, [], False
    for index, line in enumerate([*file.read_text(encoding="utf-8").splitlines(), ""], start=1):
        fence = line.lstrip().startswith("```")
        fenced ^= fence
        if fence or fenced or not line.strip() or line.startswith(("    ", "|", "#")):
            if paragraph:
                yield _text("page", file, number, " ".join(paragraph))
            paragraph = []
            if line.startswith(("|", "#")) and not fenced:
                yield _text("page", file, index, line)
        else:
            number = number if paragraph else index
            paragraph.append(line)


def read_makefile(file: Path) -> Iterator[Text]:
    """The help of targets, the messages they print, and comments."""
    for index, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        if found := re.search(r"(?:^#|## |@echo )(.*)", line):
            yield _text("help", file, index, found[1])


def read_sql(file: Path) -> Iterator[Text]:
    """The blocks of comments, and the comments that the database has."""
    text = file.read_text(encoding="utf-8")
    for found in re.finditer(r"(?:^ *--.*\n?)+", text, flags=re.MULTILINE):
        words = re.sub(r"^ *--", "", found[0], flags=re.MULTILINE)
        yield _text("comment", file, text.count("\n", 0, found.start()) + 1, words)
    for found in re.finditer(r"^comment on .*? is\s+'((?:[^']|'')*)';", text, flags=re.MULTILINE | re.DOTALL):
        yield _text("comment", file, text.count("\n", 0, found.start()) + 1, found[1].replace("''", "'"))


def read_python(file: Path) -> Iterator[Text]:
    """The docstrings, comments and other strings of a module, and the names of its tests."""
    source = file.read_text(encoding="utf-8")
    yield from _read_comments(file, source)
    tree = ast.parse(source)
    inner: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and (words := join_string(node.value)) is not None:
            inner |= {id(part) for part in ast.walk(node)}
            yield _text("docstring", file, node.lineno, words)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield _text("name", file, node.lineno, node.name.replace("_", " "))
    for node in ast.walk(tree):
        if id(node) not in inner and (words := join_string(node)) is not None:
            inner |= {id(part) for part in ast.walk(node)}
            yield _text("string", file, node.lineno, words)


def join_string(node: ast.AST) -> str | None:
    """A literal's text, with … for each value of an f-string; None unless `node` is a string literal."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
        return "".join(str(part) for part in parts)
    return None


def _read_comments(file: Path, source: str) -> Iterator[Text]:
    """Comments; those of lines that follow one another are one text."""
    block: list[str] = []
    end = first = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        if block and token.start[0] != end + 1:
            yield _text("comment", file, first, " ".join(block))
            block = []
        first = first if block else token.start[0]
        end = token.start[0]
        block.append(token.string.lstrip("# "))
    if block:
        yield _text("comment", file, first, " ".join(block))


def _text(kind: str, file: Path, line: int, words: str) -> Text:
    if kind in ("page", "comment", "docstring"):
        words = re.sub(r"\]\([^)]*\)", "]", re.sub(r"``.+?``|`[^`]+`", "`…`", words, flags=re.DOTALL))
    return Text(kind, f"{file.relative_to(ROOT)}:{line}", " ".join(words.split()))


def find(rule: Rule, text: Text) -> str | None:
    """The words that break the rule, with their neighbours."""
    if text.kind not in rule.kinds or not (found := re.search(rule.pattern, text.words, _flags(rule))):
        return None
    return text.words[max(0, found.start() - 40) : found.end() + 40]


def _flags(rule: Rule) -> re.RegexFlag:
    return re.NOFLAG if rule.name.startswith(("Of", "free")) else re.IGNORECASE


def is_excepted(text: Text, words: str) -> bool:
    return EXCEPTIONS.get(text.place.rpartition(":")[0], "\0") in words


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_rule_finds_its_bad_example_and_passes_its_good_one(rule):
    for kind in rule.kinds:
        assert find(rule, Text(kind, "", rule.bad))
        assert [other.name for other in RULES if find(other, Text(kind, "", rule.good))] == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_words_follow_the_rules(folder):
    texts = read_texts(folder)
    assert texts
    broken = [
        f"{text.place}: {words!r}: “{rule.name}”: write {rule.instead}"
        for text in texts
        for rule in RULES
        if (words := find(rule, text)) and not is_excepted(text, words)
    ]
    assert not broken, "\n" + "\n".join(broken)


def test_exceptions_are_few_and_needed():
    assert len(EXCEPTIONS) <= 10
    found = {
        (text.place.rpartition(":")[0], EXCEPTIONS.get(text.place.rpartition(":")[0], "\0"))
        for folder in FOLDERS
        for text in read_texts(folder)
        for rule in RULES
        if (words := find(rule, text)) and is_excepted(text, words)
    }
    assert found == set(EXCEPTIONS.items())


@pytest.mark.parametrize("folder", ["pages", "docs"])
def test_lines_of_pages_have_at_most_120_characters(folder):
    """Outside tables, code and lines with a link."""
    long = []
    for file in sorted(ROOT.glob("*.md") if folder == "pages" else (ROOT / "docs").rglob("*.md")):
        fenced = False
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
            fenced ^= line.lstrip().startswith("```")
            code = fenced or line.startswith(("    ", "|"))
            if len(line) > 120 and not code and not re.search(r"\]\(|https?://", line):
                long.append(f"{file.relative_to(ROOT)}:{number}: {len(line)} characters")
    assert not long, "\n" + "\n".join(long)


VERBS = (
    "Add|Ask|Check|Choose|Close|Connect|Copy|Correct|Delete|Download|Enable|Fix|Free|Give|Install|Lower|Make|Move|Name|"
    "Open|Pass|Pin|Point|Put|Raise|Remove|Rename|Repeat|Replace|Restore|Resume|Run|Set|Start|Stop|Try|Turn|Unset|"
    "Upgrade|Use|Wait|Write"
)
ADVICE = re.compile(rf"(?<!hint)[.;:!?] ({VERBS}) ")
"""A second sentence that begins with an imperative, without `hint: `."""
ERRORS = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}


def list_messages(source: str) -> Iterator[tuple[int, str]]:
    """The literal messages of errors that assayline raises on purpose, each with its line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and node.args:
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
            if name in ERRORS and (words := join_string(node.args[0])) is not None:
                yield node.lineno, " ".join(words.split())


@pytest.mark.parametrize("folder", ["assayline", "flows", "tasks"])
def test_advice_of_error_messages_is_a_hint(folder):
    broken = [
        f"{file.relative_to(ROOT)}:{line}: {words!r}: write `hint: ` and the step in lower case"
        for file in sorted((ROOT / folder).rglob("*.py"))
        if file == file.resolve()
        for line, words in list_messages(file.read_text(encoding="utf-8"))
        if ADVICE.search(words)
    ]
    assert not broken, "\n" + "\n".join(broken)


@pytest.mark.parametrize(
    ("call", "is_broken"),
    [
        ('SpecError("No such key. Use another one.")', True),
        ("errors.SpecError(f\"No key {key!r} in {file}. Run 'assayline keys' for a list.\")", True),
        ('SpecError("No such key. hint: use another one.")', False),
        ('SpecError("No such key. hint: Use another one.")', False),
        ('SpecError("The key is used twice. Used keys are: a, b.")', False),
        ('ValueError("No such key. Use another one.")', False),
    ],
)
def test_advice_is_told_from_other_sentences(call, is_broken):
    assert any(ADVICE.search(words) for _, words in list_messages(call)) is is_broken
