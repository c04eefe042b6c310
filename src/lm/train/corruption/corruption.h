// The finding of a check for silent corruption: wrong bits that no device reported. Plain data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace primus {

struct Corruption {
  std::string text = {};        // one sentence that names ranks, tensors and steps; empty: nothing was found
  std::vector<int> ranks = {};  // the ranks whose bits are wrong; if that cannot be decided, all that may be

  bool found() const { return !text.empty(); }
};

// Return a finding as text that rank 0 can send to the other ranks, and read it.
std::string to_text(const Corruption& finding);
Corruption corruption_from(const std::string& text);

// Returns "rank 3", or "ranks 0, 3 and 7"; of more than eight, the number of the others.
std::string name_ranks(const std::vector<int>& ranks);

// A bit that is inverted to test the checks (environment variable PRIMUS_FLIP_BIT): "WHERE:RANK:STEP".
struct BitFlip {
  enum class Where : std::uint8_t {
    kParameter,  // a weight, after the update of the step
    kGradient,   // a weight's gradient in the step, before it is summed over ranks
    kProduct,    // an operand of the golden products, before the check after the step
  };
  Where where = Where::kParameter;
  int rank = 0;
  std::int64_t step = 0;
};
// Parses "parameter:1:5". Throws Error(kInvalid) for other texts.
BitFlip parse_bit_flip(const std::string& text);
inline constexpr const char* kFlipBit = "PRIMUS_FLIP_BIT";

}  // namespace primus
