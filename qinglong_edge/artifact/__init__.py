"""Log artifacts (ADR-0024 section 4): bounded files that belong to exactly one attempt."""
