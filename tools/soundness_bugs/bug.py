"""A bug: a text of a file of passes/, what replaces it, and what the analysis accepts then."""

from typing import NamedTuple


class Bug(NamedTuple):
    """`old` occurs once in the file."""

    file: str
    old: str
    new: str
    accepts: str
