// The data paths that a user names, with or without the weights of a blend.
#pragma once

#include <string>
#include <vector>

namespace primus::data {

struct BlendList {
  std::vector<std::string> paths;
  std::vector<double> weights;  // normalised weights; empty for a list without weights
};

// Parses a list of paths, or of alternating weights and paths: the list has weights if its length is even and
// the first entry of every pair is a number. Throws Error(kInvalid) for a weight without a path, and for
// weights that are negative or add up to zero.
BlendList parse_blend(const std::vector<std::string>& list);

// Returns a note on each path that a list names more than once.
std::vector<std::string> notes_on_repeated_paths(const BlendList& blend);

// Returns the weights divided by their sum.
std::vector<double> normalized(const std::vector<double>& weights);

}  // namespace primus::data
