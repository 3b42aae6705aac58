"""Views of uploads, before anything is attacked."""
