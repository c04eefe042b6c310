// "did you mean": the known name closest to a mistyped name.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace primus {

// Returns the number of edits (insert, delete, replace, swap of adjacent characters) from `a` to `b`,
// ignoring case and treating '-' as '_'. O(|a| |b|) time.
std::size_t edit_distance(std::string_view a, std::string_view b);

// Returns the candidate closest to `name`, or "" if none is close enough (about one edit per three
// characters). Names longer than 128 bytes have no match, which limits the time for hostile input.
std::string_view closest(std::string_view name, std::span<const std::string_view> candidates);

// Returns the suggestion for a mistyped option, e.g. "--temperature" for "--temp": all options that begin or
// end with the words of the mistyped option, or else the closest option. Ignores leading dashes.
std::string did_you_mean_option(std::string_view name, std::span<const std::string_view> options);

// Returns "did you mean 'lr_decay_style'?", or "" if no candidate is close.
std::string did_you_mean(std::string_view name, std::span<const std::string_view> candidates);

}  // namespace primus
