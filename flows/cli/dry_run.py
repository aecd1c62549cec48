"""A dry run: check spec, model and prompts without an engine. Nothing is written.

The database is read only for prompts that are answers of other runs.

It prints the first error row of each kind. It fails if every request would be an error row, or if a scorer reads none
of the first targets.
"""

import json
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.syntax import Syntax

from assayline.errors import MediaError, NothingToAskError
from assayline.evaluation.begin import plan_evaluation
from assayline.evaluation.judging import check_judges, find_unreported, pick_judges
from assayline.evaluation.prepare import Preparation
from assayline.evaluation.resume import choose_run, describe_left
from assayline.flows.cli.words import print_text
from assayline.media.load import Hearing, load_all
from assayline.records import Prompt
from assayline.requests.build import PreparedPrompt
from assayline.settings import Settings
from assayline.spec.engine import list_ignored
from assayline.spec.evaluation import EvalSpec
from assayline.spec.identity import canonical_json, spec_hash
from assayline.store.answers import open_answers
from assayline.store.targets import check_targets
from assayline.store.thread import DatabaseThread

TRIED_MEDIA = 100
"""Number of media files to decode. The existence of all files is checked."""

TRIED_TARGETS = 100
SHOWN_FAULTS = 3
SHOWN_CHARACTERS = 400


class MediaTrial:
    """Counts of images, audio and video in the prompts, and whether the first files can be decoded."""

    def __init__(self, spec: EvalSpec) -> None:
        self._spec = spec.prompts.media
        self._counts: Counter[str] = Counter()
        self._tried: set[str] = set()
        self._faults: list[str] = []

    def take(self, prompt: Prompt) -> None:
        """Count a prompt's media. Inline media is not kept, so it is not decoded."""
        for one in prompt.media or ():
            self._counts[one["kind"]] += 1
            is_file = Path(one["path"]).is_absolute()
            if is_file and one["digest"] not in self._tried and len(self._tried) < TRIED_MEDIA:
                self._tried.add(one["digest"])
                try:
                    load_all([one], self._spec, Hearing())
                except MediaError as error:
                    self._faults.append(f"row {prompt.source_row}: {error}")

    def describe(self) -> list[str]:
        """Return lines to print; none for a text-only prompt set."""
        if not self._counts:
            return []
        counted = ", ".join(f"{number} of kind {kind}" for kind, number in sorted(self._counts.items()))
        lines = [f"media     {counted}; {len(self._tried)} files decoded, {len(self._faults)} unreadable"]
        return lines + [f"          {fault}" for fault in self._faults[:SHOWN_FAULTS]]


class ErrorTrial:
    """Requests that would be error rows, counted by kind of error."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._first: dict[str, str] = {}

    @property
    def requests(self) -> int:
        return self._counts.total()

    def take(self, prepared: PreparedPrompt) -> None:
        """Count a prompt's errors."""
        for error in prepared.errors:
            kind = error.error_kind or "unknown"
            self._counts[kind] += 1
            self._first.setdefault(kind, f"row {prepared.prompt.source_row}: {error.error_message}")

    def describe(self) -> list[str]:
        """Return a line per kind with its count and first example."""
        return [
            f"          {kind} {number}×, first in {self._first[kind]:.{SHOWN_CHARACTERS}}"
            for kind, number in self._counts.most_common()
        ]


def describe_turns(conversations: Counter[int]) -> list[str]:
    """Return a line about conversations sent turn by turn, given counts by number of turns; none without any."""
    if not conversations:
        return []
    turns = sum(number * count for number, count in conversations.items())
    return [
        f"turns     {conversations.total()} conversations of {min(conversations)} to {max(conversations)} turns, "
        f"{turns} in total; prompt tokens count first turns only, as later prompts contain the model's answers"
    ]


