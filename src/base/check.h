// Checks of what one part of Primus asks of another: shapes, types, the order of calls. They run in every
// build, the users' too. A check that fails is a bug of ours, never the user's, and throws std::logic_error.
// Errors from the world are base/error.h; assert is for what would be too costly to check outside of tests.
//
//   PRIMUS_CHECK("split", at > 0 && at < cols);   "split: check failed: at > 0 && at < cols"
#pragma once

namespace primus {

// Throws std::logic_error: "<who>: check failed: <condition>". An overload for another type of `who` is found
// in that type's namespace.
[[noreturn]] void check_failed(const char* who, const char* condition);

}  // namespace primus

// Variadic because a condition may have commas, as in Shape{1, 2}.
#define PRIMUS_CHECK(who, ...) ((__VA_ARGS__) ? static_cast<void>(0) : check_failed(who, #__VA_ARGS__))
