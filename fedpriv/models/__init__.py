"""The model zoo: extractors, representation mappings, one linear head for all."""
