"""The site: `sphinx-build -W docs build/site`, with what the extra `docs` installs.

Sphinx with MyST, and not MkDocs: the last release of MkDocs 1 is of 2024, its second version takes
no plugins, Material for MkDocs takes no more than fixes, and its successor is at 0.1. The pages are
plain Markdown all the same, and read well where no site is built.
"""

import hlo_surgery

project = "hlo-surgery"
version = release = hlo_surgery.__version__
project_copyright = "the authors of hlo-surgery"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
html_theme = "furo"
html_title = f"hlo-surgery {release}"
html_show_sourcelink = False
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_theme_options = {"navigation_with_keys": True}

# Links to headings are checked as links to pages are.
myst_heading_anchors = 3
# Docstrings name code as Markdown does.
default_role = "code"
autodoc_member_order = "bysource"
# Types are said in words, where there are shapes as well; one parameter a line.
autodoc_typehints = "none"
maximum_signature_line_length = 70
