"""The page of a run in Prefect."""

import re

from prefect.artifacts import create_markdown_artifact

from assayline.digests import digest_json


def publish(kind: str, name: str, markdown: str, headline: str) -> None:
    """Attaches a page to the flow run. Prefect shows a timeline per key, so each kind and name has its own."""
    create_markdown_artifact(key=make_key(kind, name), markdown=markdown, description=headline)


def make_key(kind: str, name: str) -> str:
    """Makes a key of lower-case letters, digits and dashes. A name of other characters gets a digest."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60]
    return "-".join(filter(None, [kind, plain, "" if plain == name else digest_json(name)[:8]]))
