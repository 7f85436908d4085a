"""One module a fuzzer, its invariant in the first line.

``check(data)`` raises when the invariant does not hold for these bytes. ``seeds()`` are what the
search begins with.
"""
