// A kind of layer: what stands in one of the two branches of a block, as those see it who do not run it:
// FLOPs, benchmarks, meshes, caches and people. A layer names its kinds (lm/model/layer_spec.h). A kind is
// defined in its file of blocks/, where the build finds it (primus_entry_list in cmake/PrimusBuild.cmake):
//   extern const LayerKind kMine{.branch = ..., .keeps = ..., .products = ...};
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/operators.h"
#include "engine/phase.h"
#include "lm/model/mesh_check.h"
#include "lm/model/model_config.h"

namespace primus {

// A matrix product of one layer, [rows, in] -> [rows, out], with a row for each token.
struct LayerProduct {
  std::string_view what;  // "qkv"
  std::int64_t out, in;
  std::int64_t experts = 0;  // above 0: so many matrices, of which each token goes through `per_token`
  std::int64_t per_token = 1;
  bool trained = true;           // false: it has no gradients
  std::string_view module = {};  // whose adapters it may have (LoraConfig): "linear_qkv"; empty: none

  // Weights of one matrix, those that a token is multiplied with, and all of them.
  double weights() const { return static_cast<double>(out) * static_cast<double>(in); }
  double met() const { return static_cast<double>(per_token) * weights(); }
  double held() const { return experts > 0 ? static_cast<double>(experts) * weights() : weights(); }
};

// Something that tensor ranks share evenly.
struct SharedExtent {
  std::int64_t extent;
  const char* what;  // "attention heads (num_attention_heads)"
};

// The size of a cache: `sequences` texts, in `pages` of `page_size` tokens.
struct CacheRequest {
  DType dtype = DType::kF32;
  std::int64_t sequences = 0, pages = 0, page_size = 0;
  int tensor_ranks = 1;
};

struct LayerKind {
  enum class Branch : std::uint8_t { kAttention, kFeedForward } branch;
  Keeps keeps = Keeps::kNothing;  // of the attention branch, not nothing
  bool routes = false;            // each token goes to some of many experts
  // `layer`, here and below, may be one of multi-token prediction, beyond the last.
  // Routers and small gates are left out, as in FLOPs (Megatron-LM's convention).
  std::vector<LayerProduct> (*products)(const ModelConfig& config, std::int64_t layer);
  // Of the attention branch: what each token of a sequence of `length` is multiplied with among the tokens,
  // on average.
  double (*mixing)(const ModelConfig& config, std::int64_t layer, double length) = nullptr;
  // Of what selects the tokens that each one attends to, likewise. It is not trained.
  double (*selection)(const ModelConfig& config, double length) = nullptr;
  std::vector<SharedExtent> (*shared_by_tensor_ranks)(const ModelConfig& config) = nullptr;
  // Why context ranks cannot run it.
  std::optional<MeshMismatch> (*context_mismatch)(const ModelConfig& config, const engine::MeshShape& shape,
                                                  std::int64_t sequence) = nullptr;
  // Of the attention branch: what it keeps of each text, in the persistent arena. Throws Error(kUnsupported)
  // where it can keep nothing.
  void (*make_cache)(const ModelConfig& config, const CacheRequest& request, engine::Phase& phase,
                     engine::KvCacheLayer& entry) = nullptr;
  // Of the attention branch: bytes of that which one more token of a text of `length` reads, where an element
  // of `dtype` is kept; null where make_cache() throws.
  double (*bytes_read)(const ModelConfig& config, std::int64_t layer, std::int64_t length,
                       DType dtype) = nullptr;
  // Keys of experiments that models without such layers do not read, and the key that asks for such layers.
  std::span<const std::string_view> keys = {};
  std::string_view asked_for = {};
  // For people: sizes, and in how many layers they are.
  std::string (*summary)(const ModelConfig& config) = nullptr;
};

std::span<const LayerKind* const> layer_kinds();
// Those that a model has, each once.
std::vector<const LayerKind*> kinds_of(const ModelConfig& config);
// The products of both branches.
std::vector<LayerProduct> layer_products(const ModelConfig& config, std::int64_t layer);

// Keys that a query sees on average of a sequence of `length`: half of it, or its window or chunk.
double keys_per_query(const ModelConfig& config, std::int64_t layer, double length);
// Of layers that see at most the nearest `most` keys, or the best.
double keys_up_to(double most, double length);

// Tokens that the next token of a text of `length` sees: all, or its window or chunk.
std::int64_t keys_of_next(const ModelConfig& config, std::int64_t layer, std::int64_t length);

// Refuses slices of a context rank that are shorter than what a convolution of this width looks back; `key`
// is the width's.
std::optional<MeshMismatch> slices_too_short(std::int64_t width, const char* key,
                                             const engine::MeshShape& shape, std::int64_t sequence);

}  // namespace primus
