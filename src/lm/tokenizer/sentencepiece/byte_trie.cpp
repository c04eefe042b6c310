#include "lm/tokenizer/sentencepiece/byte_trie.h"

namespace primus {

void ByteTrie::add(std::string_view text, std::int32_t value) {
  std::int32_t node = kRoot;
  for (const char byte : text) {
    std::int32_t child = step(node, byte);
    if (child == kNone) {
      child = static_cast<std::int32_t>(values_.size());
      values_.push_back(-1);
      const auto b = static_cast<unsigned char>(byte);
      if (node == kRoot) {
        first_[b] = child;
      } else {
        insert(static_cast<std::uint64_t>(static_cast<std::uint32_t>(node)) << 8 | b, child);
      }
    }
    node = child;
  }
  values_[static_cast<std::size_t>(node)] = value;
}

void ByteTrie::insert(std::uint64_t key, std::int32_t child) {
  if (2 * (used_ + 1) > slots_.size()) {
    std::vector<Slot> old(slots_.size() * 2, Slot{kEmpty, kNone});
    old.swap(slots_);
    mask_ = slots_.size() - 1;
    used_ = 0;
    for (const Slot& slot : old) {
      if (slot.key != kEmpty) insert(slot.key, slot.child);
    }
  }
  std::size_t slot = hash(key) & mask_;
  while (slots_[slot].key != kEmpty) slot = (slot + 1) & mask_;
  slots_[slot] = {key, child};
  ++used_;
}

std::int32_t ByteTrie::longest(std::string_view text, std::size_t& length) const {
  std::int32_t found = -1;
  std::int32_t node = kRoot;
  for (std::size_t i = 0; i < text.size(); ++i) {
    node = step(node, text[i]);
    if (node == kNone) break;
    if (value(node) >= 0) {
      found = value(node);
      length = i + 1;
    }
  }
  return found;
}

}  // namespace primus
