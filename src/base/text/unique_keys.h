// Refuses duplicate member names in a JSON object that a JsonReader reads. An instance checks one JSON object
// at a time. clear() prepares it for the next JSON object and keeps its memory. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/text/json_reader.h"

namespace primus {

class UniqueKeys {
 public:
  void clear() {
    count_ = 0;
    more_.clear();
  }
  // Call it after next_key(). Throws Error(kInvalid) at the reader's position if the object already has
  // `key`.
  void add(const JsonReader& json, std::string_view key) {
    const auto end = few_.begin() + static_cast<std::ptrdiff_t>(count_);
    const bool is_new = std::find(few_.begin(), end, key) == end && (count_ < kFew || is_new_of_more(key));
    if (!is_new) {
      constexpr std::size_t kShown = 64;
      std::string name(key.substr(0, kShown));
      json.refuse("the key '" + name + "' occurs twice in one object: leave one of them out");
    }
    if (count_ == kFew) return;
    if (count_ == few_.size()) few_.emplace_back();
    few_[count_++] = key;
  }
  // Returns the first 16 names of the object, in their order.
  std::span<const std::string> first() const { return std::span(few_).first(count_); }

 private:
  // up to this number, keys are compared one by one; the JSON objects of records rarely have more keys
  static constexpr std::size_t kFew = 16;
  bool is_new_of_more(std::string_view key) { return more_.emplace(key).second; }

  std::vector<std::string> few_;
  std::size_t count_ = 0;
  std::set<std::string, std::less<>> more_;
};

}  // namespace primus
