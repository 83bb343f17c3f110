"""The pages as Markdown beside the HTML, and ``llms.txt``, which lists them: https://llmstxt.org.

``tutorial.html`` gets ``tutorial.md`` beside it, with the files that it includes written out. Pages of the reference
are made from docstrings, and are listed as HTML.
"""

import re
from pathlib import Path

from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

INCLUDE = re.compile(r"^```\{(literal)?include\} (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CONTENTS = re.compile(r"^```\{toctree\}\n.*?^```\n?", re.MULTILINE | re.DOTALL)
ABOUT = (
    "A Python library for requests that cannot be answered yet: park an operation under watch keys, check it on "
    "events, expire it at its deadline. Each operation completes exactly once. For threads and asyncio."
)


def written_out(source: str, folder: Path) -> str:
    """A page with the files that it includes, and without tables of contents."""

    def included(match: re.Match[str]) -> str:
        options = dict(re.findall(r'^:([\w-]+): "?(.*?)"?$', match[3], re.MULTILINE))
        lines = (folder / match[2]).read_text(encoding="utf-8").splitlines()
        for name, offset in (("start-at", 0), ("start-after", 1)):
            if name in options:
                start = next(n for n, line in enumerate(lines) if options[name] in line)
                lines = lines[start + offset :]
        if "end-before" in options:
            lines = lines[
                : next(n for n, line in enumerate(lines) if options["end-before"] in line)
            ]
        if match[1]:
            lines = [f"```{options.get('language', '')}", *lines, "```"]
        return "\n".join(lines)

    return CONTENTS.sub("", INCLUDE.sub(included, source))


def described(source: str) -> str:
    """The first sentence of a page."""
    for paragraph in re.split(r"\n\s*\n", CONTENTS.sub("", source)):
        if not paragraph.startswith(("#", "|", "```", "    ")):
            text = re.sub(r"\]\([^)]*\)|[\[*`]", "", " ".join(paragraph.split()))
            return re.split(r"(?<=\.)\s", text)[0].rstrip(":")
    return ""


def listed(env: BuildEnvironment, page: str) -> list[str]:
    """The line of a page, and those of the pages below it."""
    link = f"{page}.html" if page.startswith("reference/") else f"{page}.md"
    path = Path(env.doc2path(page))
    about = described(written_out(path.read_text(encoding="utf-8"), path.parent))
    lines = [f"- [{env.titles[page].astext()}]({link}): {about}"]
    return lines + [
        line for name in env.toctree_includes.get(page, []) for line in listed(env, name)
    ]


def write(app: Sphinx, error: Exception | None) -> None:
    """Called by Sphinx at the end of a build."""
    if error is not None or app.builder.name != "html":
        return
    env, out = app.env, Path(app.outdir)
    for page in env.found_docs:
        if not page.startswith("reference/"):
            source = Path(env.doc2path(page))
            path = out / f"{page}.md"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(
                written_out(source.read_text(encoding="utf-8"), source.parent), encoding="utf-8"
            )
    lines = [f"# {app.config.project}", "", f"> {ABOUT}"]
    for contents in env.get_doctree(app.config.root_doc).findall(addnodes.toctree):
        lines += ["", f"## {contents['caption']}", ""]
        lines += [line for name in contents["includefiles"] for line in listed(env, name)]
    (out / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("build-finished", write)
    return {"parallel_read_safe": True}
