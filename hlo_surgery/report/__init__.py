"""Report: what a rewriting has done to a module, in words, in MLIR and as a page for a browser.

findings          all that a page tells; which ops were added, and for what
source_program    a module by the lines of the user's source: ops, FLOPs, bytes
page              the page, as one HTML file
program_graph     on it the graph, live memory, and costs by line
drawing           SVG and HTML
"""
