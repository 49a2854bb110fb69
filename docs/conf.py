"""Configuration of the site: `make docs`. Pages are Markdown; nothing is loaded from the network."""

from __future__ import annotations

import os
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

import phiball
from phiball.verification.report.math import formula

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))
from docstrings import attribute_docs, to_rst  # noqa: E402

SITE_NAMESPACES = ("backends", "verification", *phiball._NAMESPACES)

project = "phiball"
author = copyright = "The phiball developers"  # noqa: A001
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx_design"]
extensions += ["sphinx_gallery.gen_gallery"]
exclude_patterns = ["gallery", "**sg_execution_times.rst"]
default_role = "py:obj"
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 4
autosummary_generate = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_type_aliases = {"Array": "Array", "Loss": "Loss", "Gradient": "Gradient"}
html_theme = "pydata_sphinx_theme"
html_title = "phiball"
html_static_path = ["_static"]
html_css_files = ["math.css", "site.css"]
CLAIMS = DOCS.parent / "results/verify/claims.html"  # written by `phiball verify`
html_math_renderer = "mathml"
html_show_sourcelink = False
html_theme_options = {
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "show_prev_next": False,
    "secondary_sidebar_items": ["page-toc"],
    "header_links_before_dropdown": 8,
}
html_sidebars = {"get_started": [], "contribute": [], "changelog": []}
sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "auto_gallery",
    "filename_pattern": os.environ.get("PHIBALL_GALLERY", r"\.py$"),  # the scripts to run
    "ignore_pattern": r"__init__",
    "first_notebook_cell": "%pip install -q 'phiball[torch,jax,sklearn,experiments]'",
    "download_all_examples": False,
    "remove_config_comments": True,
    "show_memory": False,
    "min_reported_time": 1e9,
    "within_subsection_order": "FileNameSortKey",
    "image_scrapers": ("matplotlib",),
    "capture_repr": (),
}

# Methods that scikit-learn adds to estimators.
ROUTING = ", ".join(f"set_{method}_request" for method in ("fit", "partial_fit", "predict", "score"))
INCLUDE = re.compile(r"```\{include\} (\S+)\n```\s*")
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
# Files of the repository that are pages of the site.
INCLUDED = {
    (page.parent / match[1]).resolve(): page
    for page in DOCS.rglob("*.md")
    if (match := INCLUDE.fullmatch(page.read_text(encoding="utf-8")))
}


def read_page(app: Sphinx, docname: str, source: list[str]) -> None:
    """Read the file that a page includes, and make links between files links between pages."""
    page = DOCS / f"{docname}.md"
    if not page.exists():
        return
    file = next((file for file, included in INCLUDED.items() if included == page), page)

    def relative(match: re.Match[str]) -> str:
        picture, text, link = match.groups()
        target, mark, section = link.partition("#")
        path = (file.parent / target).resolve()
        if not target or re.match(r"\w+:", link) or "{" in link:
            return match[0]
        if path.is_dir() or (path.suffix == ".md" and path not in INCLUDED and DOCS not in path.parents):
            return text  # the site has no page of it
        return f"{picture}[{text}]({os.path.relpath(INCLUDED.get(path, path), page.parent)}{mark}{section})"

    text = file.read_text(encoding="utf-8").replace("```math", "```{math}")
    source[0] = LINK.sub(relative, text)


def write_api_pages(app: Sphinx) -> None:
    """Write a page for phiball and for each namespace: a table of the public names, then their docstrings."""
    top = set(phiball.__all__)
    (DOCS / "api").mkdir(exist_ok=True)
    for name in ("phiball", *(f"phiball.{namespace}" for namespace in SITE_NAMESPACES)):
        names = sorted(import_module(name).__all__, key=str.lower)
        own = [public for public in names if name == "phiball" or public not in top]
        lines = [name, "=" * len(name), "", f".. automodule:: {name}", "", f".. currentmodule:: {name}", ""]
        lines += [".. autosummary::", "   :nosignatures:", "", *(f"   {public}" for public in own), ""]
        if len(own) < len(names):
            also = ", ".join(f"`phiball.{public}`" for public in names if public not in own)
            lines += [f"Also in this namespace: {also}.", ""]
        for public in own:
            value = getattr(import_module(name), public)
            kind = "class" if isinstance(value, type) else "function" if callable(value) else "data"
            kind = "data" if type(value).__module__.startswith("phiball") else kind
            option = {
                "class": ["   :members:", f"   :exclude-members: {ROUTING}"],
                "data": ["   :no-value:"],
            }.get(kind, [])
            lines += [f".. auto{kind}:: {public}", *option, ""]
        page, text = DOCS / "api" / f"{name}.rst", "\n".join(lines)
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")


def process_docstring(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Convert a docstring from Markdown to reStructuredText."""
    if what == "data":
        lines[:] = attribute_docs(name.rpartition(".")[2])
    lines[:] = to_rst(lines)


def claim_role(name: str, rawtext: str, text: str, lineno: int, inliner: Any, *_: Any) -> Any:
    """Link to a claim on the page of results."""
    up = "../" * inliner.document.settings.env.docname.count("/")
    return [nodes.reference("", text, refuri=f"{up}claims.html#claim-{text}")], []


def visit_math(translator: Any, node: Any) -> None:
    """Write a formula as MathML."""
    inline = isinstance(node, nodes.math)
    shown = formula(node.astext())
    shown = shown.replace(' displaystyle="true"', "") if inline else f'<div class="formula">{shown}</div>'
    translator.body.append(shown)
    raise nodes.SkipNode


def copy_claims(app: Sphinx, exception: Exception | None) -> None:
    """Copy the page of claims, without its links to source files, and with a link back to the site."""
    if exception is None and CLAIMS.exists():
        text = re.sub(
            r'<a [^>]*href="\.\./[^>]*>(.*?)</a>', r"\1", CLAIMS.read_text(encoding="utf-8"), flags=re.S
        )
        text = text.replace("</head>", '<link rel="stylesheet" href="_static/math.css">\n</head>', 1)
        text = text.replace("<header>", '<header><p><a href="index.html">phiball</a></p>', 1)
        Path(app.outdir, "claims.html").write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Register the converters."""
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math, None))
    app.add_role("claim", claim_role)
    app.connect("builder-inited", write_api_pages)
    app.connect("source-read", read_page)
    app.connect("build-finished", copy_claims)
    app.connect("autodoc-process-docstring", process_docstring)
