"""The core that sends requests to an OpenAI-compatible server, and the server that a run starts for itself."""
