"""list tasks: list the tasks of lm-evaluation-harness that a spec can use.

assayline list tasks [WORD ...] [--include-path FOLDER]
"""

from assayline.flows.cli.options import make_parser

EPILOG = """Use a task in a spec with prompts: {source: {kind: lm_eval, task: NAME}} (docs/guides/lm-eval-tasks.md).
A group is a set of tasks with an aggregate score; a tag is a set of tasks without one.

Exit codes: 0 listed, 2 lm_eval is not installed or the folder does not exist, 3 no task name matches."""
PARSER = make_parser("list tasks", EPILOG)
PARSER.add_argument("words", nargs="*", metavar="WORD", help="list only names that contain each of these words")
PARSER.add_argument("--include-path", metavar="FOLDER", help="folder with your own task YAML files")


def run(arguments: list[str]) -> int:
    """Print a line per task, group and tag. Return the exit code."""
    known = PARSER.parse_args(arguments)

    from assayline.errors import PromptError
    from assayline.harness.tasks import list_tasks

    words = [word.lower() for word in known.words]
    found = [
        (name, kind) for name, kind in list_tasks(known.include_path) if all(word in name.lower() for word in words)
    ]
    if not found:
        raise PromptError(
            f"No task name contains {' and '.join(known.words)}. hint: list all tasks with `assayline list tasks`."
        )
    width = max(len(name) for name, _ in found)
    for name, kind in found:
        print(f"{name:{width}}  {kind}")
    return 0
