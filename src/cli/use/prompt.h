// Lines that a person types at a terminal, with editing (line_editor.h). One object at a time, one thread.
#pragma once

#include <string>

#include "base/terminal/terminal.h"
#include "cli/use/line_editor.h"

namespace primus::cli {

class Prompt {
 public:
  // `screen`: the terminal to draw on. Standard input must be a terminal, too (works()).
  explicit Prompt(const Terminal& screen) : screen_(screen) {}

  // Whether lines can be edited: keyboard and screen are a terminal that moves its cursor.
  static bool works(const Terminal& screen);

  // Shows `prompt` (ASCII) in bold and waits for a line. False when the person leaves: Ctrl-D or Ctrl-C on an
  // empty line, or the terminal is gone. Ctrl-C on a line drops it. While it waits the terminal passes on
  // every key; afterwards, and when a signal ends the process, it is as it was.
  bool read(const std::string& prompt, std::string& line);

 private:
  void draw(const std::string& prompt);
  void leave_line();

  Terminal screen_;
  LineEditor editor_;
  std::string typed_;           // keys that are not judged yet
  std::size_t cursor_row_ = 0;  // of what is drawn
  std::size_t rows_below_ = 0;  // drawn below the cursor
};

}  // namespace primus::cli
