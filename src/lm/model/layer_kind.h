// A kind of layer, which is one of the two branches of a block. The kind describes the layer for code that
// does not run the layer: FLOPs, benchmarks, mesh checks, caches and summaries. A layer names its kinds
// (lm/model/layer_spec.h). Each kind is defined in a file of blocks/ as extern const LayerKind kMine{.branch
// = ..., .keeps = ..., .products = ..., .make = ...}; and the build collects these definitions
// (primus_entry_list in cmake/PrimusBuild.cmake), which blocks/layers.h declares.
#pragma once

#include <cstdint>
#include <memory>
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

class BlockParameters;
class Layer;

// A matrix product of one layer, [rows, in] -> [rows, out], with one row per token.
struct LayerProduct {
  std::string_view what;  // name of the product, such as "qkv"
  std::int64_t out, in;
  std::int64_t experts = 0;  // if above 0: number of expert matrices, of which each token uses `per_token`
  std::int64_t per_token = 1;
  bool trained = true;  // whether the matrix has gradients
  // Name of the LoRA module (LoraConfig) that adapts the matrix: "linear_qkv"; empty: none.
  std::string_view module = {};

  // Number of weights: of one matrix, of the matrices that one token uses, and of all matrices.
  double weights() const { return static_cast<double>(out) * static_cast<double>(in); }
  double met() const { return static_cast<double>(per_token) * weights(); }
  double held() const { return experts > 0 ? static_cast<double>(experts) * weights() : weights(); }
};

// An extent that tensor ranks split evenly.
struct SharedExtent {
  std::int64_t extent;
  const char* what;  // name for messages: "attention heads (num_attention_heads)"
};

// The size of a cache: `sequences` sequences, in `pages` pages of `page_size` tokens.
struct CacheRequest {
  DType dtype = DType::kF32;
  std::int64_t sequences = 0, pages = 0, page_size = 0;
  int tensor_ranks = 1;
};

struct LayerKind {
  enum class Branch : std::uint8_t { kAttention, kFeedForward } branch;
  Keeps keeps = Keeps::kNothing;  // data that the branch caches; not kNothing for an attention branch
  bool routes = false;            // whether each token is routed to some of many experts
  // `layer`, here and below, may be a multi-token prediction module, beyond the last layer. Routers and small
  // gates are left out, as in FLOPs (Megatron-LM's convention).
  std::vector<LayerProduct> (*products)(const ModelConfig& config, std::int64_t layer);
  // Attention branch: average number of multiplications that mix a token with other tokens, in a sequence of
  // `length`.
  double (*mixing)(const ModelConfig& config, std::int64_t layer, double length) = nullptr;
  // Multiplications per token, on average, that select the tokens to attend to. Selection is not trained.
  double (*selection)(const ModelConfig& config, double length) = nullptr;
  std::vector<SharedExtent> (*shared_by_tensor_ranks)(const ModelConfig& config) = nullptr;
  // Returns the reason why context parallelism does not support this kind; nullopt if it is supported.
  std::optional<MeshMismatch> (*context_mismatch)(const ModelConfig& config, const engine::MeshShape& shape,
                                                  std::int64_t sequence) = nullptr;
  // Attention branch: allocates the layer's cache in the persistent arena. Throws Error(kUnsupported) if this
  // kind has no cache.
  void (*make_cache)(const ModelConfig& config, const CacheRequest& request, engine::Phase& phase,
                     engine::KvCacheLayer& entry) = nullptr;
  // Attention branch: bytes of cache that are read to decode one more token after `length` tokens. The
  // elements have type `dtype`. Null if make_cache() throws.
  double (*bytes_read)(const ModelConfig& config, std::int64_t layer, std::int64_t length,
                       DType dtype) = nullptr;
  // Experiment keys that only models with such layers read, and the key that requests such layers.
  std::span<const std::string_view> keys = {};
  std::string_view asked_for = {};
  // A summary for users: sizes and the number of such layers.
  std::string (*summary)(const ModelConfig& config) = nullptr;
  // Makes such a layer for a family's block. Null for a kind whose layers have options: blocks/layers.h
  // declares a function that makes them.
  std::unique_ptr<Layer> (*make)(const ModelConfig& config, const BlockParameters& parameters) = nullptr;
};

std::span<const LayerKind* const> layer_kinds();
// Returns each kind that the model uses, without duplicates.
std::vector<const LayerKind*> kinds_of(const ModelConfig& config);
// Returns the products of both branches.
std::vector<LayerProduct> layer_products(const ModelConfig& config, std::int64_t layer);

// Returns the average number of keys that a query in a sequence of `length` attends to: half the length, or
// fewer with a window or chunk.
double keys_per_query(const ModelConfig& config, std::int64_t layer, double length);
// Like keys_per_query() for a query that attends to at most `maximum` keys: the nearest or the selected keys.
double keys_up_to(double maximum, double length);

// Returns the number of tokens that the token after a sequence of `length` attends to: all tokens, or the
// tokens in its window or chunk.
std::int64_t keys_of_next(const ModelConfig& config, std::int64_t layer, std::int64_t length);

// Refuses slices of a context rank that are shorter than the look-back of a convolution of width `width`.
// `key` is the setting of that width.
std::optional<MeshMismatch> slices_too_short(std::int64_t width, const char* key,
                                             const engine::MeshShape& shape, std::int64_t sequence);

}  // namespace primus
