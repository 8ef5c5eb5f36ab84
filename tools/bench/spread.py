"""The spread of repeated benches: by row the least, median and largest ratio to the first method.

python -m tools.bench.spread RUN_1.csv RUN_2.csv ...
"""

import csv
import statistics
import sys
from collections import defaultdict

KEYS = ("family", "workload", "shape", "size", "batch", "width", "depth", "method")


def main() -> None:
    ratios = defaultdict[tuple[str, ...], list[float]](list)
    for file in sys.argv[1:]:
        first = ("", 1.0)
        with open(file) as opened:
            for row in csv.DictReader(opened):
                *problem, method = (row.get(key) or "" for key in KEYS)
                seconds = float(row["seconds"] or 0)
                first = first if first[0] == str(problem) else (str(problem), seconds)
                if seconds and first[1]:
                    ratios[*problem, method].append(seconds / first[1])
    for row, found in ratios.items():
        middle = statistics.median(found)
        print(
            *filter(None, row),
            f"{min(found):.3g} {middle:.3g} {max(found):.3g} ({len(found)} runs)",
        )


if __name__ == "__main__":
    main()
