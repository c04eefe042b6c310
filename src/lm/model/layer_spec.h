// One layer of a model: the kinds of its two branches (lm/model/layer_kind.h), and in what it differs from
// other layers of these kinds. Sizes are the model's (lm/model/model_config.h).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace primus {

struct LayerKind;
// The kinds of a plain layer. Others are declared beside the functions that make them (blocks/).
extern const LayerKind kSelfAttention, kDenseFeedForward;

// What a layer keeps of a text for the tokens that follow.
enum class Keeps : std::uint8_t {
  kNothing,  // feed-forwards
  kKeys,     // keys and values of each token
  kLatents,  // a latent of each token's keys and values
  kPooled,   // latents of a window, and latents that are pooled over blocks of tokens
  kInputs,   // what a short convolution reaches
  kState,    // a state of fixed size for each head
};

struct LayerSpec {
  // Blocks of tokens whose latents are pooled beside the window's (Keeps::kPooled).
  enum class Pools : std::uint8_t {
    kNothing,
    kSparse,  // small ones, of which an indexer chooses
    kHeavy,   // large ones
  };

  const LayerKind* attention = &kSelfAttention;
  const LayerKind* feed_forward = &kDenseFeedForward;
  bool local = false;  // attention sees the model's window, or chunk, alone
  bool rope = true;    // queries and keys have rotary positions
  Pools pools = Pools::kNothing;

  bool operator==(const LayerSpec&) const = default;
};

// The layers of a model in order. Those behind the last are like it; an empty list is of plain layers.
class LayerSpecs {
 public:
  const LayerSpec& operator[](std::int64_t layer) const {
    static constexpr LayerSpec kPlain;
    if (list_.empty() || layer < 0) return kPlain;
    return list_[std::min(static_cast<std::size_t>(layer), list_.size() - 1)];
  }
  LayerSpec& operator[](std::int64_t layer) { return list_[static_cast<std::size_t>(layer)]; }
  // At least so many are in the list afterwards, and all layers are as before.
  void name(std::int64_t layers) {
    const LayerSpec last = std::as_const(*this)[layers];
    if (layers > size()) list_.resize(static_cast<std::size_t>(layers), last);
  }
  std::int64_t size() const { return static_cast<std::int64_t>(list_.size()); }

  bool operator==(const LayerSpecs& other) const {
    for (std::int64_t layer = 0; layer < std::max({size(), other.size(), std::int64_t{1}}); ++layer) {
      if ((*this)[layer] != other[layer]) return false;
    }
    return true;
  }

 private:
  std::vector<LayerSpec> list_;
};

}  // namespace primus
