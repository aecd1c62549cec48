"""What is done when an engine dies: why it died, what to change, and what is asked again."""
