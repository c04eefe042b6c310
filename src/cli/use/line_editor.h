// Editing one line at a terminal: cursor keys, history, the usual control keys, pasted text.
//
// LineEditor is a pure state: bytes from the keyboard in, text and what to show out. It knows UTF-8,
// characters of several code points and of two columns. A line may hold line breaks, which only pasting
// brings in.
//
//   arrows, Home, End, Ctrl-A/E/B/F   move         Ctrl-Left/Right, Alt-B/F   by words
//   Backspace, Delete, Ctrl-H/D       delete       Ctrl-W, Alt-D, Ctrl-U/K    words, to the beginning, the
//   end Up, Down, Ctrl-P/N                history      Ctrl-Y   what was cut last   Ctrl-L   a clear screen
//
// Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace primus::cli {

class LineEditor {
 public:
  static constexpr std::size_t kMostBytes = 1U << 20;  // of a line; more is not taken in
  static constexpr std::size_t kMostLines = 1000;      // of history

  enum class Event : std::uint8_t {
    kNone,
    kLine,         // Enter
    kInterrupt,    // Ctrl-C
    kEnd,          // Ctrl-D on an empty line
    kSuspend,      // Ctrl-Z
    kClearScreen,  // Ctrl-L
  };

  // Takes bytes from the front of `input` until something happens or none is left that can be judged yet: the
  // beginning of a key's sequence or of a character stays in `input` for more to follow.
  Event feed(std::string& input);

  const std::string& text() const { return text_; }
  std::size_t cursor() const { return cursor_; }  // a byte of text()
  // The line, which becomes part of the history; the next begins empty.
  std::string take();
  // Drops the line.
  void clear();

  // How the line looks behind a prompt of `prompt_columns`: rows of at most `columns`, and where the cursor
  // is. Tabs are four columns wide.
  struct Screen {
    std::vector<std::string> rows;
    std::size_t row = 0, column = 0;  // of the cursor
  };
  Screen screen(std::size_t prompt_columns, std::size_t columns) const;

 private:
  Event control(char key);
  void sequence(std::string_view name);
  void insert(std::string_view text);
  void cut(std::size_t begin, std::size_t end);
  std::size_t before(std::size_t at) const;  // where the character before `at` begins
  std::size_t after(std::size_t at) const;
  std::size_t word_before(std::size_t at, bool blanks_only) const;
  std::size_t word_after(std::size_t at) const;
  void recall(std::size_t index);

  std::string text_, cut_, draft_;
  std::size_t cursor_ = 0;
  bool pasting_ = false;
  std::deque<std::string> history_;
  std::size_t recalled_ = 0;  // index of history_; its size: the draft
};

}  // namespace primus::cli
