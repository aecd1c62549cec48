"""The core that asks an OpenAI-compatible server, and the server that a run starts for itself."""
