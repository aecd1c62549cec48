"""Which chat template is meant: a spec's `chat.template` is a mode, a name of the tokenizer's, a file, or Jinja2.

Tokenizers have none (base models), one, or several by name; `default` is the one that transformers would take.
"""

from pathlib import Path
from typing import Any

from assayline.errors import ModelError, SpecError
from assayline.spec.prompts import ChatSpec
from assayline.words import nearest


def find_template(spec: ChatSpec, tokenizer: Any) -> tuple[str, str | None]:
    """(what it is called in messages, the template's text). The text is None in mode plain.

    Raises SpecError for a name or file that is not there, ModelError for a model without the template.
    """
    given, own = spec.template, getattr(tokenizer, "chat_template", None)
    if given == "plain":
        return "plain", None
    if given == "default":
        return "default", _find_default(own, spec)
    if "{{" in given or "{%" in given:
        return "inline", given
    if isinstance(own, dict) and given in own:
        return given, own[given]
    try:
        return given, Path(given).expanduser().read_text(encoding="utf-8")
    except FileNotFoundError:
        names = ["default", "plain", *(own if isinstance(own, dict) else [])]
        raise SpecError(
            f"chat.template is {given!r}, which is no file (working folder: {Path.cwd()}), no Jinja2 and "
            f"no name; {nearest(given, names)}"
        ) from None
    except (OSError, ValueError, RuntimeError) as error:  # not UTF-8, or no path: a NUL in it, a ~user who is not there
        raise SpecError(f"chat.template {given!r:.200} cannot be read as text: {error!s:.200}.") from None


def _find_default(own: Any, spec: ChatSpec) -> str:
    if isinstance(own, dict):
        name = "tool_use" if spec.kwargs.get("tools") is not None and "tool_use" in own else "default"
        if name in own:
            return str(own[name])
        raise ModelError(
            f"The model's tokenizer has chat templates named {', '.join(sorted(own))} and none named "
            "default. Give one of these names in chat.template."
        )
    if not own:
        raise ModelError(
            "The model's tokenizer has no chat template: it is a base model, or the template is "
            "elsewhere. Set chat.template to plain, to a Jinja2 file, or to inline Jinja2."
        )
    return str(own)
