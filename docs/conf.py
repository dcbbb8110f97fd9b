"""Sphinx configuration: MyST pages, autodoc for the public lists, every warning an error."""

import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
for folder in ("_ext", "..", "../protocol", "../tools"):
    sys.path.insert(0, str((HERE / folder).resolve()))

project = "trioserve"
author = "the trioserve authors"
project_copyright = "the trioserve authors, Apache License 2.0"
release = tomllib.loads((HERE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
version = ".".join(release.split(".")[:2])

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinxcontrib_trio",
    "command_help",
    "docstring_fences",
    "registry_tables",
]
# No intersphinx: the build needs no network and gives the same pages everywhere.
exclude_patterns = ["_build", "snippets"]

myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 3

# Docstrings write code in single backquotes, as they read best in an editor.
default_role = "code"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
# Sections beyond Google's: who may keep a buffer, what a cancelled call leaves behind, what comes first.
napoleon_custom_sections = ["Ownership", "Cancellation", "Ordering"]

html_theme = "furo"
html_title = "trioserve"
