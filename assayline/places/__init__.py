"""Names of before, for modules that are being replaced; to be deleted with them."""
