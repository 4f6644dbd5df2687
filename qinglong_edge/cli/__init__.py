"""argv in, text or JSON out."""
