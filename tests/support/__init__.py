"""What integration and compatibility tests share; `fixtures` lists what to ask for by name."""
