"""Sources of images; one file per kind of source."""
