"""The source tree's own tests: contracts, documentation that cannot drift, nothing left undone."""
