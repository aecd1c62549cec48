"""Images, audio and video of prompts: references in rows, their content, and the input that a model takes."""
