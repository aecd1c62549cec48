"""Calls of an object store that are repeated until it answers, and errors that are sentences without secrets.

obstore speaks to S3, Google Cloud Storage and Azure. It takes its credentials from the environment, where the
providers' own tools look for them; they stay inside it. Here every call is safe to repeat: a put writes the same bytes
again, and a conditional one whose answer was lost finds its own bytes there.
"""

import random
import re
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

from assayline.errors import SpecError
from assayline.words import hide_secrets

Answer = TypeVar("Answer")
Given = TypeVar("Given")
CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, the path of a key file",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
"""By scheme, what people set. Machines have roles instead."""
METADATA_SERVER = "169.254.169.254"
"""Who is asked for a machine's role."""
PATIENCE_S = 180.0
FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 5.0
CALL_TIMEOUT_S = 30.0
FINAL_STATUS = re.compile(r"status code: (4(?!08|09|25|29)\d\d|501)")
PAGE = 1_000
"""Names that a store tells by one request, at the most."""
AT_ONCE = 16
"""Calls at the same time, where there are many to make. One after another, each costs a round trip."""


class StoreGoneError(OSError):
    """The store has not done what was asked, for as long as patience lasts."""


class Client:
    """One prefix of a store. Its methods raise FileNotFoundError for a key that is not there, else OSError."""

    def __init__(self, url: str, patience_s: float | None = None) -> None:
        """Raises SpecError for a URL that is none, and where obstore is not installed.

        `patience_s`: how long the store may be away before that is an error (default: PATIENCE_S).
        """
        check_url(url)
        try:
            import obstore
            from obstore import exceptions
            from obstore.store import from_url
        except ImportError:
            raise SpecError(
                f"{url} is an object store, which needs the extra `obstore`: pip install 'assayline[obstore]'."
            ) from None
        self.url = url
        self._patience_s = PATIENCE_S if patience_s is None else patience_s
        self._api, self._errors = obstore, exceptions
        self._is_gone = False
        timeouts = {"timeout": timedelta(seconds=CALL_TIMEOUT_S), "connect_timeout": timedelta(seconds=5)}
        try:
            self._store: Any = from_url(
                url,
                client_options={**timeouts, "allow_http": True},
                retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=CALL_TIMEOUT_S)},
                **({"disable_bulk_delete": True} if url.startswith("s3:") else {}),  # which not every server has
            )
        except exceptions.BaseError as error:
            raise SpecError(f"The object store {url} cannot be used: {describe(error)}. {advise(url)}") from None

    def get(self, key: str) -> bytes:
        """What is in an object."""
        return bytes(self._call(lambda: self._api.get(self._store, key).bytes(), key))

    def put(self, key: str, content: bytes) -> None:
        """Makes or replaces an object."""
        self._call(lambda: self._api.put(self._store, key, content), key)

    def create(self, key: str, content: bytes) -> bool:
        """Makes an object that must not be there yet; False if there is one, with other bytes."""

        def attempt() -> bool:
            try:
                self._api.put(self._store, key, content, mode="create")
            except (self._errors.AlreadyExistsError, self._errors.PreconditionError):
                return bytes(self._api.get(self._store, key).bytes()) == content  # its answer may have been lost
            return True

        return self._call(attempt, key)

    def exists(self, key: str) -> bool:
        """Whether there is such an object."""
        try:
            self._call(lambda: self._api.head(self._store, key), key)
        except FileNotFoundError:
            return False
        return True

    def delete(self, keys: list[str]) -> None:
        """Removes objects; those that are not there are no error."""
        do_at_once(self._delete, keys)

    def list_objects(self, folder: str) -> list[tuple[str, int]]:
        """Names and sizes in bytes of the objects in a folder."""

        def attempt() -> list[tuple[str, int]]:
            pages = self._api.list(self._store, prefix=folder, chunk_size=PAGE)
            return [(str(one["path"]).rpartition("/")[2], int(one["size"])) for page in pages for one in page]

        return self._call(attempt, folder)

    def list_tags(self, folder: str) -> dict[str, str | None]:
        """By name, the ETag of each object in a folder: another one, once it is overwritten with something else."""

        def attempt() -> dict[str, str | None]:
            pages = self._api.list(self._store, prefix=folder, chunk_size=PAGE)
            return {str(one["path"]).rpartition("/")[2]: one["e_tag"] for page in pages for one in page}

        return self._call(attempt, folder)

    def list_after(self, folder: str, name: str) -> list[tuple[str, int]]:
        """Names and sizes of the next objects in a folder after a name, by one request; none at its end."""

        def attempt() -> list[tuple[str, int]]:
            pages = self._api.list(self._store, prefix=folder, offset=f"{folder}/{name}", chunk_size=PAGE)
            return [(str(one["path"]).rpartition("/")[2], int(one["size"])) for one in next(iter(pages), [])]

        return self._call(attempt, folder)

    def list_folders(self) -> list[str]:
        """The folders in this prefix."""

        def attempt() -> list[str]:
            found = self._api.list_with_delimiter(self._store)
            return [str(name).rpartition("/")[2] for name in found["common_prefixes"]]

        return self._call(attempt, "")

    def _delete(self, key: str) -> None:
        with suppress(FileNotFoundError):
            self._call(lambda: self._api.delete(self._store, key), key)

    def _call(self, attempt: Callable[[], Answer], key: str) -> Answer:
        """Attempts until it is answered, each time after a longer wait, so that many do not come back at once.

        While the store stays away, the calls after one that lost patience fail at once: a worker comes to its end.
        """
        deadline = time.monotonic() + (0.0 if self._is_gone else self._patience_s)
        wait_s = FIRST_WAIT_S
        while True:
            try:
                answer = attempt()
                self._is_gone = False
                return answer
            except FileNotFoundError as error:
                raise FileNotFoundError(f"{self.url}/{key}: {describe(error)}") from None
            except self._errors.BaseError as error:
                said = describe(error)
                if METADATA_SERVER in said:
                    said = f"{said}. It was asked as no credentials were found. {advise(self.url)}"
                if self._is_final(error):
                    raise OSError(f"{self.url} refuses {key}: {said}") from None
                if time.monotonic() + wait_s > deadline:
                    self._is_gone = True
                    raise StoreGoneError(
                        f"{self.url} has not answered for {self._patience_s:g} s, {key}: {said}"
                    ) from None
            time.sleep(random.uniform(wait_s / 2, wait_s))
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)

    def _is_final(self, error: Exception) -> bool:
        """Whether the same call would fail again: it is wrong, or forbidden."""
        errors = self._errors
        return FINAL_STATUS.search(str(error)) is not None or isinstance(
            error,
            errors.PermissionDeniedError
            | errors.UnauthenticatedError
            | errors.NotSupportedError
            | errors.InvalidPathError
            | errors.UnknownConfigurationKeyError,
        )


