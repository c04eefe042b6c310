// A map from byte strings to values, which finds all strings that start at a position of a text.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace primus {

// Must be filled by add() in one thread; afterwards any number of threads may read. Uses about 16 bytes of
// memory per byte of the strings.
class ByteTrie {
 public:
  static constexpr std::int32_t kRoot = 0, kNone = -1;

  // Adds a string. `value` must be >= 0. If a string is added twice, its last value is used.
  void add(std::string_view text, std::int32_t value);

  // Returns the node that `byte` leads to from `node`, or kNone.
  std::int32_t step(std::int32_t node, char byte) const {
    const auto b = static_cast<unsigned char>(byte);
    if (node == kRoot) return first_[b];
    const std::uint64_t key = static_cast<std::uint64_t>(static_cast<std::uint32_t>(node)) << 8 | b;
    for (std::size_t slot = hash(key) & mask_;; slot = (slot + 1) & mask_) {
      if (slots_[slot].key == key) return slots_[slot].child;
      if (slots_[slot].key == kEmpty) return kNone;
    }
  }
  // Returns the value of the string that ends at `node`, or -1 if no string ends there.
  std::int32_t value(std::int32_t node) const { return values_[static_cast<std::size_t>(node)]; }

  // Returns the value of the longest string at the start of `text`, and sets `length` to its length; -1 if
  // there is none.
  std::int32_t longest(std::string_view text, std::size_t& length) const;
  bool empty() const { return values_.size() == 1; }

 private:
  struct Slot {
    std::uint64_t key;
    std::int32_t child;
  };
  static constexpr std::uint64_t kEmpty = UINT64_MAX;
  static std::uint64_t hash(std::uint64_t key) {
    key *= 0x9E3779B97F4A7C15u;
    return key ^ key >> 32;
  }
  void insert(std::uint64_t key, std::int32_t child);
  static constexpr std::array<std::int32_t, 256> no_children() {
    std::array<std::int32_t, 256> children{};
    children.fill(kNone);
    return children;
  }

  std::array<std::int32_t, 256> first_ = no_children();  // children of the root
  std::vector<std::int32_t> values_{-1};
  // A hash table with open addressing; at most half of its slots are used.
  std::vector<Slot> slots_ = std::vector<Slot>(2, Slot{kEmpty, kNone});
  std::size_t mask_ = 1;
  std::size_t used_ = 0;
};

}  // namespace primus
