"""The only room that touches the operating system."""
