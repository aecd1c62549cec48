"""The block of code that counts in an answer."""

import pytest

from assayline.scorers.blocks import extract_code, list_names

RIGHT, WRONG, PRINT = "def f(x):\n    return x + 1", "def f(x):\n    return x", "print(f(2))"
F = "```"


def block(code: str, language: str = "python", fence: str = F) -> str:
    return f"{fence}{language}\n{code}\n{fence}\n"


ANSWERS = {
    "an example": block(RIGHT) + "Example:\n" + block(PRINT),
    "printed output": block(RIGHT) + "Output:\n" + block("3", ""),
    "a command": block(RIGHT) + "Run:\n" + block("python f.py", "bash"),
    "a second try": block(WRONG) + "That is wrong. Fixed:\n" + block(RIGHT),
    "tildes": block(RIGHT, fence="~~~"),
    "four backticks": block("'''\n```\n'''\n" + RIGHT, fence="````"),
    "a list": f"1. Code:\n   {F}python\n   def f(x):\n       return x + 1\n   {F}\n",
    "a quote": f"> {F}python\n> def f(x):\n>     return x + 1\n> {F}\n",
    "a helper": block("import math\ndef g(x):\n    return math.floor(x)")
    + block("def f(x):\n    return g(x) + 1")
    + block(PRINT),
    "a test": block(RIGHT) + block("def test_f():\n    assert f(1) == 3\ntest_f()"),
    "no language": block(RIGHT, "") + "Output:\n" + block("3 apples are", ""),
    "output that parses": block(RIGHT, "") + "Output:\n" + block("3", ""),
    "a tagged block beats an untagged one": block(RIGHT) + block(WRONG, ""),
    "capitals": block(RIGHT, "Python"),
    "a title": block(RIGHT, 'python title="a.py"'),
    "no end": f"{F}python\n{RIGHT}",
    "words before": f"Sure: {F}python\n{RIGHT}\n{F}",
    "no block": RIGHT,
    "another language": block("function f(x) {}", "js") + block(RIGHT) + block("f(1)", "js"),
    "a lambda": block("f = lambda x: x + 1") + block(PRINT),
    "a session": block(RIGHT) + block(">>> f(2)\n3"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_the_block_that_defines_what_is_called_counts(name):
    test = "assert f(1) == 2"
    exec(compile(f"{extract_code(ANSWERS[name], list_names(test))}\n\n{test}", name, "exec"), {"__name__": "__main__"})


def test_a_wrong_function_stays_wrong():
    with pytest.raises(AssertionError):
        exec(extract_code(block(RIGHT) + block(WRONG), {"f"}) + "\nassert f(1) == 2", {})
