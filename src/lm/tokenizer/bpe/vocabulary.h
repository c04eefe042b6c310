// The tokens of a model: maps texts to ids and ids to texts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace primus {

// Must be filled by one thread; afterwards any number of threads may read.
class Vocabulary {
 public:
  Vocabulary() = default;
  Vocabulary(const Vocabulary&) = delete;  // not copyable, because the map refers to the pool's memory
  Vocabulary& operator=(const Vocabulary&) = delete;
  Vocabulary(Vocabulary&&) = default;
  Vocabulary& operator=(Vocabulary&&) = default;

  // Adds a token. Ids may be added in any order, and some may be missing.
  void add(std::string_view text, std::int64_t id);
  // Builds the lookup tables. Throws Error(kInvalid) for an id that is negative, used twice, or far beyond
  // the number of tokens; if two entries have the same text, the last entry is used.
  void finish();

  // Returns the largest id plus 1.
  std::int32_t size() const { return static_cast<std::int32_t>(texts_.size()); }
  // Returns the number of tokens, which is less than size() if ids are missing.
  std::int32_t count() const { return static_cast<std::int32_t>(ids_.size()); }
  std::optional<std::int32_t> find(std::string_view text) const {
    const auto it = ids_.find(text);
    return it == ids_.end() ? std::nullopt : std::optional(it->second);
  }
  // Returns the text of an id; empty for a missing id.
  std::string_view text(std::int32_t id) const { return texts_[static_cast<std::size_t>(id)]; }

 private:
  struct Entry {
    std::size_t begin, length;
    std::int64_t id;
  };
  std::vector<Entry> entries_;  // entries before finish(); empty afterwards
  std::vector<char> pool_;      // a vector, because its storage keeps its address when the vector is moved
  std::vector<std::string_view> texts_;
  std::unordered_map<std::string_view, std::int32_t> ids_;
};

}  // namespace primus
