"""Files are written whole, through links, with the mode they had, and nothing else is left."""

import os
import stat
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from hlo_surgery import dumps as whole_files
from hlo_surgery.cli.commands import main
from hlo_surgery.dumps import write_atomically

MODULE = Path(__file__).resolve().parent.parent.parent / "fixtures" / "mlp_biases" / "module.mlir"
WAYS = {
    "rewrite": ("--pass", "fold_squared_sums", "-o"),
    "run": ("-o",),
    "compile": ("--target", "cpu", "-o"),
}


@pytest.fixture(params=["nameless", "named"])
def way(request, monkeypatch):
    """With files without a name, and where the system has none."""
    if request.param == "named":
        monkeypatch.setattr(whole_files, "_nameless", lambda folder: None)
    elif whole_files._nameless(Path("/tmp")) is None:
        pytest.skip("this system has no files without a name")


@pytest.mark.usefixtures("way")
def test_a_new_file_has_the_mode_of_any_other(tmp_path):
    write_atomically(tmp_path / "new", b"one")
    (tmp_path / "other").write_bytes(b"")
    assert (tmp_path / "new").read_bytes() == b"one"
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "other").stat().st_mode


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755])
def test_a_file_keeps_its_mode_and_a_link_its_target(mode, tmp_path):
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "real").chmod(mode)
    (tmp_path / "link").symlink_to("real")
    write_atomically(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"
    assert stat.S_IMODE((tmp_path / "real").stat().st_mode) == mode
    assert sorted(os.listdir(tmp_path)) == ["link", "real"]


@pytest.mark.usefixtures("way")
def test_a_link_to_nothing_makes_its_target(tmp_path):
    (tmp_path / "link").symlink_to("real")
    write_atomically(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"


def test_nothing_is_left_of_what_is_cut_short(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"old")

    def killed(*_):
        raise SystemExit

    monkeypatch.setattr(os, "fchmod", killed)
    with pytest.raises(SystemExit):
        write_atomically(tmp_path / "file", b"new")
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


@pytest.mark.parametrize("command", WAYS)
def test_commands_write_through_links(command, tmp_path):
    (tmp_path / "link.mlir").symlink_to("real.mlir")
    result = CliRunner().invoke(
        main, [command, str(MODULE), *WAYS[command], str(tmp_path / "link.mlir")]
    )
    assert result.exit_code == 0, result.output
    assert (tmp_path / "link.mlir").is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["link.mlir", "real.mlir"]


def test_a_link_to_stdout_is_stdout(tmp_path):
    link = tmp_path / "out"
    link.symlink_to("/proc/self/fd/1")
    done = CliRunner().invoke(main, ["rewrite", str(MODULE), *WAYS["rewrite"], str(link)])
    assert done.exit_code == 0, done.output
    assert "func.func public @main" in done.stdout
    assert link.is_symlink()
    refused = CliRunner().invoke(main, ["run", str(MODULE), "-o", str(link)])
    assert (refused.exit_code, "does not go to stdout" in refused.stderr) == (2, True)


def test_an_archive_is_written_through_a_link(tmp_path):
    (tmp_path / "link.npz").symlink_to("real.npz")
    CliRunner().invoke(main, ["run", str(MODULE), "-o", str(tmp_path / "link.npz")])
    assert len(np.load(tmp_path / "real.npz").files) == 4


@pytest.mark.usefixtures("way")
def test_a_file_that_cannot_be_written_is_named_as_it_was_asked_for():
    if not Path("/proc/self").is_dir():
        pytest.skip("this system has no folder that takes no files")
    with pytest.raises(
        FileNotFoundError, match=r"cannot write /proc/o\.mlir: No such file"
    ) as said:
        write_atomically(Path("/proc/o.mlir"), b"module")
    assert str(said.value).count("o.mlir") == 1
