"""Parts that every room may use: errors, typed configuration, registries, files, seeds; it imports no other room."""
