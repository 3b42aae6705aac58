"""Small images, all of them among clients: what tests name whose point is not the data."""

QUICK_DATA = {"dataset": "digits", "strangers": 0}
DIGITS = ("--dataset", "digits", "--strangers", "0")
