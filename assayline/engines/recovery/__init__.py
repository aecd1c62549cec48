"""Recovery from an engine's death: its cause, the changes for the next engine, and the requests sent again."""
