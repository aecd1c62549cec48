"""What a spec cannot ask of a server: known from the spec alone, before anything is started or sent."""

from assayline.errors import SpecError
from assayline.spec import ChatSpec, EvalSpec, SyntheticSource

TOKENIZER_ARGS = frozenset({"max_model_len", "tokenizer", "tokenizer_revision", "trust_remote_code"})
"""Engine arguments that mean something for a server that runs already: they are about rendering, which is done here."""


def check_server(spec: EvalSpec) -> None:
    """Raises SpecError. Nothing to check for other backends."""
    if spec.engine.backend != "server":
        return
    if spec.engine.is_remote:
        _check_running(spec)
    elif "served_model_name" in spec.engine.args:
        raise SpecError("engine.args.served_model_name cannot be set: it is engine.server.model.")
    if spec.engine.sends_messages:
        _check_chat(spec)
    if spec.reasoning and spec.sampling.get("stop"):
        raise SpecError(
            "sampling.stop and reasoning: a server looks for stop texts in the thinking as well. Remove one of them, "
            "or set engine.backend to offline or async, which look for them in the answer alone."
        )


def _check_running(spec: EvalSpec) -> None:
    foreign = sorted(set(spec.engine.args) - TOKENIZER_ARGS)
    if foreign:
        raise SpecError(
            f"engine.args ({', '.join(foreign)}) are for an engine that is started here, and engine.server.url names a "
            "server that runs already. Remove one of the two."
        )


def _check_chat(spec: EvalSpec) -> None:
    usual = ChatSpec()
    changed = [
        f"chat.{name}"
        for name in ("template", "prefill", "add_generation_prompt")
        if getattr(spec.chat, name) != getattr(usual, name)
    ]
    if changed:
        raise SpecError(
            f"{' and '.join(changed)}: with engine.server.endpoint chat the server renders, by its own template. "
            "Remove it, or set the endpoint to completions, for which prompts are rendered here."
        )
    if isinstance(spec.prompts.source, SyntheticSource):
        raise SpecError(
            "prompts.source synthetic makes token ids of exact length, which the endpoint chat does not take. Set "
            "engine.server.endpoint to completions."
        )
