// Reads lines typed at a terminal, with editing (line_editor.h). Only one object may exist at a time. Not
// thread-safe.
#pragma once

#include <string>

#include "base/terminal/terminal.h"
#include "cli/use/line_editor.h"

namespace primus::cli {

class Prompt {
 public:
  // `screen`: the terminal to draw on. Standard input must also be a terminal (see works()).
  explicit Prompt(const Terminal& screen) : screen_(screen) {}

  // Returns whether editing works: keyboard and screen are a terminal that supports cursor movement.
  static bool works(const Terminal& screen);

  // Shows `prompt` (ASCII) in bold and waits for a line. Returns false if the user ends the input (Ctrl-D or
  // Ctrl-C on an empty line) or the terminal is closed. Ctrl-C on a non-empty line drops it. The terminal is
  // in raw mode while read() waits; it is restored afterwards and when a signal ends the process.
  bool read(const std::string& prompt, std::string& line);

 private:
  void draw(const std::string& prompt);
  void leave_line();

  Terminal screen_;
  LineEditor editor_;
  std::string typed_;           // the start of a key sequence whose end has not arrived
  std::size_t cursor_row_ = 0;  // row of the cursor in the drawn text
  std::size_t rows_below_ = 0;  // rows drawn below the cursor
};

}  // namespace primus::cli
