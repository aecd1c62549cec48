"""Lint the words of pages, comments, docstrings, messages, CLI help and test names.

Each rule has a pattern, the words to write instead, and an example of either kind. Run as a program, print the hits of
each rule by folder.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = (
    "pages",
    "docs",
    "Makefile",
    "sql",
    "assayline",
    "flows",
    "tasks",
    "scripts",
    "benchmarks",
    "examples",
    "tests",
)
TEXT = "page comment docstring string"

EXCEPTIONS = {
    # The bytes of these files are part of the models' identity.
    "examples/hearing.py": "rows, … sounds",
    "examples/seeing.py": "rows, … pictures",
    "examples/tiny_folder.py": "so it is no tiny model",
    "examples/tiny_model.py": "without roles is no question",
}
"""File to words that break a rule on purpose. At most ten."""


class Text(NamedTuple):
    """A paragraph, comment, string or name to lint.

    kind: page, heading, comment, docstring (of a module, class or function), string, message (of an error) or name (of
    a test).
    """

    kind: str
    file: str
    line: int
    words: str


class Rule(NamedTuple):
    """Words that the project does not write. A pattern without capitals ignores case."""

    name: str
    pattern: str
    instead: str
    bad: str
    good: str
    kinds: str = TEXT + " heading name"


COMPARED = (
    r"longer|more|fewer|less|worse|better|later|earlier|sooner|older|newer|higher|lower|larger|smaller|faster|slower|"
    r"greater|cheaper|shorter|wider|narrower|further|different|room|use|need|reason|doubt|matter|match|way|one|good"
)
PROGRAM = (
    r"report|view|column|table|metric|engine|server|run|command|error|message|file|log|worker|flow|gate|page|spec|"
    r"manifest|driver|status|event|journal|harness|scorer|answer|result|database|process|figure|name|test|line|assayline"
)
VERBS = (
    "Add|Ask|Check|Choose|Close|Connect|Copy|Correct|Delete|Download|Enable|Fix|Free|Give|Install|Lower|Make|Move|Name|"
    "Open|Pass|Pin|Point|Put|Raise|Remove|Rename|Repeat|Replace|Restore|Resume|Run|Set|Start|Stop|Try|Turn|Unset|"
    "Upgrade|Use|Wait|Write"
)
THIRD_PERSON = "Says|Tells|Returns|Makes|Gives|Yields|Raises|Reads|Writes|Takes|Puts|Sets|Checks|Waits|Starts|Stops"

# fmt: off
RULES = [
    # Sentences
    Rule("free relative", r"(^|[.;] )(What|Who|Whatever|Whoever) [^?]*?[.:]( |$)",
         "name the thing", "What a worker had claimed is kept.", "Claims of a worker are kept. What is kept? All.",
         "page comment string message"),
    Rule("whoever", r"\bwhoever\b", "anyone who, or name the actor", "for whoever reads it", "for readers"),
    Rule("fronted of", r"(^|[.!?:;] )Of (a|an|the|each|all|two|its|one)\b", "a verb, a possessive or a noun first",
         "Of a run that was killed, rows stay", "Of these, two fail. The rows of a killed run stay", TEXT),
    Rule("but for", r"\bbut for\b(?! (each|every|all|one|a)\b)",
         "except, or unless", "all but for two", "all except two"),
    Rule("NULL where", r"\bNULL where\b", "NULL if, or NULL for", "NULL where there is none", "NULL if there is none"),
    Rule("at the most", r"\bat the (most|least)\b", "at most N", "two at the most", "at most two"),
    Rule("be it", r"\bbe it\b", "whether … or …", "any file, be it empty", "any file, even an empty one"),
    Rule("nested brackets", r"^(?!\|).*\([^()]*\([^()]*\)[^()]*\)", "one level of brackets",
         "rows (of runs (all)) stay", "rows (of all runs) stay", "page"),
    Rule("is no", rf"(?<!\bthere )(?<!\bso )\b(is|are|was|were) no (?!({COMPARED})\b)\w", "is not a …, or has no …",
         "'x' is no URL", "'x' is not a URL; there is no URL; x is no longer used"),
    Rule("programs talk", rf"\b({PROGRAM})s? (says?|said|tells?|told|knows?|knew)\b", "prints, logs, reports, returns",
         "the report says how many", "the report shows how many"),
    Rule("a sentence", r"\b(is|are|be|as|with|in) (a|one) sentence\b|\bin sentences\b", "a message, or an error",
         "the error is a sentence", "the error has a hint"),
    # Words
    Rule("space before %", r"\d %(?!\w)", "95%", "a 95 % interval", "a 95% interval"),
    Rule("thousand", r"\d+ (thousand|hundred)\b", "10,000", "10 thousand rows", "10,000 rows"),
    Rule("unit", r"(?<![\w'\"-])\d+([KMGT]i?B|ms)\b", "2 GiB, with a space", "at most 2GiB", "at most 2 GiB",
         "page comment docstring"),
    Rule("anew", r"\banew\b", "again, or from scratch", "is computed anew", "is computed again"),
    Rule("heed", r"\bheed\w*", "respect, or apply", "the limit is heeded", "the limit is respected"),
    Rule("dear", r"\bdear(er|est)?\b", "expensive, or costs more", "10% dearer", "10% more expensive"),
    Rule("of before", r"\bof before\b", "earlier, or previous", "the runs of before", "the earlier runs"),
    Rule("beside", r"\bbeside\b", "next to, or besides", "beside the run", "besides the run"),
    Rule("mend", r"\bmend(s|ed|ing)?\b", "fix, or repair", "the flow mends it", "the flow repairs it; amend"),
    Rule("alike", r"\balike\b", "equal, similar, or both", "rows that are alike", "equal rows"),
    Rule("so many", r"\bso many\b(?! that)", "N, or that many", "at so many tokens", "at that many tokens"),
    Rule("belong into", r"\bbelongs? into\b|\binsists?\b",
         "set … through …, or pass --force", "they belong into x", "pass --force"),
    Rule("mind", r"\bmind(:| that\b)", "warning: …, or note that", "Mind: two failed", "Warning: two failed", TEXT),
    # Private metaphors
    Rule("laid over", r"\b(laid|lay|lays) over\b", "merged into, or overrides", "laid over the spec", "merged into it"),
    Rule("played through", r"\bplay(s|ed|ing)? through\b", "simulated", "steps are played through", "is simulated"),
    Rule("taken for dead", r"\btak(e|es|en) for dead\b", "declared dead", "is taken for dead", "is declared dead"),
    Rule("burial", r"\bbur(y|ies|ied|ial|ials)\b",
         "mark as dead, or exited", "the worker is buried", "it is marked dead"),
    Rule("convict", r"\bconvict\w*|\bculprits?\b",
         "isolated, or poison request", "the culprit is convicted", "it is isolated"),
    Rule("metaphor", r"\b(lookouts?|parcels?|shel(f|ves)|cr(y|ies) wolf|drowns?|held against)\b",
         "the field's term", "a server that drowns", "a saturated server"),
    Rule("media",
         r"\bfilms?\b|(?<![/.])\bpictures?\b|\bsounds\b(?! (like|right|as))|\b(a|the|its|and|or|no|of|one) sounds?\b",
         "images, audio, video", "pictures, sounds and films", "images, audio and video; this sounds right"),
    # Kinds of text
    Rule("history", r"\bhad been\b|\b(formerly|until now|up to now)\b",
         "the present tense; history is in git",
         "it had been slow", "it is slow", "page"),
    Rule("heading", r"^(What|Which|Who|Where|Whose)\b|\.$",
         "a search term: a noun", "What is kept", "Stored data", "heading"),
    Rule("long line", r"^(?!.*(\]\(|https?://)).{101}",
         "at most 100 columns, outside code and tables", "x" * 101, "x" * 100, "line"),
    Rule("docstring", rf"^(What|Who|Whatever|Whoever|Whether|Those|Nothing|{THIRD_PERSON})\s",
         "an imperative, or a noun that names the thing", "Whether it is done", "Return True if done", "docstring"),
    Rule("hint", rf"(?<!hint)[.;:!?] ({VERBS}) ", "`hint: ` and the step in lower case",
         "No such key. Use another one.", "No such key. hint: use another one.", "message"),
    Rule("test name", r"^test (what|who|whoever|whatever|it|they|those|this|that)\b(?! if\b)",
         "test_<unit>_<behaviour>[_when_<condition>]", "test it is refused", "test fetch refuses invalid urls", "name"),
]
# fmt: on


@cache
def read_texts(folder: str) -> list[Text]:
    if folder == "Makefile":
        lines = (ROOT / "Makefile").read_text(encoding="utf-8").splitlines()
        found = [(line, re.search(r"(?:^#|## |@echo )(.*)", text)) for line, text in enumerate(lines, start=1)]
        return [Text("string", "Makefile", line, match[1]) for line, match in found if match]
    pattern = {"pages": "*.md", "docs": "docs/**/*.md", "sql": "sql/**/*.sql"}.get(folder, f"{folder}/**/*.py")
    # assayline/flows, tasks and sql are links to folders that have their own turn.
    files = [file for file in sorted(ROOT.glob(pattern)) if file == file.resolve() and file != Path(__file__)]
    read = {".md": read_page, ".sql": read_sql, ".py": read_python}
    return [
        Text(kind, str(file.relative_to(ROOT)), line, " ".join(words.split()))
        for file in files
        for kind, line, words in read[file.suffix](file.read_text(encoding="utf-8"))
        if (folder, kind) != ("tests", "string")  # data of tests
    ]


Found = Iterator[tuple[str, int, str]]
"""Kind, line and words."""


def read_page(text: str) -> Found:
    """Yield paragraphs, headings and rows of tables, without code and targets of links."""
    is_generated = re.search("(Generated|Written) by `", text[:300])
    text = re.sub(r"^ *```.*?^ *```|<!--.*?-->", lambda code: "\n" * code[0].count("\n"), text, flags=re.M | re.S)
    for line, words in enumerate(text.splitlines(), start=1):
        if not is_generated and not words.startswith(("    ", "|")):
            yield "line", line, words
    for found in re.finditer(r"^#+ (.*)|(?:^(?!#|    ).*\S.*\n?)+", text, flags=re.M):
        kind = "heading" if found[1] else "comment" if is_generated else "page"
        yield kind, _line(text, found), _strip_code(found[1] or found[0])


def read_sql(text: str) -> Found:
    """Yield blocks of comments, and the comments that the database stores."""
    for found in re.finditer(r"(?:^ *--.*\n?)+", text, flags=re.M):
        yield "comment", _line(text, found), re.sub(r"^ *--", "", found[0], flags=re.M)
    for found in re.finditer(r"^comment on .*? is\s+'((?:[^']|'')*)';", text, flags=re.M | re.S):
        yield "comment", _line(text, found), found[1].replace("''", "'")


def read_python(text: str) -> Found:
    """Yield comments, docstrings and other strings, the literal messages of errors, and the names of tests."""
    for found in re.finditer(r"(?:^ *#(?!!).*\n?)+|  # .*", text, flags=re.M):
        yield "comment", _line(text, found), _strip_code(re.sub(r"^ *#+ ?", "", found[0], flags=re.M))
    inner: set[ast.AST] = set()
    for node in ast.walk(ast.parse(text)):
        kind = type(node)
        if kind in (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef):
            if docstring := ast.get_docstring(node):
                yield "docstring", node.body[0].lineno, _strip_code(docstring)
                inner.add(node.body[0].value)
            if getattr(node, "name", "").startswith("test_"):
                yield "name", node.lineno, node.name.replace("_", " ")
        elif kind is ast.Call and node.args and _name(node.func).endswith("Error"):
            if words := _join_string(node.args[0]):
                yield "message", node.lineno, words
        elif kind in (ast.JoinedStr, ast.Constant) and node not in inner and (words := _join_string(node)):
            inner.update(getattr(node, "values", ()))
            if " " in words:
                yield "string", node.lineno, _strip_code(words)


def _line(text: str, found: re.Match[str]) -> int:
    return text.count("\n", 0, found.start()) + 1


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _join_string(node: ast.AST) -> str | None:
    """Return a literal's text, with … for each value of an f-string; None unless `node` is a string literal."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _strip_code(words: str) -> str:
    if "`" not in words and "](" not in words:
        return words
    return re.sub(r"\]\([^)]*\)", "]", re.sub(r"``.+?``|`[^`]+`", "`…`", words, flags=re.S))


