// One layer of a model, which is a block: the kinds of its two branches (lm/model/layer_kind.h), and
// properties that may differ between layers of the same kinds. Sizes are equal in all layers and belong to
// the model (lm/model/model_config.h).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace primus {

struct LayerKind;
// The kinds of a plain layer. blocks/layers.h declares all other kinds.
extern const LayerKind kSelfAttention, kDenseFeedForward;

// The data of a sequence that a layer caches to process its next tokens.
enum class Keeps : std::uint8_t {
  kNothing,  // nothing; for feed-forward branches
  kKeys,     // keys and values of each token
  kLatents,  // one latent of keys and values for each token
  kPooled,   // latents of the tokens in a window, and latents pooled over blocks of tokens
  kInputs,   // the recent inputs of a short convolution
  kState,    // a state of fixed size for each head
};

struct LayerSpec {
  // Blocks of tokens whose pooled latents a layer attends to, in addition to its window (Keeps::kPooled).
  enum class Pools : std::uint8_t {
    kNothing,
    kSparse,  // small blocks; an indexer selects some of them
    kHeavy,   // large blocks; all of them are used
  };

  const LayerKind* attention = &kSelfAttention;
  const LayerKind* feed_forward = &kDenseFeedForward;
  bool local = false;  // whether attention is limited to the model's window or chunk
  bool rope = true;    // whether queries and keys are rotated by their positions
  Pools pools = Pools::kNothing;

  bool operator==(const LayerSpec&) const = default;
};

// The layers of a model, in order. If there are fewer entries than layers, the last entry applies to the
// further layers. An empty list means plain layers.
class LayerSpecs {
 public:
  const LayerSpec& operator[](std::int64_t layer) const {
    static constexpr LayerSpec kPlain;
    if (list_.empty() || layer < 0) return kPlain;
    return list_[std::min(static_cast<std::size_t>(layer), list_.size() - 1)];
  }
  LayerSpec& operator[](std::int64_t layer) { return list_[static_cast<std::size_t>(layer)]; }
  // Extends the list to at least `layers` entries without changing the meaning of any layer.
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
