#include "lm/tokenizer/bpe/vocabulary.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace primus {

void Vocabulary::add(std::string_view text, std::int64_t id) {
  entries_.push_back({pool_.size(), text.size(), id});
  pool_.insert(pool_.end(), text.begin(), text.end());
}

void Vocabulary::finish() {
  // Real vocabularies have few gaps. An id far beyond the count means a broken file, and must not determine
  // the size of an allocation.
  const std::int64_t limit = static_cast<std::int64_t>(entries_.size()) * 2 + 65536;
  std::int64_t size = 0;
  ids_.reserve(entries_.size());
  for (const Entry& entry : entries_) {
    const std::string_view text(pool_.data() + entry.begin, entry.length);
    if (entry.id < 0 || entry.id >= limit) {
      throw invalid(
          fmt::format("token '{}' has id {} in a vocabulary of {} tokens", text, entry.id, entries_.size()));
    }
    size = std::max(size, entry.id + 1);
    ids_[text] = static_cast<std::int32_t>(entry.id);
  }
  texts_.resize(static_cast<std::size_t>(size));
  for (const auto& [text, id] : ids_) {
    std::string_view& slot = texts_[static_cast<std::size_t>(id)];
    if (slot.data() != nullptr)
      throw invalid(fmt::format("tokens '{}' and '{}' share the id {}", slot, text, id));
    slot = text;
  }
  entries_ = {};
}

}  // namespace primus
