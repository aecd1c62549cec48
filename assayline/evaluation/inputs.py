"""The files that a run's prompts are made from, and digests of their content.

A run may only be resumed with the prompts that it began with. The spec names files; what is in them is digested
here. A pipe can be read once and a hub dataset is not ours to digest: there the ids of what
was prepared must tell (`prepare.py`).
"""

from contextlib import suppress
from pathlib import Path

from assayline.digests import digest_file
from assayline.errors import ModelError, PromptError
from assayline.model import identify_model
from assayline.prompts.sources import find_files
from assayline.spec.evaluation import EvalSpec
from assayline.spec.load import Trace
from assayline.spec.sources import FileSource, HubSource, LmEvalSource, OpenAiBatchSource, ShareGptSource, TraceSource


def digest_inputs(spec: EvalSpec) -> dict[str, str] | None:
    """sha256 of files of prompts, of examples and of a trace, chat template file and a tokenizer of its own, by name.

    None if one of them has no digest. What is missing has none: preparing says what is wrong, better than it could be
    said here.
    """
    sources = [spec.prompts.source]
    if spec.prompts.few_shot is not None and spec.prompts.few_shot.source is not None:
        sources.append(spec.prompts.few_shot.source)
    if any(isinstance(source, HubSource | LmEvalSource) for source in sources):
        return None
    files: list[Path] = []
    digests: dict[str, str] = {}
    try:
        for source in sources:
            if isinstance(source, FileSource | OpenAiBatchSource | ShareGptSource | TraceSource):
                files += find_files(source.path)
        if spec.load is not None and isinstance(spec.load.arrival, Trace):
            files += [Path(path).expanduser() for path in (spec.load.arrival.path,) if path is not None]
        if (template := _template_file(spec.chat.template)) is not None:
            files.append(template)
        if "tokenizer" in spec.engine.args:
            tokenizer = str(spec.engine.args["tokenizer"])
            revision = spec.engine.args.get("tokenizer_revision")
            digests[f"tokenizer {tokenizer}"] = identify_model(tokenizer, revision).tokenizer_id
        if not all(file.is_file() for file in files):
            return None
        return digests | {str(file): digest_file(file) for file in files}
    except (PromptError, ModelError):
        return None


def list_input_changes(before: dict[str, str] | None, after: dict[str, str] | None) -> list[str]:
    """What differs between two answers of `digest_inputs`, in words."""
    if before == after:
        return []
    if before is None or after is None:
        return ["the prompts came from a pipe or the hub in one of the two, and from regular files in the other"]
    changed = [f"the content of {name}" for name in sorted(before.keys() & after.keys()) if before[name] != after[name]]
    gone = [f"{name} is gone" for name in sorted(before.keys() - after.keys())]
    new = [f"{name} is new" for name in sorted(after.keys() - before.keys())]
    return changed + gone + new


def _template_file(template: str) -> Path | None:
    """The chat template's file, if it is one and neither a name nor a text."""
    if template in ("default", "plain") or "{{" in template or "{%" in template:
        return None
    with suppress(OSError, RuntimeError):  # a name too long for a file, a ~user who is not there
        path = Path(template).expanduser()
        return path if path.exists() else None
    return None
