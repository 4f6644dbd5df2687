"""Secrets (ADR-0024 section 3): keys, sealing, opening; never imported by a resident process."""
