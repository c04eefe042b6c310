#!/usr/bin/env python3
"""Draws the two pictures of README.md from a real run: its terminal, and its curves.

    scripts/readme-pictures.py TEXT [--minutes N] [--primus build/bin/primus] [KEY=VALUE ...]

Learns a tokenizer from TEXT, trains examples/native/configs/CPU/llama_tiny-text.yaml on it for N minutes on a
pseudo-terminal, and writes docs/images/terminal.svg (the screen near the end of the run) and docs/images/curves.svg
(loss and validation loss, from the run's metrics.jsonl and evaluations.jsonl). Needs only Python.
"""
import argparse
import fcntl
import html
import json
import os
import pathlib
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
ROWS, COLUMNS = 30, 100
COLORS = {"31": "#f14c4c", "32": "#23d18b", "33": "#f5d76e", "34": "#6cb6ff", "36": "#4dd0e1", "1": "bold", "2": "dim"}


class Screen:
    """A terminal with the few control sequences that Primus writes: carriage return, up, clear, and colours."""

    def __init__(self):
        self.lines, self.row, self.column, self.style = [[] for _ in range(ROWS)], 0, 0, ""

    def feed(self, text):
        for part in re.split(r"(\x1b\[[0-9;?]*[A-Za-z]|[\r\n])", text):
            if part == "\r":
                self.column = 0
            elif part == "\n":
                self.new_line()
            elif part.startswith("\x1b["):
                self.control(part[2:-1], part[-1])
            else:
                for character in part:
                    self.put(character)

    def new_line(self):
        self.row += 1
        if self.row == ROWS:
            self.lines.append([])
            del self.lines[0]
            self.row -= 1

    def put(self, character):
        if self.column == COLUMNS:
            self.column = 0
            self.new_line()
        line = self.lines[self.row]
        line.extend([(" ", "")] * (self.column + 1 - len(line)))
        line[self.column] = (character, self.style)
        self.column += 1

    def control(self, value, letter):
        if letter == "A":
            self.row = max(0, self.row - int(value or 1))
        elif letter in "KJ":
            del self.lines[self.row][self.column:]
            if letter == "J":
                for line in self.lines[self.row + 1:]:
                    line.clear()
        elif letter == "m":
            self.style = "" if value in ("", "0") else COLORS.get(value, "")

    def copy(self):
        return [list(line) for line in self.lines]