def check_url(url: str) -> None:
    """Raises SpecError for a URL that names no store, or has a credential in it."""
    scheme, _, rest = url.partition("://")
    if scheme not in CREDENTIALS or not rest.strip("/"):
        raise SpecError(
            f"{hide_secrets(url)!r} is no object store. Expected s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or "
            "az://CONTAINER/PREFIX; for a folder, set ASSAYLINE_DATA_DIR alone."
        )
    if any(sign in rest for sign in "@?#"):
        raise SpecError(
            f"The URL {hide_secrets(url)!r} has more than a bucket and a prefix. Credentials belong into the "
            "environment, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; a URL is written into runs."
        )


def advise(url: str) -> str:
    """Where a store's credentials come from, in a sentence."""
    return f"Set {CREDENTIALS[url.partition('://')[0]]}, or run on a machine whose role may use the store."


def describe(error: Exception) -> str:
    """What a store said, on one line, without what it was asked by."""
    said = " ".join(str(error).partition("\n\nDebug source")[0].split())
    return hide_secrets(said)[:400]


def do_at_once(do: Callable[[Given], Answer], what: Iterable[Given]) -> list[Answer]:
    """Does something with each of many, some of them at the same time; the results are in the order given."""
    given = list(what)
    if len(given) < 2:
        return [do(one) for one in given]
    with ThreadPoolExecutor(min(AT_ONCE, len(given))) as pool:
        return list(pool.map(do, given))
