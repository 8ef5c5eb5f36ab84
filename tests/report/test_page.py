"""The page of hlo-surgery report, in a browser: it reads well, loads nothing and runs nothing."""

import json
import re

import jax
import jax.numpy as jnp
import pytest
from typer.testing import CliRunner

from hlo_surgery.cli.commands import main
from tests.report.browser import browsing, in_browser

HOSTILE = "<script>window.ran = 1</script><img src=x onerror='window.ran = 1'>\"'&"
X, W = jnp.sin(jnp.arange(24.0)).reshape(8, 3), jnp.cos(jnp.arange(9.0)).reshape(3, 3)


def separable(w, x):
    """Two layers, so that there are many rows."""

    def loss(w):
        hidden = x
        for layer in w.values():
            hidden = jnp.tanh(hidden @ layer["kernel"] + layer["bias"])
        return jnp.mean(hidden)

    return jax.grad(loss)(w)


def half_refused(w, x):
    """Of the second parameter alone examples meet on the way to the gradient."""
    own = jax.grad(lambda a: jnp.mean(jnp.tanh(x @ a)))(w["own"])
    mixed = jax.grad(lambda b: jnp.mean((x @ b - jnp.mean(x @ b, 0)) ** 3))(w["mixed"])
    return {"own": own, "mixed": mixed}


MODULES = {
    "separable": (separable, {f"layer{i}": {"kernel": W, "bias": W[0]} for i in range(2)}),
    "hostile": (separable, {HOSTILE: {"kernel": W, "bias": W[0]}}),
    "refused": (half_refused, {"own": W, "mixed": W}),
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A page of each module, written by the command; with its exit code."""
    folder = tmp_path_factory.mktemp("pages")
    written = {}
    for name, (function, w) in MODULES.items():
        module, out = folder / f"{name}.mlir", folder / f"{name}.html"
        module.write_text(jax.jit(function).lower(w, X).as_text(debug_info=True))
        asked = ["--batch", "x", "--statistic", "second_moment", "--statistic", "norms"]
        run = CliRunner().invoke(main, ["report", str(module), *asked, "-o", str(out)])
        written[name] = out, run.exit_code
    return written


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with browsing(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def test_exit_codes(pages):
    assert {name: code for name, (_, code) in pages.items()} == {
        "separable": 0,
        "hostile": 0,
        "refused": 1,
    }


@pytest.mark.parametrize("name", MODULES)
def test_a_page_names_nothing_to_load(pages, name):
    text = pages[name][0].read_text()
    assert not re.search(r"\b(src|href|action|xlink:href)=|@import|url\(", strip_text(text))


def strip_text(html):
    """The page's tags and style, without what is written between tags."""
    return "".join(re.findall(r"<style>.*?</style>|<[^>]*>", html, re.DOTALL))


def test_names_are_escaped(pages):
    text = pages["hostile"][0].read_text()
    assert "<script" not in text
    assert "<img" not in text
    assert "&lt;script&gt;" in text


@in_browser
@pytest.mark.parametrize("name", MODULES)
def test_a_browser_loads_and_runs_nothing(pages, browser, name):
    browser.open(pages[name][0])
    assert browser.requested == [pages[name][0].as_uri()]
    assert browser.value("typeof window.ran") == "undefined"
    assert browser.value("document.scripts.length + document.images.length") == 0


# What of a picture's boxes covers another, and which words stick out of theirs.
OVERLAPPING = """
(() => {
  const boxes = [...document.querySelectorAll('g.box')].map((box) => ({
    words: box.querySelector('text').textContent,
    area: box.querySelector('rect').getBoundingClientRect(),
    texts: [...box.querySelectorAll('text')].map((text) => text.getBoundingClientRect()),
  }));
  const wrong = [];
  for (const one of boxes) {
    for (const text of one.texts)
      if (text.right > one.area.right || text.bottom > one.area.bottom) wrong.push(one.words);
    for (const other of boxes)
      if (one !== other && one.area.left < other.area.right && other.area.left < one.area.right
          && one.area.top < other.area.bottom && other.area.top < one.area.bottom)
        wrong.push([one.words, other.words]);
  }
  return {wrong, count: boxes.length};
})()
"""


@in_browser
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [700, 1400])
@pytest.mark.parametrize("name", MODULES)
def test_nothing_overlaps_or_sticks_out(pages, browser, name, width, dark):
    browser.open(pages[name][0], width, dark)
    found = browser.value(OVERLAPPING)
    assert found["wrong"] == []
    assert found["count"] > 4
    assert browser.value("document.documentElement.scrollWidth - innerWidth") <= 0


