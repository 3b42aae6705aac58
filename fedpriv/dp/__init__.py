"""Audits of epsilon: canaries through a defense or through local training, and the lower bounds that they give."""
