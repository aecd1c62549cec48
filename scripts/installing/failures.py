"""What went wrong, as a sentence for people: what was given, what was expected, what to do."""

import re

AIR_GAP_HINT = (
    "Without internet: `make wheels` on a machine that has it fills a folder, and `make setup WHEELS=folder` here "
    "needs nothing else (docs/installing.md)."
)
DISK_FULL = re.compile(r"No space left on device|os error 28\b|Errno 28\b|Disk quota exceeded|os error 122\b", re.I)
NO_NETWORK = re.compile(
    r"dns error|failed to lookup address|name resolution|Name or service not known|tcp connect error|Connection refused"
    r"|Network is unreachable|No route to host|error sending request|NewConnectionError|ConnectTimeout|Read timed out"
    r"|operation timed out|ReadTimeoutError|Network connectivity is disabled|ProxyError|Connection reset",
    re.I,
)
CERTIFICATE = re.compile(r"CERTIFICATE_VERIFY_FAILED|invalid peer certificate|UnknownIssuer", re.I)
WRONG_HASH = re.compile(r"hash mismatch|DO NOT MATCH THE HASHES", re.I)
NOT_FOUND = re.compile(
    r"no version of|No matching distribution|not found in the|has no wheels with|no usable wheels|was not found", re.I
)


class SetupFailure(Exception):
    """Its text is the sentence that is shown."""


def name_kind(output: str) -> str:
    """`disk`, `certificate`, `network`, `hash`, `not_found` or `other`, by what uv or pip wrote."""
    kinds = {
        "disk": DISK_FULL,
        "certificate": CERTIFICATE,
        "network": NO_NETWORK,
        "hash": WRONG_HASH,
        "not_found": NOT_FOUND,
    }
    return next((kind for kind, pattern in kinds.items() if pattern.search(output)), "other")


def explain(output: str, doing: str, code: int) -> str:
    """The sentence for a step that failed, with the end of its output where that says more."""
    tail = redact("\n".join(f"    {line}" for line in output.strip().splitlines()[-8:]))
    sentences = {
        "disk": "no space is left on the disk. Free some, or point TMPDIR and UV_CACHE_DIR at a larger one; the same "
        "command then resumes.",
        "certificate": f"the package index's certificate is not trusted:\n{tail}\nIf a proxy of your own signs it, "
        "name its certificate: `pip config set global.cert FILE`; uv is told the same.",
        "network": "the package index cannot be reached. Expected: internet, or an index of your own in pip's "
        f"configuration (`pip config set global.index-url …`; uv is told the same). {AIR_GAP_HINT}",
        "hash": f"a file is not the one that the lock names:\n{tail}\nAn index or a cache served something else. "
        "Try again after `.venv/bin/uv cache clean`; if that changes nothing, the index's file is not the public one.",
        "not_found": f"a package of the lock is on none of the indexes that pip is configured for:\n{tail}\nExpected: "
        "an index that has all of PyPI, or Python 3.11 to 3.13.",
        "other": f"its exit code is {code}, and it ended with:\n{tail}",
    }
    return f"{doing} failed: {sentences[name_kind(output)]}"


def redact(text: str) -> str:
    """Text without the addresses in it, which may hold a password: of an address its last part is left."""
    text = re.sub(r"\b(?:https?|file)://[^\s`'\"<>)]*?([^/\s`'\"<>)]*)/?(?=[\s`'\"<>),]|$)", r"<index>/\1", text)
    return re.sub(r"(host=)'[^']*'", r"\1'…'", text)
