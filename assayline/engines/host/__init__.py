"""The code of an engine's own process. Nothing outside this folder imports it: it is started by name."""
