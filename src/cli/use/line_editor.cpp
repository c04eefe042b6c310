#include "cli/use/line_editor.h"

#include <utf8proc.h>

#include <algorithm>

#include "base/text/utf8.h"

namespace primus::cli {
namespace {

constexpr char kEscape = '\x1b';
constexpr std::size_t kTabColumns = 4;

utf8proc_int32_t code_point(std::string_view text) {
  utf8proc_int32_t code = 0;
  utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &code);
  return code;
}

std::size_t character_bytes(std::string_view text) {
  int bad = 0;
  return static_cast<std::size_t>(std::max(1, unicode::well_formed(text, bad)));
}

// Returns the size in bytes of one displayed character: a letter with its accents, an emoji of several code
// points.
std::size_t cluster_bytes(std::string_view text) {
  std::size_t size = character_bytes(text);
  utf8proc_int32_t state = 0, last = code_point(text);
  while (size < text.size()) {
    const utf8proc_int32_t next = code_point(text.substr(size));
    if (utf8proc_grapheme_break_stateful(last, next, &state)) break;
    size += character_bytes(text.substr(size));
    last = next;
  }
  return size;
}

std::size_t columns_of(std::string_view cluster) {
  if (cluster == "\t") return kTabColumns;
  return static_cast<std::size_t>(std::max(0, utf8proc_charwidth(code_point(cluster))));
}

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n'; }
// Letters, digits and all non-ASCII characters count as parts of a word.
bool is_word(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c & 0x80) != 0;
}

// Returns the length of the escape sequence at the start of `input`; 0 if it is incomplete.
std::size_t sequence_size(std::string_view input) {
  if (input.size() < 2) return 0;
  if (input[1] == kEscape) return 1;
  if (input[1] == 'O') return input.size() < 3 ? 0 : 3;
  if (input[1] != '[') return 2;
  for (std::size_t i = 2; i < input.size(); ++i) {
    if (input[i] >= '@' && input[i] <= '~') return i + 1;
    if (input[i] < ' ') return i;  // this is no escape sequence
  }
  // Key sequences are short. Longer sequences are skipped in parts.
  constexpr std::size_t kLongest = 32;
  return input.size() > kLongest ? input.size() : 0;
}

}  // namespace

LineEditor::Event LineEditor::feed(std::string& input) {
  std::size_t at = 0;
  Event event = Event::kNone;
  while (event == Event::kNone && at < input.size()) {
    const std::string_view rest = std::string_view(input).substr(at);
    const char first = rest[0];
    if (first == kEscape) {
      const std::size_t size = sequence_size(rest);
      if (size == 0) break;
      sequence(rest.substr(1, size - 1));
      at += size;
    } else if (static_cast<unsigned char>(first) < ' ' || first == '\x7f') {
      ++at;
      if (pasting_ && first == '\r' && rest.starts_with("\r\n")) ++at;
      if (pasting_ && (first == '\r' || first == '\n' || first == '\t')) {
        insert(first == '\t' ? "\t" : "\n");
      } else if (!pasting_) {
        event = control(first);
      }
    } else {
      int bad = 0;
      const int size = unicode::well_formed(rest, bad);
      std::size_t incomplete = 0;
      if (size == 0 && unicode::valid_prefix(rest, &incomplete) == 0 && incomplete == rest.size()) break;
      // Drops invalid UTF-8 and non-ASCII control characters.
      if (size > 0 && utf8proc_category(code_point(rest)) != UTF8PROC_CATEGORY_CC) {
        insert(rest.substr(0, static_cast<std::size_t>(size)));
      }
      at += static_cast<std::size_t>(std::max({size, bad, 1}));
    }
  }
  input.erase(0, at);
  return event;
}

LineEditor::Event LineEditor::control(char key) {
  constexpr auto ctrl = [](char letter) { return static_cast<char>(letter & 0x1f); };
  switch (key) {
    case '\r':
    case '\n':
      return Event::kLine;
    case ctrl('C'):
      return Event::kInterrupt;
    case ctrl('Z'):
      return Event::kSuspend;
    case ctrl('L'):
      return Event::kClearScreen;
    case ctrl('D'):
      if (text_.empty()) return Event::kEnd;
      text_.erase(cursor_, after(cursor_) - cursor_);
      break;
    case '\x7f':
    case ctrl('H'): {
      const std::size_t begin = before(cursor_);
      text_.erase(begin, cursor_ - begin);
      cursor_ = begin;
      break;
    }
    case ctrl('A'):
      cursor_ = 0;
      break;
    case ctrl('E'):
      cursor_ = text_.size();
      break;
    case ctrl('B'):
      cursor_ = before(cursor_);
      break;
    case ctrl('F'):
      cursor_ = after(cursor_);
      break;
    case ctrl('K'):
      cut(cursor_, text_.size());
      break;
    case ctrl('U'):
      cut(0, cursor_);
      break;
    case ctrl('W'):
      cut(word_before(cursor_, true), cursor_);
      break;
    case ctrl('Y'):
      insert(cut_);
      break;
    case ctrl('P'):
      if (recalled_ > 0) recall(recalled_ - 1);
      break;
    case ctrl('N'):
      if (recalled_ < history_.size()) recall(recalled_ + 1);
      break;
    case '\t':
      insert("\t");
      break;
    default:
      break;
  }
  return Event::kNone;
}

