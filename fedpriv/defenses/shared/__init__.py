"""Parts that several defenses share: reading signals from uploads, and accounting."""
