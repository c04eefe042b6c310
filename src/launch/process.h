// Running the programs of a plan.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "launch/plan.h"

namespace primus::launch {

// Sets and unsets the step's variables in this process.
void apply_environment(const Step& step);

// This process becomes the step's program; the step's input is there for it to read. Throws Error
// (kDependency: the program is not installed) where it cannot.
[[noreturn]] void become(const Step& step);

// Runs the step's program as a child and waits; its output and errors go where ours go. The exit code, 128 +
// the signal that killed it.
int run_and_wait(const Step& step);

// The same, with all that it writes, to either stream, given to `line` line by line, without the line's end;
// longer lines than 64 KiB come in parts. Its input is empty.
int run_and_read(const Step& step, const std::function<void(std::string_view)>& line);

// The same in a process group of its own. A signal that asks this process to stop goes to the whole group;
// what is left of it 5 s later is killed, and this process ends by that signal.
int run_group_and_read(const Step& step, const std::function<void(std::string_view)>& line);

}  // namespace primus::launch
