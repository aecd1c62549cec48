"""The page about a history: one configuration over its nights."""
