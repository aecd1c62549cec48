"""Prompt sets: rows of a source, read, checked and identified."""

from assayline.prompts.read import BadRow, load_prompts
from assayline.prompts.row import RowError

__all__ = ["BadRow", "RowError", "load_prompts"]