def watch(command, seconds):
    """Runs `command` on a terminal. Returns the screen after about four fifths of `seconds`."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm-256color", LANG="C.UTF-8", COLUMNS=str(COLUMNS), LINES=str(ROWS))
        os.execvp(command[0], command)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    screen, kept, start, pending = Screen(), None, time.monotonic(), b""
    while True:
        try:
            data = os.read(terminal, 65536)
        except OSError:
            break
        if not data:
            break
        pending += data
        try:
            text, pending = pending.decode(), b""
        except UnicodeDecodeError:
            continue
        screen.feed(text)
        if kept is None or time.monotonic() - start < 0.8 * seconds:
            kept = screen.copy()
    status = os.waitpid(pid, 0)[1]
    if status:
        sys.exit("error: the run failed:\n" + "\n".join("".join(c for c, _ in line) for line in screen.lines))
    return kept


def terminal_svg(lines, prompt):
    while lines and not lines[-1]:
        lines.pop()
    lines = [[(c, "bold") for c in prompt]] + [line for line in lines]
    width, height = COLUMNS * 8 + 24, len(lines) * 17 + 46
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
           'font-family="DejaVu Sans Mono,Menlo,Consolas,monospace" font-size="13">',
           f'<rect width="{width}" height="{height}" rx="8" fill="#1e2127"/>',
           '<circle cx="16" cy="14" r="5" fill="#f14c4c"/><circle cx="32" cy="14" r="5" fill="#f5d76e"/>'
           '<circle cx="48" cy="14" r="5" fill="#23d18b"/>']
    for number, line in enumerate(lines):
        runs, begin = [], 0
        for at in range(1, len(line) + 1):
            if at == len(line) or line[at][1] != line[begin][1]:
                runs.append((begin, "".join(c for c, _ in line[begin:at]), line[begin][1]))
                begin = at
        for begin, text, style in runs:
            if not text.strip():
                continue
            # Stretches each piece of text to its cells, so that bars and curves meet in every font.
            fill = {"bold": "#ffffff", "dim": "#8b929e", "": "#d7dae0"}.get(style, style)
            weight = ' font-weight="bold"' if style == "bold" else ""
            out.append(f'<text x="{12 + begin * 8}" y="{44 + number * 17}" textLength="{len(text) * 8}" '
                       f'lengthAdjust="spacingAndGlyphs" xml:space="preserve" fill="{fill}"{weight}>'
                       f'{html.escape(text)}</text>')
    return "\n".join(out) + "\n</svg>\n"


def curves_svg(steps, checks, title):
    width, height, left, right, top, bottom = 820, 300, 56, 16, 40, 44
    last = max(step for step, _ in steps)
    losses = [loss for _, loss in steps] + [loss for _, loss in checks]
    low, high = int(min(losses)), int(max(losses)) + 1

    def x(step):
        return left + (width - left - right) * step / last

    def y(loss):
        return top + (height - top - bottom) * (high - loss) / (high - low)

    every = max(1, len(steps) // 300)
    thin = [(steps[i][0], sum(v for _, v in steps[i:i + every]) / len(steps[i:i + every]))
            for i in range(0, len(steps), every)]
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
           'font-family="DejaVu Sans,Helvetica,sans-serif" font-size="12" fill="#57606a">',
           f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>',
           f'<text x="{left}" y="22" font-size="13" fill="#24292f">{html.escape(title)}</text>']
    for loss in range(low, high + 1):
        out.append(f'<path d="M{left} {y(loss):.1f}H{width - right}" stroke="#d0d7de"/>'
                   f'<text x="{left - 8}" y="{y(loss) + 4:.1f}" text-anchor="end">{loss}</text>')
    unit = next(u for u in (10, 20, 50, 100, 200, 500, 1000, 2000, 5000) if last / u <= 8)
    for step in range(0, last + 1, unit):
        out.append(f'<text x="{x(step):.1f}" y="{height - bottom + 18}" text-anchor="middle">{step}</text>')
    out.append(f'<text x="{(left + width - right) / 2:.0f}" y="{height - 8}" text-anchor="middle">step</text>')
    path = " ".join(f"{x(s):.1f},{y(v):.1f}" for s, v in thin)
    out.append(f'<polyline points="{path}" fill="none" stroke="#0969da" stroke-width="1.5"/>')
    if checks:
        path = " ".join(f"{x(s):.1f},{y(v):.1f}" for s, v in checks)
        out.append(f'<polyline points="{path}" fill="none" stroke="#cf222e" stroke-width="1.5" stroke-dasharray="5 3"/>')
        out += [f'<circle cx="{x(s):.1f}" cy="{y(v):.1f}" r="3" fill="#cf222e"/>' for s, v in checks]
    out.append(f'<text x="{width - right - 250}" y="{top + 16}" fill="#0969da">loss of training, {steps[-1][1]:.2f}</text>')
    if checks:
        out.append(f'<text x="{width - right - 250}" y="{top + 34}" fill="#cf222e">'
                   f'loss on held-out text, {checks[-1][1]:.2f}</text>')
    return "\n".join(out) + "\n</svg>\n"


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", help="a text of some megabytes, for example build/quickstart/kjv.txt")
    parser.add_argument("settings", nargs="*", help="more settings of the run, for example num_threads=1")
    parser.add_argument("--minutes", type=float, default=4)
    parser.add_argument("--primus", default=str(ROOT / "build/bin/primus"))
    args = parser.parse_intermixed_args()
    primus, text = os.path.abspath(args.primus), os.path.abspath(args.text)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        os.chdir(folder)
        (folder / "corpus.txt").symlink_to(text)
        subprocess.run([primus, "data", "train-tokenizer", "--input", "corpus.txt", "--vocab-size", "2048", "--output",
                        "my-tokenizer"], check=True, stdout=subprocess.DEVNULL)
        config = ROOT / "examples/native/configs/CPU/llama_tiny-text.yaml"
        lines = watch([primus, "train", "pretrain", "--config", str(config), "--minutes", str(args.minutes),
                       "data_path=corpus.txt", "tokenizer_model=my-tokenizer", "exp_name=my-first-model",
                       "workspace=output", *args.settings], 60 * args.minutes)
        run = next(folder.glob("output/**/metrics.jsonl")).parent
        steps = [(r["iteration"], r["lm_loss"]) for r in read_lines(run / "metrics.jsonl")]
        checks = [(r["iteration"], r["lm_loss"]) for r in read_lines(run / "evaluations.jsonl")]
        images = ROOT / "docs/images"
        images.mkdir(exist_ok=True)
        (images / "terminal.svg").write_text(terminal_svg(lines, "$ primus train pretrain --config llama_tiny-text.yaml "
                                                                 "data_path=corpus.txt ..."))
        (images / "curves.svg").write_text(curves_svg(
            steps, checks, f"Loss of the run above: {pathlib.Path(text).name}, {args.minutes:g} minutes"))


if __name__ == "__main__":
    main()
