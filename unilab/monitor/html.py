"""report.html: one page that needs no other file and no network."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape

STYLE = """
:root { color-scheme: light dark; --ink: #22303c; --faint: #c9d1d9; --back: #ffffff;
  --card: #f6f8fa; --accent: #0969da; --bad: #d1242f; }
@media (prefers-color-scheme: dark) { :root { --ink: #d8dee4; --faint: #3d444d; --back: #0d1117;
  --card: #161b22; --accent: #6cb6ff; --bad: #ff8182; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back);
  max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; margin-bottom: 0.2rem; } h2 { font-size: 1.05rem; margin-top: 1.8rem; }
.verdict { background: var(--card); border-left: 4px solid var(--accent); padding: 0.8rem 1rem;
  font-size: 1.08rem; } .bad { border-color: var(--bad); }
.faint { opacity: 0.75; } img { width: 100%; height: auto; background: white; }
.tables { display: flex; flex-wrap: wrap; gap: 2rem; align-items: flex-start; }
table { border-collapse: collapse; } caption { text-align: left; font-weight: 600; }
th, td { padding: 0.15rem 0.7rem 0.15rem 0; border-bottom: 1px solid var(--faint);
  text-align: right; font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { text-align: left; } code { font-size: 0.92em; }
"""


class Page:
    """Builds one HTML page, part by part. Everything given is text, and is escaped.

    Args:
      title: of the page.
    """

    def __init__(self, title: str) -> None:
        self._title = escape(title)
        self._parts: list[str] = [f"<h1>{self._title}</h1>"]

    def text(self, text: str, kind: str = "") -> None:
        """Add a paragraph; `kind` is a class of the style."""
        name = f' class="{escape(kind)}"' if kind else ""
        self._parts.append(f"<p{name}>{escape(text)}</p>")

    def heading(self, text: str) -> None:
        """Add a heading."""
        self._parts.append(f"<h2>{escape(text)}</h2>")

    def items(self, lines: Sequence[str]) -> None:
        """Add a list."""
        if lines:
            cells = "".join(f"<li>{escape(line)}</li>" for line in lines)
            self._parts.append(f"<ul>{cells}</ul>")

    def tables(self, tables: Mapping[str, tuple[Sequence[str], Sequence[Sequence[str]]]]) -> None:
        """Add tables side by side: caption to (titles, rows)."""
        shown = [_table(caption, *content) for caption, content in tables.items() if content[1]]
        self._parts.append(f'<div class="tables">{"".join(shown)}</div>')

    def picture(self, png: bytes, label: str) -> None:
        """Add a picture, inside the page itself."""
        data = base64.b64encode(png).decode("ascii")
        self._parts.append(f'<img alt="{escape(label)}" src="data:image/png;base64,{data}">')

    def render(self) -> str:
        """Return the page."""
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{self._title}</title><style>{STYLE}</style></head>\n<body>\n"
            + "\n".join(self._parts)
            + "\n</body></html>\n"
        )


def _table(caption: str, titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><caption>{escape(caption)}</caption><tr>{head}</tr>{body}</table>"
