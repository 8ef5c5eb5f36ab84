"""The documents name files, tests, functions, types and ops: each of them exists.

Of a code span `...` outside of code blocks, what is checked depends on what it looks like:

    passes/ir/mlir.py, tests/loops/test_parts.py::test_x                  a path, a test in it
    traits.is_linear, Axes.at                                          a name in a file or class
    jax.vmap, stablehlo.while                                             a name of JAX, an op
    GradientSlice                                                         a class, or another type
"""

import ast
import doctest
import functools
import importlib
import inspect
import re
from pathlib import Path

import hlo_surgery as hs
import hlo_surgery.attribution as ha
import hlo_surgery.optimizers as ho
from hlo_surgery import estimators
from hlo_surgery.passes.ir import mlir

ROOT = Path(__file__).resolve().parent.parent
DOCS = sorted((ROOT / "docs").rglob("*.md"))
CODE = ("passes", "hlo_surgery", "tests", "tools", "examples")
MODULES = {
    "jnp": "jax.numpy",
    "np": "numpy",
    "hs": "hlo_surgery",
    "ha": "hlo_surgery.attribution",
    "ho": "hlo_surgery.optimizers",
    "hlo_surgery": "hlo_surgery",
    "estimators": "hlo_surgery.estimators",
    "optax": "optax",
    "jax": "jax",
    "lax": "jax.lax",
    "eqx": "equinox",
    "nnx": "flax.nnx",
}
# Not installed everywhere: of these no name is looked up.
OPTIONAL = {"torch", "nn"}
DIALECTS = ("stablehlo", "sdy", "func", "chlo")
# Written in capitals, and no names of ours.
WORDS = {"None", "True", "False", "Shardy", "NaN", "ValueError", "TypeError"}

PATH = re.compile(r"[\w.-]*/[\w./-]*|[\w-]+\.(?:py|md|toml|mlir)")
DOTTED = re.compile(r"([A-Za-z_]\w*)((?:\.[A-Za-z_]\w*)+)(?:\(.*\))?")
TYPE = re.compile(r"[A-Z][a-z]\w*")


def spans(text):
    """The code spans of a document, without its code blocks."""
    prose = re.sub(r"^( *)```.*?^\1```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose)]


@functools.cache
def files():
    """The Python files of the project, by name; the compiler's under its own folder alone."""
    found = {}
    for path in (p for folder in CODE for p in (ROOT / folder).rglob("*.py")):
        if "hlo_surgery/passes/" not in path.relative_to(ROOT).as_posix():
            found.setdefault(path.stem, []).append(path)
    return found


@functools.cache
def defined(path):
    """What a file defines, by name, each with what that defines: the members of a class."""
    return members(ast.parse(path.read_text()))


def members(node):
    found = {}
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            found[statement.name] = members(statement)
        for name in assigned(statement):
            found[name] = {}
    return found


def assigned(statement):
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    if isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    return [
        node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)
    ]


@functools.cache
def top_level():
    """What each file defines, one after the other."""
    return [defined(path) for named in files().values() for path in named]


def is_defined(names, known):
    for name in names:
        if name not in known:
            return False
        known = known[name]
    return True


def is_defined_anywhere(names):
    return any(is_defined(names, known) for known in top_level())


def has_path(span):
    file, *tests = span.split("::")
    path = ROOT / file
    return path.exists() and all(is_defined([test], defined(path)) for test in tests)


def has_attributes(module, names):
    found = importlib.import_module(module)
    for name in names:
        found = getattr(found, name, None)
    return found is not None


def has_name(first, names):
    """A name in a module of JAX, an op of a dialect, in a file of ours, or in a class."""
    if first in OPTIONAL or names[0] in OPTIONAL:
        return True
    if first in MODULES:
        return has_attributes(MODULES[first], names)
    if first in DIALECTS:
        return mlir.context().is_registered_operation(".".join([first, *names]))
    in_files = any(is_defined(names, defined(path)) for path in files().get(first, []))
    return in_files or is_defined_anywhere([first, *names])


def exists(span):
    """Whether what a span names is there; a span that names nothing is not looked for."""
    if PATH.fullmatch(span.split("::")[0]):
        return has_path(span)
    if dotted := DOTTED.fullmatch(span):
        return has_name(dotted[1], dotted[2].split(".")[1:])
    if TYPE.fullmatch(span):
        return span in WORDS or is_defined_anywhere([span])
    return True


def missing(text):
    return [span for span in spans(text) if not exists(span)]


PUBLIC = [
    (module, name)
    for module in (hs, ha, ho, estimators)
    for name, found in vars(module).items()
    if name in getattr(module, "__all__", ())
    or (inspect.isfunction(found) and found.__module__ == module.__name__ and name[0] != "_")
]


def test_every_public_name_has_an_example():
    """In its docstring, which runs as a doctest."""
    texts = {pair: inspect.getdoc(getattr(*pair)) or "" for pair in PUBLIC}
    examples = doctest.DocTestParser().get_examples
    assert [pair for pair, text in texts.items() if not examples(text)] == []


def test_what_is_named_exists():
    found = {path.name: missing(path.read_text()) for path in DOCS}
    assert {name: names for name, names in found.items() if names} == {}


def links(path):
    return re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text())


def test_every_page_is_in_the_table_of_contents():
    """The site's; the builder of the site says so too, where it is installed."""
    contents = (ROOT / "docs" / "index.md").read_text()
    pages = [path.relative_to(ROOT / "docs").with_suffix("").as_posix() for path in DOCS]
    assert [page for page in pages if page != "index" and f"\n{page}\n" not in contents] == []


def test_links_lead_somewhere():
    paths = [*DOCS, *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))]
    named = [(path.name, path.parent / link) for path in paths for link in links(path)]
    assert [(name, link) for name, link in named if not link.exists()] == []
