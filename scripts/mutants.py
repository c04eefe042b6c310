"""The mutants of C++ sources: finds them, draws a sample, and writes the sample into the sources
(scripts/mutation_test.py).

A mutant is a list of edits of one file. The edits do not move any line, and select between the code and its
mutant by a number at run time (scripts/mutant_switch.h), so that all mutants of a sample are compiled
together.
"""

import dataclasses
import hashlib
import random
import re
import tomllib

SWITCH = "base/mutant_switch.h"  # in the copy's src/
ON = "::primus::mutation::on(@)"
OP = "::primus::mutation::Op<@>{}"

# clang-format puts spaces around binary operators, but not around template brackets, pointers and
# references. So only binary operators match.
SWAPS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "+": "-", "-": "+", "*": "/", "/": "*",
         "%": "*", "+=": "-=", "-=": "+="}
OPERATOR = re.compile(r"(?<= )(<=|>=|==|!=|\+=|-=|<|>|\+|-|\*|/|%)(?=[ \n])")
LOGIC = re.compile(r"(?<= )(&&|\|\|)(?=[ \n])")
INCREMENT = re.compile(r"(\+\+|--)(?=[A-Za-z_])")
CONSTANT = re.compile(r"(?<![\w.'<\[])(\d+)(?![\w.'])")
BOOLEAN = re.compile(r"\b(true|false)\b")
CONDITION = re.compile(r"^[ ]*(?:\} else )?if \(", re.MULTILINE)
# The start of a statement that is not a declaration: a call, an assignment to an existing variable, or an
# increment.
STATEMENT = re.compile(r"^[ ]+(?=((?:\+\+|--)?[A-Za-z_][\w.:\[\]]*(?:->[\w.:]+)*(?:\(| [-+*/|&]?= )|(?:\+\+|--)[\w.]+;))",
                       re.MULTILINE)
NO_STATEMENT = re.compile(r"(?:return|throw|break|continue|using|case|default|delete|static_assert|if|for|while|switch|"
                          r"catch|do|else|goto)\b")
# Comments, strings, preprocessor lines, static_assert, template, using, namespace and constexpr lines, and
# assertions. Assertions are excluded because they have no effect in correct code.
BLANK = re.compile(r'//[^\n]*|/\*.*?\*/|R"\((?:.|\n)*?\)"|"(?:\\.|[^"\\\n])*"|(?<!\d)\'(?:\\.|[^\'\\\n])\'|'
                   r"^#[^\n]*(?:\\\n[^\n]*)*|"
                   r"^\s*(?:static_assert|template|using|namespace|constexpr|static constexpr|case)\b[^\n]*|"
                   r"\b(?:PRIMUS_CHECK|assert)\([^;]*;", re.MULTILINE | re.DOTALL)


@dataclasses.dataclass
class Mutant:
    key: str
    file: str
    line: int
    kind: str
    old: str
    new: str
    edits: list  # tuples (begin, end, text); @ in the text stands for the mutant's number
    lines: range  # touched by the edits


def blanked(text):
    """The text, with spaces in place of all parts that cannot change."""
    return BLANK.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)


def closing(code, begin):
    """The position of the closing bracket for the bracket that is open at `begin`."""
    depth = 1
    for at in range(begin, len(code)):
        depth += (code[at] in "([{") - (code[at] in ")]}")
        if depth == 0:
            return at
    return None


def operands(text, code, begin, end, operator):
    """The range of the operands of the logical operator at [begin, end)."""
    depth, left = 0, begin
    while left > 0:
        c = code[left - 1]
        depth += (c in ")]}") - (c in "([{")
        if depth < 0 or depth == 0 and (
                c in ";,?" or c == ":" and ":" not in (code[left - 2], code[left]) or code[left - 2:left] == "||"
                or operator == "&&" and code[left - 2:left] == "&&" or c == "=" and code[left - 2] not in "=!<>"
                and code[left] != "=" or re.match(r"\breturn ", code[left - 7:left] if left > 6 else "")):
            break
        left -= 1
    depth, right = 0, end
    while right < len(code):
        c = code[right]
        depth += (c in "([{") - (c in ")]}")
        if depth < 0 or depth == 0 and (
                c in ";,?" or c == ":" and ":" not in (code[right - 1], code[right + 1]) or code[right:right + 2] == "||"
                or operator == "&&" and code[right:right + 2] == "&&"):
            break
        right += 1
    while code[left].isspace():
        left += 1
    while text[right - 1].isspace():  # in `text`, because `code` has blanks in place of strings
        right -= 1
    return left, right


def statement_end(code, begin):
    """The end of the statement at `begin`, after its semicolon; None if it is not a simple statement."""
    depth = 0
    call = re.match(r"[^\s(=]*\(", code[begin:])
    for at in range(begin, len(code)):
        c = code[at]
        if depth == 0 and call and c == "{":
            return None
        depth += (c in "([{") - (c in ")]}")
        if depth < 0:
            return None
        if depth == 0 and c == ";":
            return at + 1
    return None


