"""What a person asks for. Nothing here imports more than errors and words."""
