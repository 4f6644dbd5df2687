"""Everything that proves the program: the tests, and under tools/ the doors behind build.py."""
