"""Fuzzers: any bytes at all against what reads bytes from peers and disks; see run.py."""
