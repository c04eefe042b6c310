// "did you mean": the known name closest to a mistyped one.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace primus {

// Edits (insert, delete, replace, swap of neighbours) that turn `a` into `b`, ignoring case and taking '-'
// for '_'. O(|a| |b|) time.
std::size_t edit_distance(std::string_view a, std::string_view b);

// The candidate closest to `name`, or "" when none is close enough to be meant (about one edit per three
// characters). Names longer than 128 bytes match nothing, which keeps hostile input cheap.
std::string_view closest(std::string_view name, std::span<const std::string_view> candidates);

// The same for options ("--temp", of "--temperature"): those that begin or end with its words, else the
// closest. The dashes in front do not count.
std::string did_you_mean_option(std::string_view name, std::span<const std::string_view> options);

// "did you mean 'lr_decay_style'?", or "" when nothing is close.
std::string did_you_mean(std::string_view name, std::span<const std::string_view> candidates);

}  // namespace primus
