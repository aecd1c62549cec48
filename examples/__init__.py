"""Examples: specs, prompt sets, and tiny models that the repository builds."""