def print_dry_run(spec: EvalSpec, settings: Settings, resume: str, console: Console) -> None:
    """Read and render every prompt, and print what a run would do.

    Raises the errors of a run, and NothingToAskError if every request would be an error row.
    """
    read = DatabaseThread(settings).read
    plan = plan_evaluation(spec, settings, read)
    spec, model = plan.spec, plan.model
    runs_dir = settings.data_dir / "runs"
    choice = choose_run(plan.fresh, canonical_json(spec), runs_dir, resume, is_dry=True)
    notes = [*choice.notes, *check_judges(plan, settings)]
    unreported = find_unreported(plan, settings, resume)
    preparation = Preparation(spec, model, rows=open_answers(spec, read))
    rows = requests = duplicates = tokens = 0
    turns: Counter[int] = Counter()
    errors = ErrorTrial()
    first = None
    ignored: dict[str, None] = {}
    targets: list[tuple[str, list[str] | None]] = []
    media = MediaTrial(spec)
    for prepared in preparation:
        rows += 1
        duplicates += prepared.prompt.occurrence > 0
        requests += len(prepared.requests)
        errors.take(prepared)
        turns.update(request.turns for request in prepared.requests if request.turn_index == 0 and request.turns)
        if (target := prepared.prompt.target) is not None and len(targets) < TRIED_TARGETS:
            targets.append((target, prepared.prompt.options))
        for request in prepared.ready:
            form = request.sampling.get("structured_outputs")
            ignored |= dict.fromkeys(list_ignored(form.get("json") if isinstance(form, dict) else None))
        tokens += sum(len(request.prompt_token_ids) for request in prepared.requests)
        if first is None and prepared.ready:
            first = prepared.ready[0]
        if prepared.ready:
            media.take(prepared.prompt)
    print_text(f"spec      {spec.name}, digest {spec_hash(spec)}", console)
    print_text(f"model     {spec.model_name}, {model.model_id}", console)
    print_text(
        f"prompts   {rows} rows of {spec.prompts.set_name}, {duplicates} duplicates, {requests} requests "
        f"({errors.requests} error rows), {tokens} prompt tokens",
        console,
    )
    for line in [*describe_turns(turns), *errors.describe(), *media.describe()]:
        print_text(line, console)
    print_text(
        f"engine    {spec.engine.backend}, {spec.engine.mode}, {spec.workers} worker(s), "
        f"arguments {json.dumps(spec.engine.args)}",
        console,
    )
    for scorer in pick_judges(spec.scorers):
        models = ", ".join(str(scorer.model or judge.get("model")) for judge in scorer.judges)
        print_text(f"judge     {scorer.title}: {models}, {requests - errors.requests} answers", console)
    if first is not None:
        print_text(f"sampling  {json.dumps(first.sampling, default=str)}", console)
        if first.messages is None:
            print_text(f"first prompt, {len(first.prompt_token_ids)} tokens:", console)
            console.print(Syntax(first.rendered or "", "text", word_wrap=True))
        else:
            print_text("first prompt, rendered by the server:", console)
            shown = json.dumps(first.messages, indent=2, ensure_ascii=False)
            console.print(Syntax(shown, "json", word_wrap=True))
    if ignored:
        notes.append(
            f"vLLM does not enforce {', '.join(ignored)} of the JSON schema, so answers may break it. hint: add `type` "
            "next to a keyword that is for one type; the scorer json checks all of the schema."
        )
    for note in notes:
        print_text(note, console)
    check_targets(spec.scorers or [], targets)
    if unreported:
        print_text(f"This would add judges and report to run {unreported}, which has all its answers.", console)
    elif found := choice.manifest:
        left = describe_left(runs_dir / found.run_id, found)
        print_text(f"This would resume run {found.run_id}: {left}.", console)
    else:
        print_text("This would start a new run.", console)
    print_text("Dry run: nothing was generated or stored.", console)
    if requests and errors.requests == requests:
        raise NothingToAskError(
            f"All {requests} requests would be error rows. hint: fix the prompt errors listed above."
        )
