"""The examples in docstrings of passes/, which pytest itself would import under other names."""

import doctest
import importlib
import pkgutil

import pytest

from hlo_surgery import passes

NAMES = [module.name for module in pkgutil.walk_packages(passes.__path__, "hlo_surgery.passes.")]


@pytest.mark.parametrize("name", NAMES)
def test_examples_in_docstrings(name):
    module = importlib.import_module(name)
    assert doctest.testmod(module).failed == 0


def test_there_are_examples():
    finder = doctest.DocTestFinder(exclude_empty=True)
    examples = [
        test
        for name in NAMES
        for test in finder.find(importlib.import_module(name))
        if test.examples
    ]
    assert examples
