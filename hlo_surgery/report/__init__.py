"""Report: what a rewriting has done to a module, in words, in MLIR and as a page for a browser."""
