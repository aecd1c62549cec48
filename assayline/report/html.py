"""Render a report as one self-contained HTML file with style, charts and scripts.

The page's content security policy forbids requests, and scripts other than the two written here (by digest), so that
text of a prompt or an answer cannot execute even if escaping failed.
"""

import base64
import gzip
import hashlib
import json
import re
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import vl_convert
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from assayline.files import replace_file
from assayline.report.charts import VEGA_LITE
from assayline.report.document import Chart, Document

PAGE_FOLDER = Path(__file__).parent / "page"
_SHOW = "window.vegaEmbed = vegaEmbed;"
PICTURE_PIXELS = 720
"""Width of a chart, without its axis, on a page that runs no script."""


def render_html(document: Document, cache_folder: Path) -> str:
    """Render the page. The library of charts is bundled once per version and cached in `cache_folder`.

    The page has it compressed, and its script unpacks it: 0.4 MB, not 0.9.
    """
    scripts = [read_page("page.js"), bundle_charts(cache_folder)] if list_charts(document) else []
    digests = [_digest_script(script) for script in scripts]
    library = base64.b64encode(gzip.compress(scripts.pop().encode(), mtime=0)).decode() if scripts else None
    template = make_environment().get_template("page.html")
    values = {"scripts": scripts, "library": library, "digests": digests}
    return fill_page(template, document, style=read_page("page.css"), **values)


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
    environment.filters |= {"for_script": _write_json, "show_cell": str}
    return environment


def _write_json(value: Any) -> str:
    """Serialize to JSON that cannot close a script element: HTML's special characters become JSON escapes."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def bundle_charts(folder: Path) -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script, bundled once per version (1 to 2 s)."""
    kept = folder / f"charts-{VEGA_LITE}-{version('vl-convert-python')}.js"
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
