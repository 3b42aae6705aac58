"""From a stored run to what the server saw and may know; the truth stands apart, for scorers alone."""
