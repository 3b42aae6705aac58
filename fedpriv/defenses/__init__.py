"""What a client can do to an upload before it leaves."""
