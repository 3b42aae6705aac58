"""What images are allowed to look like."""
