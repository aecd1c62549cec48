"""A report as one HTML file that needs nothing else: style, charts and their program are inside.

The page's own policy forbids every request and every script but the two that are written here, known by their digests,
so that text of a prompt or an answer stays text even if it were to escape its place.
"""

import base64
import hashlib
import json
import re
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import altair
import vl_convert
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from assayline.files import replace_file
from assayline.report.document import Chart, Document

PAGE_FOLDER = Path(__file__).parent / "page"
_SHOW = "window.vegaEmbed = vegaEmbed;"
VEGA_LITE = ".".join(altair.SCHEMA_VERSION.lstrip("v").split(".")[:2])
PICTURE_PIXELS = 720
"""Width of a chart without its axis, where a page runs no script."""


def render_html(document: Document, cache_folder: Path) -> str:
    """The page. The charts' program is bundled once per version, and kept in `cache_folder`."""
    charts = [block for section in document.sections for block in section.blocks if isinstance(block, Chart)]
    scripts = [bundle_charts(cache_folder), _read("page.js")] if charts else []
    return (
        _environment()
        .get_template("page.html")
        .render(
            document=document,
            charts=charts,
            index_of=lambda chart: next(index for index, other in enumerate(charts) if other is chart),
            zip=zip,
            kind_of=lambda block: type(block).__name__.lower(),
            style=_read("page.css"),
            theme=json.loads(_read("theme.json")),
            scripts=scripts,
            digests=[_digest_script(script) for script in scripts],
        )
    )


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(PAGE_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["for_script"] = _write_json
    return environment


def _write_json(value: Any) -> str:
    """JSON that can end no script element: what HTML knows of is written as JSON's own escapes."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def bundle_charts(folder: Path) -> str:
    """Vega, Vega-Lite and Vega-Embed as one script. Bundling takes a second or two, so it is done once per version."""
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
        pass  # it is made again next time
    return script


def draw_picture(chart: Chart) -> str:
    """Draws a chart in the page's light colours. Returns a data: URI, for pages that run no script."""
    spec = {**chart.spec, "width": PICTURE_PIXELS // 2 if chart.is_small else PICTURE_PIXELS}
    svg = vl_convert.vegalite_to_svg(spec, VEGA_LITE, config=_read_light_theme(), allowed_base_urls=[])
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


@cache
def _read_light_theme() -> dict[str, Any]:
    light = dict(re.findall(r"(--\w+): (#\w+)", _read("page.css").partition("}")[0]))
    theme: dict[str, Any] = json.loads(re.sub(r"var\((--\w+)\)", lambda name: light[name[1]], _read("theme.json")))
    return {**theme, "background": light["--card"], "padding": 12, "font": "system-ui, sans-serif"}


def _digest_script(script: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


@cache
def _read(name: str) -> str:
    return (PAGE_FOLDER / name).read_text(encoding="utf-8").strip()
