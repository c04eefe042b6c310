#!/usr/bin/env python3
"""Draws docs/images/training-vs-pytorch.svg from the tables of docs/performance.md. Needs only Python.

    scripts/performance-plots.py            writes the picture
    scripts/performance-plots.py --check    exits 1 if the picture differs from the tables
"""
import html
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs/images/training-vs-pytorch.svg"


def rows():
    """(work, tokens/s of Primus, of PyTorch) of the two tables that have both columns."""
    columns = None
    for line in (ROOT / "docs/performance.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            columns = None
        elif "PyTorch, tokens/s" in cells:
            columns = cells.index("Primus, tokens/s"), cells.index("PyTorch, tokens/s")
        elif columns and re.match(r"[\d ]+$", cells[columns[0]]):
            yield (cells[0], *(int(cells[column].replace(" ", "")) for column in columns))


def picture(bars):
    left, right, top, row = 400, 60, 34, 24
    width, height = 820, top + row * len(bars) + 34
    scale = (width - left - right) / 1.2

    def x(ratio):
        return left + ratio * scale

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
           'font-family="DejaVu Sans,Helvetica,sans-serif" font-size="12" fill="#24292f">',
           f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>',
           '<text x="12" y="20" font-size="13">Training rate of Primus; compiled PyTorch in the same run is 1</text>']
    for number, (name, ours, theirs) in enumerate(bars):
        y, ratio = top + row * number, ours / theirs
        out.append(f'<text x="{left - 8}" y="{y + 15}" text-anchor="end">{html.escape(name)}</text>'
                   f'<rect x="{left}" y="{y + 3}" width="{ratio * scale:.1f}" height="{row - 7}" fill="#0969da"/>'
                   f'<text x="{x(ratio) + 5:.1f}" y="{y + 15}">{ratio:.2f}</text>')
    out.append(f'<path d="M{x(1):.1f} {top - 4}V{height - 26}" stroke="#cf222e" stroke-dasharray="4 3"/>'
               f'<text x="{x(1):.1f}" y="{height - 12}" text-anchor="middle" fill="#cf222e">PyTorch</text>')
    return "\n".join(out) + "\n</svg>\n"


def main():
    text = picture(list(rows()))
    if "--check" in sys.argv[1:]:
        sys.exit(0 if PICTURE.exists() and PICTURE.read_text() == text else f"error: {PICTURE} is old: run {sys.argv[0]}")
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(text)


if __name__ == "__main__":
    main()
