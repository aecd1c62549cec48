"""Thin Prefect tasks around `assayline`: names and logging, without logic or state."""
