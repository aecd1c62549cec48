"""The cores that hold vLLM. vLLM and torch are imported here alone."""
