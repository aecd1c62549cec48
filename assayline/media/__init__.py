"""Pictures, sounds and videos of prompts: where a row's value points, what it holds, and what the model is given."""
