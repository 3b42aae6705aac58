"""What an upload says by itself, before anything is attacked."""
