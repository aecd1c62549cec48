"""Where the files of a run are: in its folder, or in an object store with a copy beside the process that reads."""
