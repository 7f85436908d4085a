"""Protocol servers. A door translates between a protocol and the core; it decides nothing, and
doors never import each other."""
