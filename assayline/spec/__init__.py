"""The spec: the fields of an evaluation, and every check that needs no device."""
