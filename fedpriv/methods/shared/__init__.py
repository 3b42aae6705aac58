"""Parts that several methods share; one idea a file, no method of its own."""
