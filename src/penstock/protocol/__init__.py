"""Bytes to values and back: wire protocols and disk formats. Standard library only, no I/O."""
