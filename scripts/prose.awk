# Prints the prose of source files and documents, one line each: FILE:LINE, a tab, TEXT.
# Prose: comments, strings of four words or more, and lines of Markdown outside code blocks.
# Run by scripts/check-words.sh: awk -f scripts/prose.awk FILE...

FNR == 1 {
  code_block = 0
  markdown = FILENAME ~ /\.md$/
  cpp = FILENAME ~ /\.(cpp|h|cu|def|inc)$/ && FILENAME !~ /^packaging\//
  marker = cpp ? "//" : "#"
}

function report(text) {
  gsub(/^[ \t\/#!<*]+/, "", text)
  gsub(/`[^`]*`/, "`code`", text)
  if (text ~ /[a-z]/) print FILENAME ":" FNR "\t" text
}

markdown {
  if ($0 ~ /^ *(```|~~~)/) code_block = !code_block
  else if (!code_block) report($0)
  next
}

{
  line = $0
  if (FNR == 1 && line ~ /^#!/) next
  strings = ""
  comment = ""
  # Walks over the strings, so that a marker within one starts no comment.
  while (line != "") {
    at = index(line, marker)
    if (match(line, /"([^"\\]|\\.)*"/) && (at == 0 || RSTART < at)) {
      text = substr(line, RSTART + 1, RLENGTH - 2)
      rest = substr(line, RSTART + RLENGTH)
      if (split(text, words, / +/) >= 4) strings = strings "  " text
      line = rest
    } else {
      if (at > 0) comment = substr(line, at + length(marker))
      break
    }
  }
  if (cpp || FILENAME ~ /\.py$/) report(strings)
  report(comment)
}
