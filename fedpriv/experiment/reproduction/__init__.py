"""A claim of a paper put to the test: planned as a study or counted, carried out, and judged."""
