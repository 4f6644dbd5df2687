"""Local process infrastructure (ADR-0069): launching, receipts, identity, stopping, cleanup."""
