"""Write docs/llms.txt and AGENTS.md, for coding assistants, from the README, docs/index.md and CONTRIBUTING.md.

`python -m scripts.agent_docs`; a test keeps them current.
"""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    for name, text in render().items():
        (ROOT / name).write_text(text, encoding="utf-8")


def render() -> dict[str, str]:
    """Both files by their paths."""
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    summary = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split("\n\n")[1].split())
    pages = index[index.index("## Tutorials") :]
    questions = take(index, "## Commands by question").replace("](", "](docs/")
    rules = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    agents = (
        "# assayline for coding assistants",
        "Written by `python -m scripts.agent_docs` from docs/index.md and CONTRIBUTING.md: do not edit.",
        summary,
        "## Use it",
        "[docs/llms.txt](docs/llms.txt) lists every page, [docs/reference/spec.md](docs/reference/spec.md) every field "
        "of a spec. `assayline evaluate SPEC --dry-run` checks a spec without an engine; `engine.backend: fake` runs "
        "one. A message's `hint:` is the next step, and [exit codes](docs/reference/exit-codes.md) say what happened.",
        questions,
        "## Change it",
        "[CONTRIBUTING.md](CONTRIBUTING.md) has the layout and the scripts that write generated pages.",
        rules[rules.index("```console") : rules.index("`make docs`")].strip(),
        take(rules, "## Style"),
    )
    return {"docs/llms.txt": f"# assayline\n\n> {summary}\n\n{pages}", "AGENTS.md": "\n\n".join(agents) + "\n"}


def take(text: str, heading: str) -> str:
    """Return what stands below a heading."""
    return re.split(r"^## ", text.split(f"{heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0].strip()


if __name__ == "__main__":
    main()
