"""From saved records to pages, pictures and tables; computes no new measurement."""
