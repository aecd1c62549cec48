"""The cores that hold vLLM. Only this folder imports vLLM and torch."""
