"""Data sets, partitions, and the samples that clients hold."""
