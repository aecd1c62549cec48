"""A dry run: everything but the engine and the database. Nothing is written."""

import json

from rich.console import Console
from rich.syntax import Syntax

from assayline.evaluation import describe_run
from assayline.prepare import Preparation
from assayline.resume import describe_left, preview_run
from assayline.settings import Settings
from assayline.spec import EvalSpec
from assayline.spec_file import canonical_json, spec_hash


def print_dry_run(spec: EvalSpec, settings: Settings, resume: str, console: Console) -> None:
    """Reads and renders every prompt, and shows what a run would do. Raises what a run would raise."""
    fresh, model = describe_run(spec, settings)
    runs_dir = settings.data_dir / "runs"
    found, notes = preview_run(fresh, canonical_json(spec), runs_dir, resume)
    preparation = Preparation(spec, model)
    rows = requests = errors = duplicates = tokens = 0
    first = None
    for prepared in preparation:
        rows += 1
        duplicates += prepared.prompt.occurrence > 0
        requests += len(prepared.requests)
        errors += len(prepared.errors)
        tokens += sum(len(request.prompt_token_ids) for request in prepared.requests)
        if first is None and prepared.ready:
            first = prepared.ready[0]
    console.print(f"spec      {spec.name}, digest {spec_hash(spec)}", highlight=False, soft_wrap=True)
    console.print(f"model     {spec.model}, {model.model_id}", highlight=False, soft_wrap=True)
    console.print(
        f"prompts   {rows} rows of {spec.prompts.set_name}, {duplicates} duplicates, {requests} requests "
        f"({errors} of them errors), {tokens} prompt tokens",
        highlight=False,
        soft_wrap=True,
    )
    console.print(
        f"engine    {spec.engine.backend}, {spec.engine.mode}, {spec.workers} worker(s), "
        f"arguments {json.dumps(spec.engine.args)}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    if first is not None:
        console.print(
            f"sampling  {json.dumps(first.sampling, default=str)}", highlight=False, markup=False, soft_wrap=True
        )
        console.print(f"first prompt, {len(first.prompt_token_ids)} tokens:", highlight=False, soft_wrap=True)
        console.print(Syntax(first.rendered or "", "text", word_wrap=True))
    for note in notes:
        console.print(note, highlight=False, markup=False, soft_wrap=True)
    if found:
        left = describe_left(runs_dir / found.run_id, found)
        console.print(f"This would go on with run {found.run_id}: {left}.", highlight=False, soft_wrap=True)
    else:
        console.print("This would be a new run.", highlight=False)
    console.print("Nothing was generated or stored.")
