"""Sphinx: pages in Markdown, the reference from docstrings, nothing fetched from anywhere while building."""

import os
import sys
from importlib.metadata import version as installed
from pathlib import Path

from sphinx.ext.napoleon.docstring import GoogleDocstring

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

# The reference is made from the pure Python implementation, which has the types. The native one has the same parameters
# and docstrings (tests/unit/test_implementations.py). PURGATORY_PURE=0 makes the reference from that one.
os.environ.setdefault("PURGATORY_PURE", "1")

project = "purgatory"
author = "The purgatory maintainers"
copyright = "the purgatory maintainers. Apache-2.0, without warranty"
release = version = installed("delayed-operation-purgatory")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
extensions += ["public_names", "guarantees", "markdown_pages"]  # of docs/_extensions
# Pages of sources are half of all pages. The tests build without them (`-t no_sources`).
if not tags.has("no_sources"):  # noqa: F821  # Sphinx defines it
    extensions.append("sphinx.ext.viewcode")
# Links to the standard library need its inventory from the network. A build that has none goes without.
if os.environ.get("DOCS_INTERSPHINX") == "1":
    extensions.append("sphinx.ext.intersphinx")
    intersphinx_mapping = {"python": ("https://docs.python.org/3", None)}
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

#: One class of the pipeline is in the reference. It is described without Spark.
autodoc_mock_imports = ["numpy", "pandas", "pyarrow", "pyspark"]
autodoc_member_order = "groupwise"
autodoc_typehints_format = "short"
maximum_signature_line_length = 100
autodoc_default_options = {
    "members": True,
    "show-inheritance": True,
    "inherited-members": "BaseException, Exception, dict, ABC, Enum, Generic, Protocol, ThreadPoolExecutor, Thread",
}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # attributes of a value are listed once, in its class

# Types are all annotations here: a colon in a sentence of a docstring sets off none.
GoogleDocstring._consume_inline_attribute = lambda self: (
    "",
    self._dedent(self._consume_to_end()),
)
GoogleDocstring._consume_returns_section = lambda self, _=False: [
    ("", "", self._dedent(self._consume_to_next_section()))
]

html_theme = "furo"
html_title = "purgatory"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_logo = html_favicon = "_static/logo.svg"
#: The colours of the console's page, which have enough contrast on both backgrounds.
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#b03f10", "color-brand-content": "#b03f10"},
    "dark_css_variables": {"color-brand-primary": "#ff9a69", "color-brand-content": "#ff9a69"},
}
#: A block with a prompt has output, too: its button copies the commands alone.
copybutton_prompt_text = "$ "
