"""Decides; everything that acts is injected."""
