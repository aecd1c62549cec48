"""The code in an answer: which of its Markdown blocks count."""

import ast
import re
from collections.abc import Set

PYTHON = frozenset(("python", "python3", "py", "py3", "ipython", "ipython3", "pycon"))
GLUED = re.compile(r"(?<=[A-Za-z:!])[ \t]*(```(?:python|py)3?[ \t]*)$", re.MULTILINE | re.IGNORECASE)
"""An opening fence behind words, which CommonMark does not read."""


def extract_code(answer: str, called: Set[str] = frozenset()) -> str:
    """Return the code of an answer: of its Markdown blocks of Python the last that defines a name that is called.

    With it come the earlier blocks that define names which it uses. If no block defines such a name, the last one that
    defines any counts, else the last. A block without a language counts if it parses and none is marked as Python. An
    answer without a block is all code.
    """
    blocks = _find_blocks(answer)
    python = [text for language, text in blocks if language in PYTHON]
    if not python:
        python = [text for language, text in blocks if not language and _parse(text) is not None]
    if not python:
        python = [text for language, text in blocks if not language]
    if not python:
        return answer
    defined = [_list_defined(text) for text in python]
    places = range(len(python))
    wanted = [place for place in places if defined[place] & called] or [place for place in places if defined[place]]
    last = wanted[-1] if wanted else len(python) - 1
    kept, missing = [python[last]], (list_names(python[last]) | called) - defined[last]
    for place in reversed(range(last)):
        if defined[place] & missing:
            kept.insert(0, python[place])
            missing = (missing | list_names(python[place])) - defined[place]
    return "\n\n".join(kept)


def _find_blocks(answer: str) -> list[tuple[str, str]]:
    """Return the fenced blocks of Markdown (CommonMark), in lists and quotes too: language, if any, and content."""
    from markdown_it import MarkdownIt  # here: answers without a fence need none

    if "```" not in answer and "~~~" not in answer:
        return []
    tokens = MarkdownIt().parse(GLUED.sub(r"\n\1", answer))
    blocks = [token for token in tokens if token.type == "fence"]
    return [
        (token.info.strip().strip("{}.").split(" ")[0].split(",")[0].lower(), token.content.removesuffix("\n"))
        for token in blocks
    ]


def _parse(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def list_names(text: str) -> set[str]:
    """Return the names that a program reads; those of a text that does not parse are its words."""
    if (tree := _parse(text)) is None:
        return set(re.findall(r"[^\W\d]\w*", text))
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _list_defined(text: str) -> set[str]:
    """Return the names that a program defines at its top level: functions, classes, imports and variables."""
    if (tree := _parse(text)) is None:
        return set(re.findall(r"^(?:async )?(?:def|class) (\w+)", text, re.MULTILINE))
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(one.asname or one.name).split(".")[0] for one in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            names |= {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    return names
