"""Thin Prefect tasks around `assayline`: names, logging, no logic and no state of their own."""
