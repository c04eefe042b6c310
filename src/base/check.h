// Checks of preconditions between parts of the program: shapes, types, the order of calls. The checks run in
// every build, including release builds. A failed check means a bug in this program, and throws
// std::logic_error. base/error.h is for errors of the environment and the user. Use assert for checks that
// are too expensive outside of tests.
//
//   PRIMUS_CHECK("split", at > 0 && at < cols);   "split: check failed: at > 0 && at < cols"
#pragma once

namespace primus {

// Throws std::logic_error: "<who>: check failed: <condition>". Other types of `who` need an overload of this
// function in the namespace of the type.
[[noreturn]] void check_failed(const char* who, const char* condition);

}  // namespace primus

// The macro is variadic, because a condition may contain commas: Shape{1, 2}.
#define PRIMUS_CHECK(who, ...) ((__VA_ARGS__) ? static_cast<void>(0) : check_failed(who, #__VA_ARGS__))