# The relative luminance of text and of what is behind it, by WCAG 2.2, as their ratio.
CONTRASTS = """
(() => {
  const light = (colour) => {
    const parts = colour.match(/[\\d.]+/g).slice(0, 3).map((n) => n / 255);
    const [r, g, b] = parts.map((n) => n <= 0.04045 ? n / 12.92 : ((n + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ratio = (one, other) => {
    const [a, b] = [light(one), light(other)].sort((a, b) => b - a);
    return (a + 0.05) / (b + 0.05);
  };
  const page = getComputedStyle(document.body);
  const boxes = [...document.querySelectorAll('g.box text')].map((text) => ratio(
    getComputedStyle(text).fill, getComputedStyle(text.parentNode.querySelector('rect')).fill));
  return Math.min(ratio(page.color, page.backgroundColor), ...boxes);
})()
"""


@in_browser
@pytest.mark.parametrize("name", MODULES)
def test_pictures_fit_a_narrow_window(pages, browser, name):
    """At this width the graph is nearly as small as it may be read; below, it scrolls."""
    browser.open(pages[name][0], 1000)
    hidden = "[...document.querySelectorAll('.wide')].map((e) => e.scrollWidth - e.clientWidth)"
    assert max(browser.value(hidden)) <= 0
    assert browser.value("document.querySelector('.wide svg').getBoundingClientRect().width") > 900


@in_browser
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", ["separable", "refused"])
def test_words_are_legible(pages, browser, name, dark):
    """4.5 is what WCAG asks of text of this size."""
    browser.open(pages[name][0], dark=dark)
    assert browser.value(CONTRASTS) >= 4.5


def words(browser, kind):
    """The titles of the boxes of a kind."""
    return browser.value(
        f"[...document.querySelectorAll('g.{kind} text.title')].map((text) => text.textContent)"
    )


@in_browser
def test_contractions_tails_gradients_and_statistics_are_shown(pages, browser):
    """Gradients of the two layers are alike, and shown once."""
    browser.open(pages["separable"][0])
    kinds = {kind: len(words(browser, kind)) for kind in ("site", "tail", "gradient")}
    assert kinds == {"site": 2, "tail": 2, "gradient": 2}
    assert "norms of all gradients" in words(browser, "statistic")
    assert browser.value("document.querySelectorAll('path.stairs').length") == 2


@in_browser
def test_a_refusal_stands_beside_its_line_and_the_other_gradient_is_planned(pages, browser):
    browser.open(pages["refused"][0])
    (refusal,) = words(browser, "refusal")
    assert refusal == "refused: ['mixed']"
    (line,) = words(browser, "refused")
    assert re.fullmatch(r".*test_page\.py:\d+", line)
    assert words(browser, "gradient") == ["['own']"]


@in_browser
def test_curves_of_what_is_pointed_at_stand_out(pages, browser):
    browser.open(pages["separable"][0])
    place = browser.value(
        "(() => { const box = document.querySelector('g.site'); box.scrollIntoView();"
        " const area = box.getBoundingClientRect();"
        " return {name: box.id, x: area.x + 20, y: area.y + 20}; })()"
    )
    width = f"getComputedStyle(document.querySelector('path.{place['name']}')).strokeWidth"
    assert browser.value(width) != "3px"
    browser.point_at(place["x"], place["y"])
    assert browser.value(width) == "3px"


def test_json_says_what_is_refused(pages, tmp_path):
    module = pages["refused"][0].with_suffix(".mlir")
    asked = ["--batch", "x", "-o", str(tmp_path / "page.html"), "--json"]
    run = CliRunner().invoke(main, ["report", str(module), *asked])
    assert run.exit_code == 1
    assert list(json.loads(run.stdout)["refused"]) == ["['mixed']"]


def test_a_page_does_not_go_to_stdout(pages):
    module = pages["separable"][0].with_suffix(".mlir")
    run = CliRunner().invoke(main, ["report", str(module), "--batch", "x", "-o", "-"])
    assert run.exit_code == 2
    assert "name a file" in run.stderr


def test_a_page_does_not_replace_its_module(pages, tmp_path):
    module, link = pages["separable"][0].with_suffix(".mlir"), tmp_path / "page.html"
    link.symlink_to(module)
    before = module.read_bytes()
    for out in (module, link):
        run = CliRunner().invoke(main, ["report", str(module), "--batch", "x", "-o", str(out)])
        assert run.exit_code == 2
        assert "name another output" in run.stderr
    assert module.read_bytes() == before


def test_file_names_that_are_no_text(pages, tmp_path):
    module, out = (tmp_path / f"\udcff.{suffix}" for suffix in ("mlir", "html"))
    module.write_bytes(pages["separable"][0].with_suffix(".mlir").read_bytes())
    run = CliRunner().invoke(main, ["report", str(module), "--batch", "x", "-o", str(out)])
    assert run.exit_code == 0
    assert r"<h1>\udcff.mlir</h1>" in out.read_text()
    assert r"\udcff.html" in run.stdout
