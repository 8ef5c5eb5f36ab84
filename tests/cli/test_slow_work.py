"""Work that takes long is told of on a terminal, once it does, and nowhere else."""

import io
import sys
import time

import jax.numpy as jnp
import pytest

import hlo_surgery as hs
from hlo_surgery.rewriting import diagnostics


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def listen(monkeypatch):
    """What makes stderr a terminal, from within the test: pytest captures it from there on."""
    monkeypatch.setattr(diagnostics, "PATIENCE", 0.01)

    def listening():
        shown = Terminal()
        monkeypatch.setattr(sys, "stderr", shown)
        return shown

    return listening


def test_it_is_told_of_once_it_takes_long(listen):
    terminal = listen()
    with diagnostics.told_if_slow("rewriting"):
        time.sleep(0.3)
    assert terminal.getvalue() == "hlo-surgery: rewriting ...\n"


def test_what_is_quick_is_not_told_of(listen, monkeypatch):
    terminal = listen()
    monkeypatch.setattr(diagnostics, "PATIENCE", 60)
    with diagnostics.told_if_slow("rewriting"):
        pass
    assert not terminal.getvalue()


def test_nothing_is_told_where_no_one_reads(capfd, monkeypatch):
    monkeypatch.setattr(diagnostics, "PATIENCE", 0.01)
    with diagnostics.told_if_slow("rewriting"):
        time.sleep(0.1)
    assert not capfd.readouterr().err


def test_a_first_call_rewrites_and_compiles_and_a_second_does_neither(listen, monkeypatch):
    listen()
    told = []
    monkeypatch.setattr(
        diagnostics.threading, "Timer", lambda *args: told.append(args[2]) or Idle()
    )
    f = hs.grad(lambda w, x: jnp.mean((x @ w) ** 2), statistics=hs.norms())
    for _ in range(2):
        f(jnp.ones(3), jnp.eye(4, 3))
    assert [words.split()[1] for (words,) in told] == ["rewriting", "compiling"]


class Idle:
    daemon = False

    def start(self):
        pass

    cancel = start
