"""Sphinx: pages in Markdown, the reference from docstrings, nothing fetched from anywhere while building."""

from importlib.metadata import version as installed

project = "purgatory"
author = "The purgatory maintainers"
release = version = installed("delayed-operation-purgatory")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
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

html_theme = "furo"
html_title = "purgatory"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["wide.css"]
