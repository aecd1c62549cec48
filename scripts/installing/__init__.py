"""What scripts/setup.py and `make wheels` are made of. Standard library only: nothing is installed yet."""
