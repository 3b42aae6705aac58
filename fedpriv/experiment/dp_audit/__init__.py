"""Audits of epsilon: canaries through a defense, through local training, and through somebody else's federation."""
