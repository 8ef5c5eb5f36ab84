"""Examples: whole programs that use the library as one would, a folder each."""
