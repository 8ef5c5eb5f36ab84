"""The tables in the pages of `docs/findings`, written from the CSV files between two comments:

<!-- table: NAME --> and <!-- end -->
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from tools.experiments.redraw.named import TABLES

FINDINGS = Path(__file__).parents[3] / "docs" / "findings"
BLOCK = re.compile(r"(<!-- table: ([\w]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def fill_all(runs: Path, pages: Path = FINDINGS) -> None:
    """All pages of a folder, from a folder of CSV files."""
    for page in sorted(pages.glob("*.md")):
        page.write_text(filled(page.read_text(), runs))


def filled(page: str, runs: Path, tables: Mapping[str, Callable[[Path], str]] = TABLES) -> str:
    """The page with its tables made anew. Raises KeyError for one that there is not."""
    return BLOCK.sub(lambda found: f"{found[1]}\n{tables[found[2]](runs)}\n\n{found[3]}", page)
