"""The queue of shards between preparing and generating: who has which, and what it is asked with."""
