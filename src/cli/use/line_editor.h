// Editing of one line at a terminal: cursor keys, history, the usual control keys, pasted text.
//
// LineEditor is pure state: it consumes keyboard bytes and provides the text and its layout on the screen.
// LineEditor supports UTF-8, characters of several code points, and characters two columns wide. A line
// contains line breaks only if they were pasted.
//
//   arrows, Home, End, Ctrl-A/E/B/F   move         Ctrl-Left/Right, Alt-B/F   move by words
//   Backspace, Delete, Ctrl-H/D       delete       Ctrl-W, Alt-D              delete a word
//   Up, Down, Ctrl-P/N                history      Ctrl-U/K                   delete to begin, end
//   Ctrl-L                            clear        Ctrl-Y                     paste the last deleted text
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
  static constexpr std::size_t kMaxBytes = 1U << 20;  // limit of a line; more input is dropped
  static constexpr std::size_t kMaxLines = 1000;      // limit of the history

  enum class Event : std::uint8_t {
    kNone,
    kLine,         // Enter
    kInterrupt,    // Ctrl-C
    kEnd,          // Ctrl-D on an empty line
    kSuspend,      // Ctrl-Z
    kClearScreen,  // Ctrl-L
  };

  // Consumes bytes from the front of `input` until an event occurs or the rest is incomplete. An incomplete
  // key sequence or character stays in `input`.
  Event feed(std::string& input);

  const std::string& text() const { return text_; }
  std::size_t cursor() const { return cursor_; }  // byte offset in text()
  // Returns the line and adds it to the history; the next line starts empty.
  std::string take();
  // Drops the line.
  void clear();

  // Layout of the line after a prompt of `prompt_columns` columns: rows of at most `columns` columns, and the
  // cursor's position. Tabs are four columns wide.
  struct Screen {
    std::vector<std::string> rows;
    std::size_t row = 0, column = 0;  // position of the cursor
  };
  Screen screen(std::size_t prompt_columns, std::size_t columns) const;

 private:
  Event control(char key);
  void sequence(std::string_view name);
  void insert(std::string_view text);
  void cut(std::size_t begin, std::size_t end);
  std::size_t before(std::size_t at) const;  // start of the character before `at`
  std::size_t after(std::size_t at) const;
  std::size_t word_before(std::size_t at, bool blanks_only) const;
  std::size_t word_after(std::size_t at) const;
  void recall(std::size_t index);

  std::string text_, cut_, draft_;
  std::size_t cursor_ = 0;
  bool pasting_ = false;
  std::deque<std::string> history_;
  std::size_t recalled_ = 0;  // index into history_; history_.size() is the current draft
};

}  // namespace primus::cli
