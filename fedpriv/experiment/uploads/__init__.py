"""Uploads that were made elsewhere: checked at the door, and made into the evidence and the truth that runs give."""
