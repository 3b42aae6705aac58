"""Audits of claims by recorded runs of other frameworks."""
