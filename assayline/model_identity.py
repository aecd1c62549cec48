"""The identity of a spec's model, wherever it runs: of files, or of a name that a server gives it."""

from pathlib import Path

from assayline.errors import ModelError
from assayline.identity import ModelIdentity, identify_model
from assayline.spec import EvalSpec

SERVED = "served"


def identify_spec_model(spec: EvalSpec) -> ModelIdentity:
    """By content where there are files. Raises ModelError.

    A server that runs already and renders for itself needs no files here. Then the model is known by its name alone,
    whether or not some hub has files of that name: what they hold need not be what answers.
    """
    if not spec.engine.is_remote:
        return identify_model(spec.model, spec.revision)
    if spec.engine.sends_messages and not _is_folder(spec.model):
        return ModelIdentity(None, f"{SERVED}:{spec.engine.server.model or spec.model}", SERVED)
    try:
        return identify_model(spec.model, spec.revision)
    except ModelError as error:
        raise ModelError(
            f"{error} The endpoint completions gets token ids, for which the model's tokenizer is needed: set `model` "
            "to its folder or hub id, and engine.server.model to the server's name for it; or set "
            "engine.server.endpoint to chat, and the server renders."
        ) from None


def _is_folder(model: str) -> bool:
    try:
        return Path(model).expanduser().is_dir()
    except (OSError, RuntimeError):
        return False
