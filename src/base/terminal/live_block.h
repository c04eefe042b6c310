// A few lines at the bottom of a terminal. The lines are redrawn in place while other text scrolls above the
// lines.
//
// Uses the terminal's normal screen instead of its alternate screen. Therefore the user can scroll back to
// all output, and a killed process leaves a usable terminal. The window may be resized at any time. Writing
// does not block: if the reader stops reading, updates are dropped. Thread-safe.
#pragma once

#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/terminal/terminal.h"

namespace primus {

class LiveBlock {
 public:
  // `terminal` must have cursor control (Terminal::ansi).
  explicit LiveBlock(const Terminal& terminal) : terminal_(terminal) {}
  // Leaves the last lines on the screen and the cursor below them.
  ~LiveBlock() { finish(); }
  LiveBlock(const LiveBlock&) = delete;
  LiveBlock& operator=(const LiveBlock&) = delete;

  // Replaces the lines and cuts the new lines to the terminal's width. The lines must contain no control
  // characters except colors.
  void show(const std::vector<std::string>& lines);
  // Prints complete lines above the block. Waits at most `wait_ms` for the reader; returns false if the text
  // is lost.
  bool print_above(std::string_view text, int wait_ms);
  // Ends the block and leaves it on the screen. Later text appears below; show() begins a new block.
  void finish();

 private:
  std::string picture(std::size_t width) const;
  // Returns the sequence that moves the cursor from the last line to the start of the first line.
  std::string go_to_top(std::size_t width) const;

  Terminal terminal_;
  std::mutex mutex_;
  std::vector<std::string> lines_;  // the current lines
  std::vector<std::size_t> drawn_;  // columns of each line on the screen; empty: nothing is drawn
};

}  // namespace primus
