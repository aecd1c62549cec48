"""The devices of this machine: their holders, their free memory, and engines left behind on them."""
