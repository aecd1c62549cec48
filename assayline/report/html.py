"""Render a report as HTML with style, charts and scripts: one file, or one that shares the library of charts.

The page's content security policy forbids requests, and scripts other than the two written here (by digest or nonce),
so that text of a prompt or an answer cannot execute even if escaping failed.
"""

import base64
import gzip
import hashlib
import json
import os
import re
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import vl_convert
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from assayline.files import replace_file
from assayline.report.charts import VEGA_LITE
from assayline.report.document import Chart, Document

PAGE_FOLDER = Path(__file__).parent / "page"
_SHOW = "window.vegaEmbed = vegaEmbed;"
PICTURE_PIXELS = 720
"""Width of a chart, without its axis, on a page that runs no script."""


def render_html(document: Document, cache_folder: Path, folder: Path | None = None) -> str:
    """Render the page. The library of charts is bundled once per version and cached in `cache_folder`.

    A page in `folder` loads it from there. Without a folder, or if the cache cannot be written, the page has it,
    compressed, and its script unpacks it: 0.4 MB, not 0.9.
    """
    values: dict[str, Any] = dict.fromkeys(("library", "library_url", "nonce"))
    scripts, allowed = [], []
    if list_charts(document):
        library = bundle_charts(cache_folder)
        scripts = [read_page("page.js")]
        allowed = [_digest_script(scripts[0])]
        if folder and (kept := name_library(cache_folder)).exists():
            values["library_url"] = Path(os.path.relpath(kept, folder)).as_posix()
            values["nonce"] = hashlib.sha256(repr(document).encode("utf-8", "replace")).hexdigest()[:32]
            allowed.append(f"nonce-{values['nonce']}")  # texts of the document cannot contain its digest
        else:
            values["library"] = base64.b64encode(gzip.compress(library.encode(), mtime=0)).decode()
            allowed.append(_digest_script(library))
    template = make_environment().get_template("page.html")
    return fill_page(template, document, style=read_page("page.css"), scripts=scripts, allowed=allowed, **values)


def fill_page(template: Template, document: Document, **values: Any) -> str:
    """Render `page.html`, or a template that extends it and takes more `values`."""
    charts = list_charts(document)
    return template.render(
        document=document,
        charts=charts,
        index_of=lambda chart: next(index for index, other in enumerate(charts) if other is chart),
        zip=zip,
        kind_of=lambda block: type(block).__name__.lower(),
        theme=json.loads(read_page("theme.json")),
        **values,
    )


def list_charts(document: Document) -> list[Chart]:
    """Return the charts of all sections, in order."""
    return [block for section in document.sections for block in section.blocks if isinstance(block, Chart)]


@cache
def make_environment(*folders: Path) -> Environment:
    """Return the environment of the templates in `folders` and of the report's own."""
    environment = Environment(
        loader=FileSystemLoader([*folders, PAGE_FOLDER]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"for_script": _write_json, "show_cell": str, "prose": _mark_code}
    return environment


def _mark_code(text: str) -> Markup:
    """Escape a sentence, and turn its parts in backticks, such as commands, into code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _write_json(value: Any) -> str:
    """Serialize to JSON that cannot close a script element: HTML's special characters become JSON escapes."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def name_library(folder: Path) -> Path:
    """Return the file of the charts' library in the cache."""
    return folder / f"charts-{VEGA_LITE}-{version('vl-convert-python')}.js"


def bundle_charts(folder: Path) -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script, bundled once per version (1 to 2 s)."""
    kept = name_library(folder)
    try:
        return kept.read_text(encoding="utf-8")
    except (OSError, ValueError):
        pass
    script = vl_convert.javascript_bundle(_SHOW, VEGA_LITE).replace("</script", "<\\/script")
    script = f"(() => {{{script}}})();"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(kept, lambda file: file.write(script.encode()))
    except OSError:
        pass  # bundled again next time
    return script


def draw_picture(chart: Chart) -> str:
    """Draw a chart in light colours as a data: URI, for pages that run no script."""
    spec = {**chart.spec, "width": PICTURE_PIXELS // 2 if chart.is_small else PICTURE_PIXELS}
    svg = vl_convert.vegalite_to_svg(spec, VEGA_LITE, config=_read_light_theme(), allowed_base_urls=[])
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


def write_chart(chart: Chart) -> bytes:
    """Return a chart in light colours as a Vega-Lite specification that any tool can draw."""
    return json.dumps({**chart.spec, "width": PICTURE_PIXELS, "config": _read_light_theme()}, indent=1).encode()


@cache
def _read_light_theme() -> dict[str, Any]:
    light = dict(re.findall(r"(--\w+): (#\w+)", read_page("page.css").partition("}")[0]))
    theme: dict[str, Any] = json.loads(re.sub(r"var\((--\w+)\)", lambda name: light[name[1]], read_page("theme.json")))
    return {**theme, "background": light["--card"], "padding": 12, "font": "system-ui, sans-serif"}


def _digest_script(script: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


@cache
def read_page(name: str) -> str:
    """Return a file of the page: its style, script or theme."""
    return (PAGE_FOLDER / name).read_text(encoding="utf-8").strip()
