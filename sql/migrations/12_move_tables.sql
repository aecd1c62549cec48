-- Tables go from main to raw. `apply_schema` moves them, each as its columns are, once there is this schema.
create schema raw;
