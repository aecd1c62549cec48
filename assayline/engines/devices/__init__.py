"""The devices of this machine: who has them, how much memory is free, what was left behind on them."""
