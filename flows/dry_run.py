"""A dry run: everything but the engine and the database. Nothing is written."""

import json

from rich.console import Console
from rich.syntax import Syntax

from assayline.evaluation import plan_run
from assayline.prepare import Preparation
from assayline.resume import describe_left, preview_run
from assayline.settings import Settings
from assayline.spec import EvalSpec
from assayline.spec_file import canonical_json, spec_hash
from flows.summary import print_text


def print_dry_run(spec: EvalSpec, settings: Settings, resume: str, console: Console) -> None:
    """Reads and renders every prompt, and shows what a run would do. Raises what a run would raise."""
    fresh, model = plan_run(spec, settings)
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
    print_text(f"spec      {spec.name}, digest {spec_hash(spec)}", console)
    print_text(f"model     {spec.model}, {model.model_id}", console)
    print_text(
        f"prompts   {rows} rows of {spec.prompts.set_name}, {duplicates} duplicates, {requests} requests "
        f"({errors} of them errors), {tokens} prompt tokens",
        console,
    )
    print_text(
        f"engine    {spec.engine.backend}, {spec.engine.mode}, {spec.workers} worker(s), "
        f"arguments {json.dumps(spec.engine.args)}",
        console,
    )
    if first is not None:
        print_text(f"sampling  {json.dumps(first.sampling, default=str)}", console)
        if first.messages is None:
            print_text(f"first prompt, {len(first.prompt_token_ids)} tokens:", console)
            console.print(Syntax(first.rendered or "", "text", word_wrap=True))
        else:
            print_text("first prompt, which the server renders:", console)
            shown = json.dumps(first.messages, indent=2, ensure_ascii=False)
            console.print(Syntax(shown, "json", word_wrap=True))
    for note in notes:
        print_text(note, console)
    if found:
        left = describe_left(runs_dir / found.run_id, found)
        print_text(f"This would go on with run {found.run_id}: {left}.", console)
    else:
        print_text("This would be a new run.", console)
    print_text("Nothing was generated or stored.", console)
