"""Files are written whole, through links, with the mode they had, and nothing else is left."""

import os
import stat
from pathlib import Path

import pytest

from hlo_surgery import dumps as whole_files
from hlo_surgery.dumps import write_atomically


@pytest.fixture(params=["nameless", "named"])
def way(request, monkeypatch):
    """With files without a name, and where the system has none."""
    if request.param == "named":
        monkeypatch.setattr(whole_files, "_nameless", lambda folder: None)
    elif whole_files._nameless(Path("/tmp")) is None:
        pytest.skip("this system has no files without a name")


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


def test_nothing_is_left_of_what_is_cut_short(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"old")

    def killed(*_):
        raise SystemExit

    monkeypatch.setattr(os, "fchmod", killed)
    with pytest.raises(SystemExit):
        write_atomically(tmp_path / "file", b"new")
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


@pytest.mark.usefixtures("way")
def test_a_file_that_cannot_be_written_is_named_as_it_was_asked_for():
    if not Path("/proc/self").is_dir():
        pytest.skip("this system has no folder that takes no files")
    with pytest.raises(
        FileNotFoundError, match=r"cannot write /proc/o\.mlir: No such file"
    ) as said:
        write_atomically(Path("/proc/o.mlir"), b"module")
    assert str(said.value).count("o.mlir") == 1
