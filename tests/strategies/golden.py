"""FileCheck, in process: a module's text is held against CHECK lines."""

import io

from filecheck.finput import FInput
from filecheck.matcher import Matcher
from filecheck.options import Options
from filecheck.parser import Parser, pattern_for_opts

from hlo_surgery.passes.ir import mlir


def assert_text(text, checks):
    """Fails, after FileCheck's own report of the line, where the text does not match the CHECK
    lines.
    """
    options = Options(match_filename="checks")
    parser = Parser(options, io.StringIO(checks), *pattern_for_opts(options))
    assert Matcher(options, FInput("module", text), parser).run() == 0


def text_of(module):
    """The module as text, without locations."""
    return str(module.operation)


def parse(text):
    return mlir.parse(text)
