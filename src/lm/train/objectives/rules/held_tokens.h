// The tokens of a microbatch that a context rank holds, in ascending order, for the tables of loss rules.
// Plain data after construction.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/runtime/rank.h"

namespace primus {

class HeldTokens {
 public:
  // `sequence`: number of tokens of each row.
  HeldTokens(const engine::MeshShape& shape, const engine::MeshPlace& place, std::int64_t sequence);

  // Returns this rank's values of a table [B, S] of all tokens; an empty table stays empty.
  std::vector<float> select(std::span<const float> all) const;
  // Writes this rank's values to their places in a table [B, S] of all tokens.
  void scatter(std::span<const float> held, std::span<float> all) const;
  // Translates the starts of documents, which count all tokens, to this rank's tokens.
  std::vector<std::int32_t> starts(std::span<const std::int32_t> all) const;

 private:
  std::size_t index(std::size_t held) const {
    return held / positions_.size() * sequence_ +
           static_cast<std::size_t>(positions_[held % positions_.size()]);
  }

  std::size_t sequence_;
  std::vector<std::int32_t> positions_;  // positions of this rank's tokens in a sequence
};

}  // namespace primus
