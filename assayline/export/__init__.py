"""Exports of a run's stored requests and answers in the formats of other tools. Metrics come from SQL."""
