"""Choose the run that a spec resumes: by default the newest unfinished one of the same spec, model, inputs and owner.

A run that another process holds is skipped, and a run whose spec, model or prompts changed cannot be resumed. Both are
noted, because a user who expects a resumed run must learn the reason for a new one.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from assayline.digests import digest_file
from assayline.errors import EngineDiedError, ModelError, PromptError, SpecError, StoreError
from assayline.model import identify_model
from assayline.prompts.sources.files import find_files
from assayline.spec.evaluation import EvalSpec
from assayline.spec.identity import list_changes
from assayline.spec.load import Trace
from assayline.store.locks import RunLock, is_worked_on, lock_run, name_holder
from assayline.store.manifest import (
    AUTO,
    MANIFEST_NAME,
    NEVER,
    Manifest,
    Purpose,
    find_run,
    list_manifests,
    read_manifest,
    read_spec_json,
    slugify,
)
from assayline.store.parts import ANSWERS, count_table


def digest_inputs(spec: EvalSpec) -> dict[str, str] | None:
    """Return digests of the input files, by name: prompts, few-shot examples, trace, chat template and own tokenizer.

    None if one of them has no digest, such as a missing file; preparation raises an error for that later.
    """
    sources = [spec.prompts.source]
    if spec.prompts.few_shot is not None and spec.prompts.few_shot.source is not None:
        sources.append(spec.prompts.few_shot.source)
    files: list[Path] = []
    digests: dict[str, str] = {}
    try:
        for source in sources:
            if source.files is None:
                return None
            files += chain.from_iterable(map(find_files, source.files))
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
    """Describe the differences between two results of `digest_inputs`."""
    if before == after:
        return []
    if before is None or after is None:
        return ["the prompts came from a pipe or the hub in one of the two, and from regular files in the other"]
    changed = [f"the content of {name}" for name in sorted(before.keys() & after.keys()) if before[name] != after[name]]
    gone = [f"{name} is gone" for name in sorted(before.keys() - after.keys())]
    new = [f"{name} is new" for name in sorted(after.keys() - before.keys())]
    return changed + gone + new


def _template_file(template: str) -> Path | None:
    """Return the chat template's file, or None for a name or a text."""
    if template in ("default", "plain") or "{{" in template or "{%" in template:
        return None
    with suppress(OSError, RuntimeError):  # a name too long for a file, a ~user who is not there
        path = Path(template).expanduser()
        return path if path.exists() else None
    return None


FRESH_HINT = "for a new run of this spec, pass --fresh (in a flow's parameters, resume: never)."


@dataclass(frozen=True, slots=True)
class Choice:
    """The run to resume, locked for this process; without a manifest, a new run."""

    manifest: Manifest | None = None
    lock: RunLock | None = None
    notes: list[str] = field(default_factory=list)


def choose_run(fresh: Manifest, spec_json: str, runs_dir: Path, purpose: Purpose, *, is_dry: bool = False) -> Choice:
    """Find and lock the run to resume; only find it if `is_dry`. `fresh` is the manifest of a new run.

    Raises SpecError if that run cannot be resumed, StoreError if its files
    cannot be read.
    """
    resume = purpose.resume
    if resume == NEVER:
        return Choice()
    notes: list[str] = []
    found = _list_candidates(fresh, spec_json, runs_dir, purpose, notes)
    if is_named := resume != AUTO:
        found = iter([_check_named(fresh, spec_json, runs_dir, resume)])
    for manifest in found:
        if is_dry:
            return Choice(manifest, None, notes)
        run_dir = runs_dir / manifest.run_id
        lock = lock_run(run_dir)
        if lock and read_manifest(run_dir) == manifest:
            return Choice(manifest, lock, notes)
        if lock:
            lock.release()
        if is_named:
            raise _worked_on(run_dir)
        if lock:
            break  # another process changed it between the two reads
        notes.append(_describe_use(run_dir))
    return Choice(notes=notes)


def describe_left(run_dir: Path, manifest: Manifest) -> str:
    """Describe a run's progress from its part files: `12 of 40 requests answered`."""
    answered = count_table(run_dir, ANSWERS)
    return (
        f"{answered} of {manifest.prompts.requests} requests answered"
        if manifest.prompts
        else (f"{answered} requests answered, not all prompts read")
    )


def has_all_answers(run_dir: Path, manifest: Manifest) -> bool:
    """Return True if each request of a run has an answer in its parts."""
    return manifest.prompts is not None and count_table(run_dir, ANSWERS) >= manifest.prompts.requests


def is_complete(run_dir: Path, manifest: Manifest) -> bool:
    """Return True if a run is completed and no part of it is missing, as in an unfinished copy of its folder."""
    if manifest.state != "completed" or (counts := manifest.prompts) is None:
        return manifest.state == "completed"
    expected = {"prompts": counts.prompt_rows, "requests": counts.requests, ANSWERS: counts.requests}
    return all(count_table(run_dir, table) >= rows for table, rows in expected.items())


