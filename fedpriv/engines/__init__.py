"""Where clients run."""
