"""What a wheel and an sdist hold: every file of the product, its types' mark, and nothing else.

python -m tools.release_contents dist/*.whl dist/*.tar.gz
"""

import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def product() -> set[str]:
    """The files of the packages, as they are installed."""
    found: set[str] = {"hlo_surgery/py.typed", "hlo_surgery/__init__.pyi"}
    for package in packages():
        within = package.removeprefix("hlo_surgery.")
        folder = ROOT / (within if within.startswith("passes") else package).replace(".", "/")
        found |= {f"{package.replace('.', '/')}/{file.name}" for file in folder.glob("*.py")}
    return found


def packages() -> list[str]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return settings["tool"]["setuptools"]["packages"]


def of_wheel(file: Path) -> set[str]:
    """The files that a wheel installs, without those that describe it."""
    names = zipfile.ZipFile(file).namelist()
    return {name for name in names if ".dist-info/" not in name}


def of_sdist(file: Path) -> set[str]:
    """The product's files in an sdist, as a wheel that is made of it installs them."""
    with tarfile.open(file) as archive:
        members = archive.getmembers()
    assert not [m.name for m in members if m.issym() or m.islnk()], "an sdist without links"
    names = {m.name.partition("/")[2] for m in members if m.isfile()}
    kept = {n for n in names if n.startswith(("hlo_surgery/", "passes/")) and "egg-info" not in n}
    return {f"hlo_surgery/{n}" if n.startswith("passes/") else n for n in kept}


def problems(wheel: Path, sdist: Path) -> list[str]:
    """What is missing from either, or too much."""
    found: list[str] = []
    for name, files in (("wheel", of_wheel(wheel)), ("sdist", of_sdist(sdist))):
        found += [f"{name} lacks {file}" for file in sorted(product() - files)]
        found += [f"{name} has {file}" for file in sorted(files - product())]
    return found


def main() -> None:
    wheel, sdist = map(Path, sys.argv[1:])
    for problem in problems(wheel, sdist):
        print(problem)
    sys.exit(bool(problems(wheel, sdist)))


if __name__ == "__main__":
    main()
