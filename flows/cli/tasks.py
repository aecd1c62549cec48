"""tasks: list the tasks of lm-evaluation-harness that a spec can name.

assayline tasks [WORD ...] [--include-path FOLDER]
"""

from assayline.flows.cli.options import make_parser

EPILOG = """A spec asks one by prompts: {source: {kind: lm_eval, task: NAME}} (docs/guides/lm-eval-tasks.md).
A group is its tasks with an aggregate of its own, a tag is its tasks alone.

Exit codes: 0 listed, 2 lm_eval is not installed or there is no such folder, 3 no task has these words in its name."""


def run(arguments: list[str]) -> int:
    """Prints a line per task, group and tag. Returns the exit code."""
    parser = make_parser("tasks", EPILOG)
    parser.add_argument("words", nargs="*", metavar="WORD", help="only names that hold each of these words")
    parser.add_argument("--include-path", metavar="FOLDER", help="folder with YAML files of tasks of your own")
    known = parser.parse_args(arguments)

    from assayline.errors import PromptError
    from assayline.harness.tasks import list_tasks

    words = [word.lower() for word in known.words]
    found = [
        (name, kind) for name, kind in list_tasks(known.include_path) if all(word in name.lower() for word in words)
    ]
    if not found:
        raise PromptError(f"No task has {' and '.join(known.words)} in its name. Without words, all are listed.")
    width = max(len(name) for name, _ in found)
    for name, kind in found:
        print(f"{name:{width}}  {kind}")
    return 0
