#!/usr/bin/env python3
"""Writes src/lm/tokenizer/text/newer_characters.inc: characters whose category changed from Unicode 14 to 16.

Needs Python 3.11 (whose unicodedata is Unicode 14.0), and the packages unicodedata2==16.0.0 and fonttools.
"""

import unicodedata
from pathlib import Path

import unicodedata2
from fontTools import unicodedata as scripts

OUT = Path(__file__).resolve().parent.parent / "src/lm/tokenizer/text/newer_characters.inc"


def main():
    assert unicodedata.unidata_version == "14.0.0" and unicodedata2.unidata_version == "16.0.0"
    ranges = []
    for code in range(0x110000):
        character = chr(code)
        category = unicodedata2.category(character)
        if unicodedata.category(character) == category:
            continue
        short = scripts.script(character).lower()
        script = scripts.script_name(scripts.script(character)).lower().replace(" ", "")
        if ranges and ranges[-1][1] == code - 1 and ranges[-1][2:] == [category, script, short]:
            ranges[-1][1] = code
        else:
            ranges.append([code, code, category, script, short])
    lines = ["// Written by scripts/newer_characters.py: first, last, general category, script and its short name."]
    entries = ['{{0x{:X}, 0x{:X}, "{}", "{}", "{}"}},'.format(*entry) for entry in ranges]
    for entry in entries:
        if len(lines) > 1 and len(lines[-1]) + len(entry) < 110:
            lines[-1] += " " + entry
        else:
            lines.append(entry)
    OUT.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
