"""Images from vectors or class outputs."""
