"""Data attribution: rows of all training examples on disk, and scores of them for queries.

    write_index(f, data, path) -> Index     f's rows of every example, a batch at a time
    covariance(index)                       what preconditions: mean outer products of rows
    preconditioned(queries, C, damping)     (C + damping)^-1 times each query
    scores(index, queries) -> [Q, N]        inner products of queries and rows

TracIn, TRAK and LoGra are compositions of these: see docs/guides/attribution.md.
"""

from hlo_surgery.attribution.index import Index, open_index
from hlo_surgery.attribution.scoring import Covariance, covariance, preconditioned, scores
from hlo_surgery.attribution.writing import write_index
from hlo_surgery.public_function import publish

__all__ = [
    "Covariance",
    "Index",
    "covariance",
    "open_index",
    "preconditioned",
    "scores",
    "write_index",
]
publish(globals(), __all__)
