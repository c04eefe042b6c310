// Runs the programs of a plan.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "launch/plan.h"

namespace primus::launch {

// Sets and unsets the step's variables in this process.
void apply_environment(const Step& step);

// Replaces this process by the step's program, with the step's input as standard input. Throws Error if that
// fails (kDependency: the program is not installed).
[[noreturn]] void become(const Step& step);

// Runs the step's program as a child with this process's output and error streams, and waits. Returns its
// exit code, or 128 + the signal that killed it.
int run_and_wait(const Step& step);

// Runs the program with empty input and passes its output and errors to `line`, line by line, without line
// ends; lines over 64 KiB arrive in parts. Returns the exit code.
int run_and_read(const Step& step, const std::function<void(std::string_view)>& line);

// Like run_and_read, but in a separate process group. A signal that asks this process to stop goes to the
// complete group. After 5 s, the remaining processes are killed, and this process ends by the same signal.
int run_group_and_read(const Step& step, const std::function<void(std::string_view)>& line);

}  // namespace primus::launch
