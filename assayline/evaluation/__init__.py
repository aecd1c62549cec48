"""A run's life: begun, prepared, answered by workers, loaded, ended; and begun again where it stopped."""
