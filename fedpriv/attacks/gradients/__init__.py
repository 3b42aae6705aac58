"""Images from updates of weights."""