@cache
def compile_pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.NOFLAG if re.search("[A-Z]", pattern) else re.IGNORECASE)


def find(rule: Rule, text: Text) -> str | None:
    """Return the words that break the rule, with their neighbours."""
    if text.kind not in rule.kinds.split() or not (found := compile_pattern(rule.pattern).search(text.words)):
        return None
    return text.words[max(0, found.start() - 40) : found.end() + 40]


@cache
def list_hits(folder: str) -> list[tuple[Rule, Text, str]]:
    """Return what breaks a rule in a folder, exceptions included."""
    return [(rule, text, words) for rule in RULES for text in read_texts(folder) if (words := find(rule, text))]


def is_excepted(text: Text, words: str) -> bool:
    return EXCEPTIONS.get(text.file, "\0") in words


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_rule_finds_its_bad_example_and_passes_its_good_one(rule):
    for kind in rule.kinds.split():
        assert find(rule, Text(kind, "", 1, rule.bad))
        assert not [other.name for other in RULES if find(other, Text(kind, "", 1, rule.good))]


@pytest.mark.parametrize("folder", FOLDERS)
def test_words_follow_the_rules(folder):
    assert read_texts(folder)
    broken = [
        f"{text.file}:{text.line}: {words!r}: “{rule.name}”: write {rule.instead}"
        for rule, text, words in list_hits(folder)
        if not is_excepted(text, words)
    ]
    assert not broken, "\n" + "\n".join(broken)


