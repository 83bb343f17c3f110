"""The pages' shell: structure, colours in light and dark, and one button. Nothing comes from elsewhere."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from html import escape
from typing import Final

_LIGHT: Final = """
--page:#f6f7f9;--card:#fff;--ink:#16202c;--soft:#5b6776;--rule:#e3e7ec;--track:#f0f2f5;
--immediate:#8fd3c8;--satisfied:#1f9d8a;--expired:#e4572e;--cancelled:#a3adb8;--forced:#8a63d2;--bar:#9fb4cc;
--a:#2463c5;--b:#d08a00;--c:#c0367d;--d:#1f9d8a;--e:#7a52c7;--f:#6b7785;--good:#1f9d8a;--note:#d08a00;--bad:#e4572e;
"""
_DARK: Final = """
--page:#0f141a;--card:#171e27;--ink:#e6ebf1;--soft:#94a2b3;--rule:#27313d;--track:#1e2731;
--immediate:#2f7f76;--satisfied:#35c2ab;--expired:#ff7a52;--cancelled:#667383;--forced:#a98bea;--bar:#48617e;
--a:#6aa6ff;--b:#f0b23c;--c:#f07db5;--d:#35c2ab;--e:#b394f2;--f:#94a2b3;--good:#35c2ab;--note:#f0b23c;--bad:#ff7a52;
"""
_RULES: Final = """
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink)}
body{font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
main{max-width:1060px;margin:0 auto;padding:32px 20px 60px}
header{display:flex;justify-content:space-between;align-items:flex-start;gap:16px;margin-bottom:18px}
h1{font-size:27px;line-height:1.2;margin:0 0 4px;letter-spacing:-.01em}
h2{font-size:18px;margin:0 0 2px;letter-spacing:-.005em}
.when,.how,footer{color:var(--soft)}
.how{margin:0 0 14px;max-width:76ch}
button{font:inherit;font-size:13px;color:var(--soft);background:var(--card)}
button{border:1px solid var(--rule);border-radius:8px;padding:5px 11px;cursor:pointer}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(165px,1fr));gap:12px;margin:0 0 16px}
.tile,section{background:var(--card);border:1px solid var(--rule);border-radius:12px}
.tile{padding:11px 16px;display:flex;flex-direction:column}
.tile b{font-size:25px;line-height:1.2;font-weight:650;font-variant-numeric:tabular-nums}
.tile span{font-weight:500}
.tile small{color:var(--soft)}
section{padding:20px 22px 16px;margin-bottom:16px;overflow-x:auto}
.findings{list-style:none;margin:10px 0 4px;padding:0;display:grid;gap:8px}
.findings{grid-template-columns:repeat(auto-fit,minmax(min(430px,100%),1fr))}
.findings h3{font-size:13px;font-weight:500;color:var(--soft);margin:0 0 1px}
summary{cursor:pointer;color:var(--soft);font-size:13px;margin-top:4px}
.findings li{border-left:4px solid var(--note);background:var(--track);border-radius:0 8px 8px 0;padding:8px 14px}
.findings li.plain{border-color:var(--bar)}
.findings li.bad{border-color:var(--bad)}
.findings li.good{border-color:var(--good)}
.findings b{font-weight:600}
.findings p{margin:0 0 3px;max-width:90ch;font-size:14px;line-height:1.42}
.missing{color:var(--bad);margin:10px 0 0}
output{display:block;min-height:20px;font-size:13px;color:var(--soft)}
output{font-variant-numeric:tabular-nums;white-space:pre-wrap}
svg:focus-visible{outline:2px solid var(--a);outline-offset:2px;border-radius:6px}
figure{margin:0 0 14px}
figcaption{display:flex;flex-wrap:wrap;gap:4px 16px;align-items:baseline;margin-bottom:4px}
figcaption b{font-weight:600;margin-right:auto}
.key{font-size:13px;color:var(--soft)}
.key i{display:inline-block;width:11px;height:11px;border-radius:3px;margin-right:5px;vertical-align:-1px}
svg{display:block;width:100%;height:auto;min-width:560px}
.grid{stroke:var(--rule);stroke-width:1}
.tick{fill:var(--soft);font-size:11.5px}
.label{fill:var(--ink);font-size:12.5px}
svg .note{fill:var(--ink);font-size:12px;font-weight:600}
svg .note{paint-order:stroke;stroke:var(--card);stroke-width:4px;stroke-linejoin:round}
.line{fill:none;stroke-width:2;stroke-linejoin:round}
.dot{stroke:var(--card);stroke-width:2}
.hover{fill:transparent}
.hover:hover,.hover.on{fill:var(--ink);fill-opacity:.09}
.on:not(.hover){stroke:var(--ink);stroke-width:2}
.track{fill:var(--track)}
table{border-collapse:collapse;width:100%;font-size:13.5px;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:6px 7px;border-bottom:1px solid var(--rule);white-space:nowrap}
.text,th:first-child,td:first-child{text-align:left}
td.text{white-space:normal;max-width:40ch;overflow-wrap:break-word}
td:first-child{white-space:nowrap}
thead th{color:var(--soft);font-weight:500}
tbody th{font-weight:500}
.unknown{color:var(--soft);font-style:italic}
footer{font-size:13px;margin-top:22px}
@media(max-width:560px){main{padding:20px 10px}section{padding:14px 12px}header button{white-space:nowrap}}
@media print{body{background:#fff}button{display:none}section{break-inside:avoid}}
"""
_SCRIPT: Final = """
document.querySelector("button").onclick = () => {
  const root = document.documentElement, dark = matchMedia("(prefers-color-scheme:dark)").matches;
  const now = root.dataset.theme || (dark ? "dark" : "light");
  root.dataset.theme = now === "dark" ? "light" : "dark";
};
for (const svg of document.querySelectorAll("figure svg")) {
  const told = svg.parentNode.querySelector("output");
  const marks = [...svg.querySelectorAll("title")].map((title) => title.parentNode);
  if (!marks.length) continue;
  let at = -1;
  const go = (to) => {
    marks[at]?.classList.remove("on");
    at = to;
    marks[at]?.classList.add("on");
    told.textContent = at < 0 ? "" : marks[at].querySelector("title").textContent.split("\\n").join("   ");
  };
  svg.tabIndex = 0;
  svg.onkeydown = (event) => {
    const last = marks.length - 1, ten = Math.ceil(marks.length / 10);
    const to = {ArrowRight: at + 1, ArrowLeft: at - 1, PageDown: at + ten, PageUp: at - ten, Home: 0, End: last};
    if (event.key === "Escape") go(-1);
    else if (event.key in to) go(Math.max(0, Math.min(last, to[event.key])));
    else return;
    event.preventDefault();
  };
  svg.onpointerdown = (event) => go(marks.indexOf(event.target.closest("rect,circle,line")));
  svg.onblur = () => go(-1);
}
"""
_STYLE: Final = (
    f":root{{color-scheme:light dark;{_LIGHT}}}"
    f"@media(prefers-color-scheme:dark){{:root{{{_DARK}}}}}"
    f":root[data-theme=light]{{color-scheme:light;{_LIGHT}}}:root[data-theme=dark]{{color-scheme:dark;{_DARK}}}{_RULES}"
)


#: Nothing from elsewhere, and no script but the page's own.
_POLICY: Final = (
    f"default-src 'none'; script-src 'sha256-{b64encode(sha256(_SCRIPT.encode()).digest()).decode()}'; "
    "style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
)
#: Control characters, those that turn the direction of writing around, and halves of characters.
_HIDDEN: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    r"""The text with an escape in the place of each character that does something and is not seen.

    >>> print(visible("orders\u202e3"))
    orders\u202e3
    """
    return _HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def shell(title: str, when: str, tiles: str, body: str, source: str) -> str:
    """The page around its sections."""
    return visible(f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width,initial-scale=1">
<title>{escape(title)}</title><style>{_STYLE}</style></head>
<body><main>
<header><div><h1>{escape(title)}</h1><div class="when">{escape(when)}</div></div>
<button type="button">light / dark</button></header>
<div class="tiles">{tiles}</div>
{body}
<footer>Made from {escape(source)}. A plot's figures: point at it, touch it, or use the arrow keys.</footer>
</main><script>{_SCRIPT}</script></body></html>
""")
