"""From prompts to requests: chats, options, sampling and length."""
