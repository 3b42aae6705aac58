"""The wire: payloads, the ledger that counts them, and their sizes; no training."""
