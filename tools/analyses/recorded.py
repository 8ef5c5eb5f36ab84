"""Recorded cases: every module that the tests have rewritten, as the analysis meets it."""

import os
from collections.abc import Sequence
from typing import Any
from unittest import mock

import pytest

from hlo_surgery.passes.dataflow import sharding_rules
from hlo_surgery.passes.ir import mlir
from hlo_surgery.rewriting import pipeline
from tools.analyses.cases import Case


class Recorder:
    """A plugin of pytest that keeps what goes into the analysis."""

    def __init__(self) -> None:
        self.cases: dict[tuple[Any, ...], Case] = {}

    def record(self, main: Any, code: mlir.Module, request: Any) -> Any:
        """As `pipeline._analysed`, but that it keeps the module."""
        copy = mlir.clone(code)
        sharding_rules.strip(copy)
        text = mlir.to_text(copy)
        batch, contribution = dict(request.batch), request.on_mixing == "contribution"
        key = (text, tuple(batch.items()), request.gradients, contribution)
        name = os.environ.get("PYTEST_CURRENT_TEST", "").split(" ")[0]
        outputs = [*request.gradients, *request.losses]
        case = Case("tests", name, text, batch, request.size, outputs, contribution=contribution)
        self.cases.setdefault(key, case)
        return ANALYSED(main, code, request)


ANALYSED = pipeline._analysed  # pyright: ignore[reportPrivateUsage]


def recorded(arguments: Sequence[str]) -> list[Case]:
    """The modules that pytest, run with these arguments, has analysed; B = 1 needs no analysis."""
    recorder = Recorder()
    with mock.patch.object(pipeline, "_analysed", recorder.record):
        pytest.main(["-q", "-x", "--no-header", "-p", "no:cacheprovider", "-n", "0", *arguments])
    return [case for case in recorder.cases.values() if case.size > 1]
