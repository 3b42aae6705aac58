"""Plans of attacks, and their execution on a source: attack, shuffled control, score, save, draw."""