def test_classes_of_the_product_have_names_of_their_own():
    files = [file for folder in ("assayline", "flows", "tasks") for file in sorted((ROOT / folder).rglob("*.py"))]
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in files if file == file.resolve()]
    names = Counter(node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    assert not [name for name, count in names.items() if count > 1]


def test_exceptions_are_few_and_needed():
    assert len(EXCEPTIONS) <= 10
    hits = [hit for folder in FOLDERS for hit in list_hits(folder)]
    assert {text.file for _, text, words in hits if is_excepted(text, words)} == set(EXCEPTIONS)


if __name__ == "__main__":
    counts = Counter((rule.name, folder) for folder in FOLDERS for rule, _, _ in list_hits(folder))
    rows = [("rule", *FOLDERS), *((rule.name, *(counts[rule.name, folder] for folder in FOLDERS)) for rule in RULES)]
    rows.append(("all", *(sum(counts[rule.name, folder] for rule in RULES) for folder in FOLDERS)))
    for row in rows:
        print(f"{row[0]:<18}" + "".join(f"{cell:>11}" for cell in row[1:]))
    if len(sys.argv) > 1:
        for rule, text, words in (hit for folder in sys.argv[1:] for hit in list_hits(folder)):
            print(f"{text.file}:{text.line}: “{rule.name}”: {words}")
