"""Pure tensor mathematics that methods, defenses and attacks share; no state, no federation."""
