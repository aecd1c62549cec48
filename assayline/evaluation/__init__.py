"""The life cycle of a run: begin, prepare, answer, ingest and end; and resume after an interruption."""