def mutants_of(path, text):
    """All mutants of a file."""
    code = blanked(text)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    starts = [0] + [m.end() for m in re.finditer("\n", text)]
    found = []

    def line_of(at):
        low, high = 0, len(starts)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if starts[middle] <= at else (low, middle)
        return low

    def add(kind, at, shown, *edits):
        """`shown`: (begin, end, text), the change as shown in reports."""
        number = line_of(at)
        last = max(line_of(max(edit[1] - 1, edit[0])) for edit in edits)
        begin, end = starts[number], text.find("\n", max(shown[1], at))
        key = hashlib.sha256(f"{path}:{digest}:{edits}".encode()).hexdigest()[:16]
        found.append(Mutant(key, path, number + 1, kind, text[begin:end], text[begin:shown[0]] + shown[2] + text[shown[1]:end],
                            list(edits), range(line_of(min(edit[0] for edit in edits)) + 1, last + 2)))

    for match in OPERATOR.finditer(code):
        begin, end, old = match.start(), match.end(), match[1]
        if '"' in text[end:end + 40].lstrip()[:1] + text[:begin].rstrip()[-1:]:
            continue  # std::string has only the operator +
        kind = "assignment" if old[-1] == "=" and old[0] in "+-" else "arithmetic" if old in "+-*/%" else "comparison"
        add(kind, begin, (begin, end, SWAPS[old]), (end, end, f" {OP} {old}"))
    for match in LOGIC.finditer(code):
        begin, end, old = match.start(), match.end(), match[1]
        left, right = operands(text, code, begin, end, old)
        add("logic", begin, (begin, end, {"&&": "||", "||": "&&"}[old]),
            (left, left, f"({ON} != (({ON} != static_cast<bool>("), (begin, end, f")) {old} ({ON} != static_cast<bool>("),
            (right, right, "))))"))
    for match in INCREMENT.finditer(code):
        begin, end, old = match.start(), match.end(), match[1]
        name = {"++": "Increment", "--": "Decrement"}[old]
        add("increment", begin, (begin, end, {"++": "--", "--": "++"}[old]),
            (begin, end, f"::primus::mutation::{name}<@>{{}}->*"))
    for match in CONSTANT.finditer(code):
        value = int(match[1])
        for other in [value + 1] + [value - 1] * (value > 0):
            add("constant", match.start(), (*match.span(), str(other)), (*match.span(), f"({ON} ? {other} : {value})"))
    for match in BOOLEAN.finditer(code):
        add("boolean", match.start(), (*match.span(), {"true": "false", "false": "true"}[match[1]]),
            (*match.span(), f"({ON} != {match[1]})"))
    for match in CONDITION.finditer(code):
        begin, end = match.end(), closing(code, match.end())
        if end is None or ";" in code[begin:end]:
            continue
        add("condition", begin, (begin, end, f"!({text[begin:end]})"), (begin, begin, f"{ON} != static_cast<bool>("),
            (end, end, ")"))
    for match in STATEMENT.finditer(code):
        begin = match.end()
        before = code[:match.start()].rstrip()
        end = statement_end(code, begin)
        if before[-1:] not in (";", "{", "}", ":") or NO_STATEMENT.match(code, begin) or end is None:
            continue
        add("statement", begin, (begin, end, ";"), (begin, begin, f"if (!{ON}) "))
    return found


def in_shares(groups, shares, seed):
    """All mutants in the order in which they are tried: shuffled, with each group at its share in any
    prefix."""
    source = random.Random(seed)
    queues = {}
    for name in sorted(groups):
        queues[name] = list(groups[name])
        source.shuffle(queues[name])
    taken = dict.fromkeys(queues, 0)
    order = []
    while any(queues.values()):
        name = max((n for n in queues if queues[n]), key=lambda n: shares[n] * (len(order) + 1) - taken[n])
        taken[name] += 1
        order.append(queues[name].pop(0))
    return order


def apart(order, count):
    """The first `count` mutants that change different lines."""
    used, chosen = set(), []
    for mutant in order:
        lines = {(mutant.file, line) for line in mutant.lines}
        if len(chosen) < count and not lines & used:
            used |= lines
            chosen.append(mutant)
    return chosen


def found_again(mutant, before, now):
    """Finds the mutant in a later version of its file, where its line may have moved; None if the line has
    changed. `before`: all mutants of the version that it was drawn from. Equal lines are distinguished by
    their order."""
    def alike(mutants):
        return [m for m in mutants if (m.kind, m.old, m.new) == (mutant.kind, mutant.old, mutant.new)]
    old, new = alike(before), alike(now)
    return new[old.index(mutant)] if len(old) == len(new) else None


def by_hand(path, read):
    """The mutants of a TOML file: tables [[mutant]] with file, old and new text; MUTANT in the new text is
    the switch."""
    found = []
    for entry in tomllib.loads(path.read_text())["mutant"]:
        text, old, new = read(entry["file"]), entry["old"].strip("\n"), entry["new"].strip("\n")
        if text.count(old) != 1:
            raise ValueError(f"{path}: '{entry['name']}': {entry['file']} has the old text {text.count(old)} times, not once")
        begin = text.index(old)
        line = text.count("\n", 0, begin) + 1
        key = hashlib.sha256(f"{entry['file']}:{text}:{new}".encode()).hexdigest()[:16]
        found.append(Mutant(key, entry["file"], line, "by hand", entry["name"], new.replace("MUTANT", "mutant"),
                            [(begin, begin + len(old), new.replace("MUTANT", ON))],
                            range(line, line + old.count("\n") + 1)))
    return found


def written(text, numbered):
    """The text of a file with its mutants inserted; `mutants` are pairs of number and mutant."""
    edits = [(begin, end, new.replace("@", str(number))) for number, mutant in numbered for begin, end, new in mutant.edits]
    for begin, end, new in sorted(edits, reverse=True):
        text = text[:begin] + new + text[end:]
    ignored = ("parentheses", "sign-compare", "maybe-uninitialized", "uninitialized", "unused-but-set-variable",
               "unused-value", "array-bounds", "stringop-overflow", "stringop-overread", "nonnull", "dangling-else",
               "return-type")
    pragmas = "".join(f'#pragma GCC diagnostic ignored "-W{name}"\n' for name in ignored)
    return f'#include "{SWITCH}"\n{pragmas}#line 1\n{text}'
