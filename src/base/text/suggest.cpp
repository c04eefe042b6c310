#include "base/text/suggest.h"

#include <algorithm>
#include <vector>

namespace primus {
namespace {

constexpr std::size_t kLongestName = 128;

char folded(char c) {
  if (c == '-') return '_';
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

std::size_t shared_prefix(std::string_view a, std::string_view b) {
  std::size_t n = 0;
  while (n < a.size() && n < b.size() && folded(a[n]) == folded(b[n])) ++n;
  return n;
}

// Returns the edit distance if it is at most `limit`, otherwise any number above `limit`.
std::size_t bounded_distance(std::string_view a, std::string_view b, std::size_t limit) {
  // The last three rows of the optimal-string-alignment table. The first of the three rows is needed for
  // swaps.
  std::vector<std::size_t> rows(3 * (b.size() + 1));
  std::size_t* before = rows.data();
  std::size_t* previous = before + b.size() + 1;
  std::size_t* current = previous + b.size() + 1;
  for (std::size_t j = 0; j <= b.size(); ++j) previous[j] = j;
  std::size_t lowest_before = 0;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    current[0] = i;
    std::size_t lowest = i;
    const char x = folded(a[i - 1]);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const char y = folded(b[j - 1]);
      std::size_t best = std::min({previous[j] + 1, current[j - 1] + 1, previous[j - 1] + (x == y ? 0 : 1)});
      if (i > 1 && j > 1 && x == folded(b[j - 2]) && folded(a[i - 2]) == y)
        best = std::min(best, before[j - 2] + 1);
      current[j] = best;
      lowest = std::min(lowest, best);
    }
    // Stops early, because the values of later rows cannot be below the lowest value of the last two rows.
    if (lowest > limit && lowest_before > limit) return limit + 1;
    lowest_before = lowest;
    std::swap(before, previous);
    std::swap(previous, current);
  }
  return previous[b.size()];
}

}  // namespace

std::size_t edit_distance(std::string_view a, std::string_view b) {
  return bounded_distance(a, b, std::max(a.size(), b.size()));
}

std::string_view closest(std::string_view name, std::span<const std::string_view> candidates) {
  if (name.empty() || name.size() > kLongestName) return {};
  std::string_view best;
  std::size_t best_distance = std::max<std::size_t>(1, name.size() / 3) + 1;
  for (std::string_view candidate : candidates) {
    const std::size_t gap =
        candidate.size() > name.size() ? candidate.size() - name.size() : name.size() - candidate.size();
    if (gap > best_distance) continue;
    const std::size_t distance = bounded_distance(name, candidate, best_distance);
    // If two names are equally close, prefer the one with the longer common prefix.
    if (distance < best_distance || (distance == best_distance && !best.empty() &&
                                     shared_prefix(name, candidate) > shared_prefix(name, best))) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view name, std::span<const std::string_view> candidates) {
  const std::string_view best = closest(name, candidates);
  return best.empty() ? std::string() : "did you mean '" + std::string(best) + "'?";
}

namespace {

std::string_view without_dashes(std::string_view name) {
  while (name.starts_with('-')) name.remove_prefix(1);
  return name;
}

// Returns whether `whole` begins or ends with the words of `part`, or its first word begins with `part`.
bool holds(std::string_view whole, std::string_view part) {
  if (part.size() >= whole.size()) return false;
  if (shared_prefix(whole, part) == part.size()) return part.size() > 2 || folded(whole[part.size()]) == '_';
  const std::string_view end = whole.substr(whole.size() - part.size());
  return part.size() > 2 && shared_prefix(end, part) == part.size() &&
         folded(whole[whole.size() - part.size() - 1]) == '_';
}

}  // namespace

std::string did_you_mean_option(std::string_view name, std::span<const std::string_view> options) {
  constexpr std::size_t kMax = 3;
  const std::string_view bare = without_dashes(name);
  if (bare.size() < 2 || bare.size() > kLongestName) return {};
  std::vector<std::string_view> meant, names;
  for (const std::string_view option : options) {
    const std::string_view whole = without_dashes(option);
    if (whole.size() < 2) continue;
    if (holds(whole, bare) || holds(bare, whole)) meant.push_back(option);
    names.push_back(whole);
  }
  if (meant.empty()) {
    const std::string_view near = closest(bare, names);
    for (const std::string_view option : options)
      if (!near.empty() && without_dashes(option) == near) meant.assign(1, option);
  }
  if (meant.empty() || meant.size() > kMax) return {};
  std::string text = "did you mean ";
  for (std::size_t i = 0; i < meant.size(); ++i) {
    const std::string_view before = i == 0 ? "" : i + 1 == meant.size() ? " or " : ", ";
    text += std::string(before) + "'" + std::string(meant[i]) + "'";
  }
  return text + "?";
}

}  // namespace primus
