"""Lines of an OpenAI batch file: `{"custom_id", "method", "url", "body"}`, each a request of its own.

A line that breaks the format, or whose body asks for what cannot be done here, is a bad row, and the others are asked.
What makes a file a batch file (a line's keys, an endpoint that is known) is wanted of its first line at once.
"""

from typing import Any

from assayline.digests import digest_text
from assayline.errors import PromptError
from assayline.media.fetch import Fetcher
from assayline.media.references import MediaReader, Shelf
from assayline.prompts.batch_body import Wishes, read_chat_body, read_text_body
from assayline.prompts.columns import PromptParts, read_messages
from assayline.prompts.files import UnreadableRow
from assayline.prompts.media import MediaPlaces
from assayline.prompts.values import RowError, RowShapeError, as_json, check_text, list_names
from assayline.records import Json
from assayline.spec.media import MediaSpec
from assayline.spec.prompts import Columns

CHAT_URL, COMPLETIONS_URL = "/v1/chat/completions", "/v1/completions"
URLS = (CHAT_URL, COMPLETIONS_URL)


class BatchReader:
    """Reads the lines of one batch file, in their order. Remembers 64 bits of each custom_id."""

    def __init__(self, media: MediaSpec, shelf: Shelf | None = None) -> None:
        """`shelf` is where media that come inside a body are kept (None: nowhere)."""
        self._media = MediaPlaces(Columns(), media, MediaReader(shelf or Shelf(None), Fetcher(media)))
        self._seen: set[int] = set()
        self._url: str | None = None
        self._model: Json = None

    def check_first(self, row: dict[str, Any]) -> None:
        """Raises PromptError if the first line is not of a batch file. Nothing is remembered of it."""
        try:
            _check_line(row)
        except RowShapeError as error:
            raise PromptError(f"The first line is not of a batch file. {error}") from None
        except RowError:
            pass  # a fault of this line alone

    def read(self, row: dict[str, Any] | UnreadableRow) -> PromptParts:
        """Raises RowError for a line that cannot be asked."""
        if isinstance(row, UnreadableRow):
            raise RowError("unreadable_row", row.message)
        try:
            return self._read(row)
        except RecursionError:
            raise RowError(
                "row_error", "The line holds lists or objects that are nested hundreds of levels deep."
            ) from None

    def identify(self, row: dict[str, Any]) -> tuple[str | None, None]:
        """The custom_id of a line that cannot be read, if it has one; such lines have no target."""
        name = row.get("custom_id")
        try:
            return check_text(name, "custom_id") if isinstance(name, str) and name else None, None
        except RowError:
            return None, None

    def _read(self, row: dict[str, Any]) -> PromptParts:
        _check_line(row)
        custom_id, url = check_text(row["custom_id"], "custom_id"), row["url"]
        self._check_unique(custom_id)
        body = as_json(row["body"], "The body")
        self._check_alike(url, body.get("model"))
        wishes = read_chat_body(body) if url == CHAT_URL else read_text_body(body)
        return PromptParts(
            messages=self._read_messages(row, wishes),
            source_id=custom_id,
            metadata={"url": url, "model": body.get("model")},
            sampling=wishes.sampling,
            prompt_token_ids=wishes.token_ids,
            body=wishes.body,
        )

    def _read_messages(self, row: dict[str, Any], wishes: Wishes) -> list[dict[str, Any]]:
        if wishes.token_ids is not None:
            return []
        if wishes.body.text is not None:
            return [{"role": "user", "content": wishes.body.text}]
        messages = read_messages(wishes.messages, lambda part, where: self._media.read_part(part, where, row))
        return self._media.place(messages, {})

    def _check_unique(self, custom_id: str) -> None:
        key = int(digest_text(custom_id)[:16], 16)
        if key in self._seen:
            raise RowError(
                "row_error",
                f"custom_id {custom_id!r:.80} stands on an earlier line, too, expected one of its own on each: answers "
                "are found by it. The earlier line is asked, this one is not.",
            )
        self._seen.add(key)

    def _check_alike(self, url: str, model: Json) -> None:
        if self._url is None:
            self._url, self._model = url, model
        for what, first, given in (("endpoint", self._url, url), ("model", self._model, model)):
            if first != given:
                raise RowError(
                    "row_error",
                    f"The line asks the {what} {given!r:.80}, and the first one {first!r:.80}. A batch file has one "
                    f"{what}: put these lines into a file of their own.",
                )


def _check_line(row: dict[str, Any]) -> None:
    """Raises RowShapeError for a line that is not of a batch file, RowError for one with a fault of its own."""
    if missing := [name for name in ("custom_id", "method", "url", "body") if name not in row]:
        raise RowShapeError(
            "row_error",
            f"It has no {' and no '.join(missing)}, expected custom_id, method, url and body. Its keys: "
            f"{list_names(map(str, row))}.",
        )
    if row["url"] not in URLS:
        raise RowShapeError(
            "row_error",
            f"It asks the endpoint {row['url']!r:.80}, which is not answered here. Expected {' or '.join(URLS)}.",
        )
    if row["method"] != "POST":
        raise RowError("row_error", f"The line's method is {row['method']!r:.80}, expected POST.")
    if not isinstance(row["custom_id"], str) or not row["custom_id"]:
        raise RowError("row_error", f"custom_id is {row['custom_id']!r:.80}, expected a text that is not empty.")
    if not isinstance(row["body"], dict):
        raise RowError("row_error", f"The body is {row['body']!r:.80}, expected an object with the request.")