def describe_way_on(run_dir: Path, manifest: Manifest, error: BaseException, resume: str) -> str | None:
    """Return how to go on with a run that `error` has ended, for a note on the error. `resume` as in `begin_run`.

    None if it cannot be resumed, or if that would fail in the same way: an invalid spec, or an engine that does not
    start.
    """
    if manifest.template_id is None or manifest.state == "completed" or manifest.is_final:
        return None
    has_answers = count_table(run_dir, ANSWERS) > 0
    is_stillborn = isinstance(error, EngineDiedError) and error.death.phase == "start" and not has_answers
    if isinstance(error, SpecError) or is_stillborn:
        return None
    command = "rerun the command" if resume != NEVER else f"run `assayline evaluate --resume {manifest.run_id}`"
    left = describe_left(run_dir, manifest)
    return f"Run {manifest.run_id} is unfinished, {left}. hint: {command} to resume it."


def _list_candidates(
    fresh: Manifest, spec_json: str, runs_dir: Path, purpose: Purpose, notes: list[str]
) -> Iterator[Manifest]:
    """Yield unfinished runs of the same spec, newest first, back to the last one that ended."""
    obstacle = ""
    for manifest in list_manifests(runs_dir):
        if manifest.name != fresh.name or not purpose.owns(manifest):
            continue
        run_dir = runs_dir / manifest.run_id
        try:
            changes = _list_run_changes(manifest, fresh, run_dir, spec_json)
        except StoreError:
            continue  # its spec is missing; asking for the run by its id raises the error
        if is_complete(run_dir, manifest) or manifest.is_final:
            if not changes:
                break
        elif changes:
            if count_table(run_dir, "completions") == (manifest.prompts.failed_requests if manifest.prompts else 0):
                continue  # nothing is answered, so nobody misses it
            obstacle = obstacle or (
                f"Run {manifest.run_id} of this name is unfinished but cannot be resumed; differences: "
                f"{'; '.join(changes)}. Starting a new run."
            )
        elif manifest.is_deployed != fresh.is_deployed:
            owner = "deployment" if manifest.is_deployed else "command"
            notes.append(f"Run {manifest.run_id} of this spec is unfinished; not resumed, because a {owner} began it.")
        elif is_worked_on(run_dir):
            notes.append(_describe_use(run_dir))
        else:
            yield manifest
    if obstacle:  # not noted if a run is resumed: the caller stops earlier
        notes.append(obstacle)
    for run_dir in runs_dir.glob(f"*-{slugify(fresh.name)}-????"):
        if not (run_dir / MANIFEST_NAME).exists() and count_table(run_dir, "requests"):
            notes.append(
                f"{run_dir} has part files but no {MANIFEST_NAME}, so it cannot be resumed. hint: copy the complete "
                "folder, and repeat the command."
            )


def _check_named(fresh: Manifest, spec_json: str, runs_dir: Path, run_id: str) -> Manifest:
    run_dir = find_run(runs_dir, run_id)
    manifest = read_manifest(run_dir)
    if is_complete(run_dir, manifest):
        raise SpecError(f"Run {run_id} is completed: every request has its answer. hint: {FRESH_HINT}")
    if manifest.is_final:
        raise SpecError(f"Run {run_id} cannot be resumed: {manifest.message}")
    if is_worked_on(run_dir):
        raise _worked_on(run_dir)
    if changes := _list_run_changes(manifest, fresh, run_dir, spec_json):
        raise SpecError(
            f"Run {run_id} cannot be resumed; differences from its start: {'; '.join(changes)}. hint: undo the change, "
            f"or omit the spec, because --resume {run_id} alone uses the run's own; {FRESH_HINT}"
        )
    return manifest


def _describe_use(run_dir: Path) -> str:
    return f"Run {run_dir.name} of this spec is in use by {name_holder(run_dir)}; not resumed."


def _worked_on(run_dir: Path) -> SpecError:
    return SpecError(
        f"Run {run_dir.name} is in use by {name_holder(run_dir)}. hint: wait for that process, or stop it before you "
        "resume the run."
    )


def _list_run_changes(before: Manifest, after: Manifest, run_dir: Path, spec_json: str) -> list[str]:
    """List the differences that prevent a spec whose new run would be `after` from resuming `before`."""
    changes = []
    if before.spec_hash != after.spec_hash:
        changes += list_changes(json.loads(read_spec_json(run_dir)), json.loads(spec_json)) or ["the spec's form"]
    if before.model == after.model and before.model_id != after.model_id:
        changes.append(f"the files of the model {after.model}: {before.model_id} → {after.model_id}")
    elif before.model_id == after.model_id and before.tokenizer_id != after.tokenizer_id:
        changes.append(f"the tokenizer: {before.tokenizer_id} → {after.tokenizer_id}")
    if before.spec_hash == after.spec_hash:
        changes += list_input_changes(before.inputs, after.inputs)
    if before.table_version != after.table_version:
        changes.append(
            f"the version of its part files: {before.table_version} → {after.table_version} (assayline "
            f"{before.assayline_version} can resume it)"
        )
    return changes
