"""Rates at which the scoring and wording code claims a leak where there is none, and finds one that is there."""
