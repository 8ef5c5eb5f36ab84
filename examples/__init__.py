"""Examples: programs that use the library as one would, a file each; whole ones have a folder."""
