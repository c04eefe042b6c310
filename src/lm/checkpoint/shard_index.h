// model.safetensors.index.json: maps each tensor to its shard.
//
// Errors: kInvalid. Thread-safety: a plain value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace primus {

// All names are in one pool. Even a malicious index therefore needs little more memory than the size of its
// text.
struct ShardIndex {
  static constexpr std::size_t kMaxShards = 99999;  // largest shard number in a file name: "-00001-of-99999"

  struct Line {
    std::uint32_t name_at, name_size, shard;
  };
  std::string names;
  std::vector<Line> lines;  // one entry per tensor, sorted by name, without duplicates
  // File names of the shards, without folders, with suffix .safetensors, in order of appearance in the index.
  std::vector<std::string> shards;
  std::optional<std::uint64_t> total_size;

  std::string_view name(const Line& line) const {
    return std::string_view(names).substr(line.name_at, line.name_size);
  }
  // Parses an index. `where` names the file in error messages.
  static ShardIndex parse(std::string_view text, const std::string& where);
};

}  // namespace primus