void LineEditor::sequence(std::string_view name) {
  if (name == "[200~" || name == "[201~") {
    pasting_ = name == "[200~";
    return;
  }
  if (pasting_) return;
  auto is = [&](std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (is({"[A", "OA"})) {
    control('P' & 0x1f);
  } else if (is({"[B", "OB"})) {
    control('N' & 0x1f);
  } else if (is({"[C", "OC"})) {
    cursor_ = after(cursor_);
  } else if (is({"[D", "OD"})) {
    cursor_ = before(cursor_);
  } else if (is({"[H", "OH", "[1~", "[7~"})) {
    cursor_ = 0;
  } else if (is({"[F", "OF", "[4~", "[8~"})) {
    cursor_ = text_.size();
  } else if (name == "[3~") {
    text_.erase(cursor_, after(cursor_) - cursor_);
  } else if (is({"[1;5C", "[1;3C", "f"})) {
    cursor_ = word_after(cursor_);
  } else if (is({"[1;5D", "[1;3D", "b"})) {
    cursor_ = word_before(cursor_, false);
  } else if (name == "d") {
    cut(cursor_, word_after(cursor_));
  } else if (is({"\x7f", "\b"})) {
    cut(word_before(cursor_, false), cursor_);
  }
}

void LineEditor::insert(std::string_view text) {
  if (text.size() > kMaxBytes - text_.size()) return;
  text_.insert(cursor_, text);
  cursor_ += text.size();
}

void LineEditor::cut(std::size_t begin, std::size_t end) {
  if (begin == end) return;
  cut_ = text_.substr(begin, end - begin);
  text_.erase(begin, end - begin);
  cursor_ = begin;
}

std::size_t LineEditor::after(std::size_t at) const {
  return at == text_.size() ? at : at + cluster_bytes(std::string_view(text_).substr(at));
}

std::size_t LineEditor::before(std::size_t at) const {
  // The search begins at the last line break or space, because clusters of several code points can be found
  // only in forward direction.
  std::size_t begin = at;
  while (begin > 0 && (begin == at || !is_blank(text_[begin]))) --begin;
  while (begin < at) {
    const std::size_t next = after(begin);
    if (next >= at) break;
    begin = next;
  }
  return begin;
}

std::size_t LineEditor::word_before(std::size_t at, bool blanks_only) const {
  auto inside = [&](char c) { return blanks_only ? !is_blank(c) : is_word(c); };
  while (at > 0 && !inside(text_[at - 1])) --at;
  while (at > 0 && inside(text_[at - 1])) --at;
  return at;
}

std::size_t LineEditor::word_after(std::size_t at) const {
  while (at < text_.size() && !is_word(text_[at])) ++at;
  while (at < text_.size() && is_word(text_[at])) ++at;
  return at;
}

void LineEditor::recall(std::size_t index) {
  if (recalled_ == history_.size()) draft_ = text_;
  recalled_ = index;
  text_ = index == history_.size() ? draft_ : history_[index];
  cursor_ = text_.size();
}

std::string LineEditor::take() {
  std::string line = text_;
  if (!line.empty() && (history_.empty() || history_.back() != line)) history_.push_back(line);
  if (history_.size() > kMaxLines) history_.pop_front();
  clear();
  return line;
}

void LineEditor::clear() {
  text_.clear();
  draft_.clear();
  cursor_ = 0;
  pasting_ = false;
  recalled_ = history_.size();
}

LineEditor::Screen LineEditor::screen(std::size_t prompt_columns, std::size_t columns) const {
  Screen screen;
  screen.rows.emplace_back();
  std::size_t column = prompt_columns;
  auto next_row = [&] {
    screen.rows.emplace_back();
    column = 0;
  };
  for (std::size_t at = 0;; at = after(at)) {
    const std::string_view cluster = std::string_view(text_).substr(at, after(at) - at);
    const std::size_t width = cluster == "\n" ? 0 : columns_of(cluster);
    // Starts a new row if the character does not fit. The end of the text also needs a column, for the
    // cursor.
    if (cluster != "\n" && column + std::max<std::size_t>(width, 1) > columns && column > 0) next_row();
    if (at == cursor_) {
      screen.row = screen.rows.size() - 1;
      screen.column = column;
    }
    if (cluster.empty()) return screen;
    if (cluster == "\n") {
      next_row();
      continue;
    }
    screen.rows.back() += cluster == "\t" ? std::string(kTabColumns, ' ') : std::string(cluster);
    column += width;
  }
}

}  // namespace primus::cli
