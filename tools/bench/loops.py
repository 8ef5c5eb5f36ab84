"""Second moments through loops, an LSTM and a scanned transformer, against the plain gradient.

python -m tools.bench.loops [--rounds 9] [--small]
"""

import argparse

from tools.bench.comparison.methods import METHODS
from tools.bench.side_by_side import compile_all, median_seconds, print_table
from tools.models.families import lstm, scanned_lm
from tools.models.problem import Problem

PROBLEMS = [lstm.problem(32, 256, 128), scanned_lm.problem(8, 256, 12, 128)]
SMALL = [lstm.problem(8, 64, 16), scanned_lm.problem(8, 32, 3, 32)]


def run(problem: Problem, rounds: int) -> None:
    names, args = ("plain", "surgery", "jit(vmap)"), problem.make()
    functions = {name: METHODS[name](problem, None)[0].function for name in names}
    compiled = compile_all(functions, args)
    print_table(problem.title, compiled, median_seconds(compiled, args, rounds))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--small", action="store_true", help="a tenth of the size")
    options = parser.parse_args()
    for problem in SMALL if options.small else PROBLEMS:
        run(problem, options.rounds)


if __name__ == "__main__":
    main()
