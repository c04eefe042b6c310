// The tokens of a model: text to id and back.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace primus {

// Filled once, then read by any number of threads.
class Vocabulary {
 public:
  Vocabulary() = default;
  Vocabulary(const Vocabulary&) = delete;  // not copyable, because the map points into the pool
  Vocabulary& operator=(const Vocabulary&) = delete;
  Vocabulary(Vocabulary&&) = default;
  Vocabulary& operator=(Vocabulary&&) = default;

  // Adds a token. Ids may come in any order and have gaps.
  void add(std::string_view text, std::int64_t id);
  // Builds the lookup tables. Error(kInvalid) for an id that is negative, used twice, or far beyond the
  // number of tokens; if two entries have the same text, the last counts.
  void finish();

  // Largest id plus 1.
  std::int32_t size() const { return static_cast<std::int32_t>(texts_.size()); }
  // The number of tokens: less than size() if there are gaps.
  std::int32_t count() const { return static_cast<std::int32_t>(ids_.size()); }
  std::optional<std::int32_t> find(std::string_view text) const {
    const auto it = ids_.find(text);
    return it == ids_.end() ? std::nullopt : std::optional(it->second);
  }
  // Empty for an id in a gap.
  std::string_view text(std::int32_t id) const { return texts_[static_cast<std::size_t>(id)]; }

 private:
  struct Entry {
    std::size_t begin, length;
    std::int64_t id;
  };
  std::vector<Entry> entries_;  // entries before finish(); empty afterwards
  std::vector<char> pool_;      // a vector keeps the address of its storage when it is moved
  std::vector<std::string_view> texts_;
  std::unordered_map<std::string_view, std::int32_t> ids_;
};

}  // namespace primus
