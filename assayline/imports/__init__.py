"""Imports of other tools' result files as runs, one module per kind of file."""
