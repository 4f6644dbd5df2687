"""Execution offers of a control plane become processes, exactly once (ADR-0115)."""
