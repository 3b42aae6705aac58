"""Feature vectors that linear algebra recovers from uploads, and the attacks that invert them."""
