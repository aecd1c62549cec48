"""The page of a leaderboard: models × tasks."""
