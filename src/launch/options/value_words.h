// Helpers to parse option values: digits, lists, signals, counts. Internal to launch; option_values.h is the
// public interface. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace primus::launch::forms {

using View = std::string_view;

inline constexpr std::int64_t kMaxInt = std::numeric_limits<int>::max();
inline constexpr std::int64_t kMax64 = std::numeric_limits<std::int64_t>::max();

bool is_digit(char c);
bool is_letter(char c);
char lower(char c);
std::string lower(View text);
bool all_digits(View text);
// Parses an integer of 64 bits, a range that exceeds the limits of all tools.
std::optional<std::int64_t> whole(View text);
bool within(View text, std::int64_t low, std::int64_t high);
std::vector<View> split(View text, View separators);
bool is_one_of(View word, std::initializer_list<View> words);
// Returns whether `text` is in a list "a|b|c:", ignoring case; "c:" also matches any text that begins with
// it.
bool is_listed(View text, View list);
bool is_listed_list(View text, View list);
bool all_parts(View text, View separators, bool (*fits)(View));
// Parses "4", "1k", "2m" with Slurm's units of 1024.
std::optional<std::int64_t> counted(View text);
bool is_signal(View text);
bool is_file(View text);
// Returns the length of the decimal number at the start of `text`; 0: none.
std::size_t decimal(View text);

}  // namespace primus::launch::forms
