"""The notebooks run from the first cell to the last, and show what came out before they are run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples" / "notebooks").glob("*.ipynb"))


def code_cells(notebook):
    cells = json.loads(notebook.read_text())["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def test_there_are_four():
    names = {notebook.stem for notebook in NOTEBOOKS}
    assert names == {"quick_start", "noise_scale", "dp_sgd", "attribution"}


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_it_shows_what_its_cells_print_and_draw(notebook):
    cells = code_cells(notebook)
    assert [cell["execution_count"] for cell in cells] == [*range(1, len(cells) + 1)]
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} <= {"stream", "display_data"}
    assert all(output["name"] == "stdout" for output in outputs if "name" in output)
    assert any("image/png" in output.get("data", ()) for output in outputs)


@pytest.mark.slow
def test_they_run():
    """Each in a kernel of its own, as a reader opens it."""
    for package in ("nbmake", "sklearn", "optax", "matplotlib", "dp_accounting", "jax_privacy"):
        pytest.importorskip(package)
    command = [sys.executable, "-m", "pytest", "-o", "addopts=", "--nbmake", *map(str, NOTEBOOKS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert f"{len(NOTEBOOKS)} passed" in done.stdout
