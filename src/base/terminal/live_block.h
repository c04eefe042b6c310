// A few lines at the bottom of a terminal that are drawn again in place, while other text scrolls by above
// them.
//
// Works on what is there: no other screen is opened, so all of it stays in the scroll-back and nothing must
// be restored when the process is killed. Windows may be resized at any time. Writing never waits: a reader
// that stands still misses pictures, not the run. Thread-safe.
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
  // Leaves the last picture on the screen, and the cursor below it.
  ~LiveBlock() { finish(); }
  LiveBlock(const LiveBlock&) = delete;
  LiveBlock& operator=(const LiveBlock&) = delete;

  // Replaces the picture. Lines are cut to the terminal's width; they hold no control characters but colors.
  void show(const std::vector<std::string>& lines);
  // Whole lines, to stay above the picture. Waits at most `wait_ms` for a reader; false: the text is lost.
  bool print_above(std::string_view text, int wait_ms);
  // Ends the picture where it is. Later text goes below; show() begins a new one.
  void finish();

 private:
  std::string picture(std::size_t width) const;
  // Takes the cursor from the picture's last line to the begin of its first.
  std::string go_to_top(std::size_t width) const;

  Terminal terminal_;
  std::mutex mutex_;
  std::vector<std::string> lines_;  // the picture
  std::vector<std::size_t> drawn_;  // columns of each line on the screen; empty: nothing is there
};

}  // namespace primus
