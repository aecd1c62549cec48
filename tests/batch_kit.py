"""Batch files for tests: lines, and the file that holds them."""

import json
from pathlib import Path
from typing import Any


def chat_line(custom_id: str, text: str = "bako mitu", **body: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return batch_line(custom_id, "/v1/chat/completions", {"messages": messages, **body})


def text_line(custom_id: str, prompt: Any = "bako mitu", **body: Any) -> dict[str, Any]:
    return batch_line(custom_id, "/v1/completions", {"prompt": prompt, **body})


def batch_line(custom_id: str, url: str, body: dict[str, Any]) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {"model": "m", **body}}


def write_batch(path: Path, *lines: dict[str, Any] | str) -> Path:
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    path.write_text(text, encoding="utf-8")
    return path
