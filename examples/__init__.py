"""Things to run assayline on: a spec, prompts, and a model that the repository makes itself."""
