// Describes a kind of layer. A layer is one of the two branches of a block. The description serves code that
// does not run the layer: FLOPs, benchmarks, mesh checks, caches and summaries. A LayerSpec
// (lm/model/layer_spec.h) names the kinds of a block's branches. A file of blocks/ defines each kind as
// extern const LayerKind kMine{.branch = ..., .keeps = ..., .products = ..., .make = ...}. The build collects
// these definitions (primus_entry_list in cmake/PrimusBuild.cmake). blocks/layers.h declares the kinds.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/operators/operators.h"
#include "engine/runtime/phase.h"
#include "lm/model/mesh_check.h"
#include "lm/model/model_config.h"

namespace primus {

class BlockParameters;
class Layer;

// A matrix product of one layer, [rows, in] -> [rows, out], with one row per token.
struct LayerProduct {
  std::string_view what;  // name of the product, such as "qkv"
  std::int64_t out, in;
  std::int64_t experts = 0;  // if above 0: the product has this number of expert matrices, and each token
                             // uses `per_token` of them
  std::int64_t per_token = 1;
  bool trained = true;  // whether gradients of the matrix are computed
  // Name of the LoRA module (LoraConfig) that adapts the matrix: "linear_qkv". Empty: no module.
  std::string_view module = {};

  // Returns the number of weights in one matrix.
  double weights() const { return static_cast<double>(out) * static_cast<double>(in); }
  // Returns the number of weights in the matrices that one token uses.
  double met() const { return static_cast<double>(per_token) * weights(); }
  // Returns the number of weights in all matrices.
  double held() const { return experts > 0 ? static_cast<double>(experts) * weights() : weights(); }
};

// A dimension that tensor ranks divide evenly.
struct SharedExtent {
  std::int64_t extent;
  const char* what;  // name for messages: "attention heads (num_attention_heads)"
};

// The size of a cache: memory for `sequences` sequences, in `pages` pages of `page_size` tokens.
struct CacheRequest {
  DType dtype = DType::kF32;
  std::int64_t sequences = 0, pages = 0, page_size = 0;
  int tensor_ranks = 1;
};

struct LayerKind {
  enum class Branch : std::uint8_t { kAttention, kFeedForward } branch;
  Keeps keeps = Keeps::kNothing;  // what the branch caches; an attention branch never has kNothing
  bool routes = false;            // whether each token is routed to some of many experts
  // Whether the kernels of the layer support batch-invariant forward passes (lm/model/batch_invariance.h).
  bool batch_invariant = false;
  // Returns the matrix products of the layer. `layer`, here and below, may be beyond the last layer, and then
  // means a multi-token prediction module. Routers and small gates are not listed, because the model's FLOPs
  // do not include them (Megatron-LM's convention).
  std::vector<LayerProduct> (*products)(const ModelConfig& config, std::int64_t layer);
  // Attention branch: average number of multiplications that combine a token with other tokens, in a sequence
  // of `length` tokens.
  double (*mixing)(const ModelConfig& config, std::int64_t layer, double length) = nullptr;
  // Average number of multiplications per token for selecting the tokens to attend to. Selection is not
  // trained.
  double (*selection)(const ModelConfig& config, double length) = nullptr;
  std::vector<SharedExtent> (*shared_by_tensor_ranks)(const ModelConfig& config) = nullptr;
  // Returns the reason why context parallelism does not support this kind; nullopt if it is supported.
  std::optional<MeshMismatch> (*context_mismatch)(const ModelConfig& config, const engine::MeshShape& shape,
                                                  std::int64_t sequence) = nullptr;
  // Attention branch: allocates the cache of the layer in the persistent arena. Throws Error(kUnsupported) if
  // this kind cannot have a cache.
  void (*make_cache)(const ModelConfig& config, const CacheRequest& request, engine::Phase& phase,
                     engine::KvCacheLayer& entry) = nullptr;
  // Attention branch: number of bytes of the cache that decoding reads for the token after `length` tokens.
  // The cache has elements of type `dtype`. Null if make_cache() throws.
  double (*bytes_read)(const ModelConfig& config, std::int64_t layer, std::int64_t length,
                       DType dtype) = nullptr;
  // Experiment keys that only models with such layers read, and the key that selects such layers.
  std::span<const std::string_view> keys = {};
  std::string_view asked_for = {};
  // Returns a summary for users: the sizes and the number of such layers.
  std::string (*summary)(const ModelConfig& config) = nullptr;
  // Makes such a layer for a block. Null for a kind whose layers have options; blocks/layers.h declares a
  // function that makes such a layer.
  std::unique_ptr<Layer> (*make)(const ModelConfig& config, const BlockParameters& parameters) = nullptr;
};

std::span<const LayerKind* const> layer_kinds();
// Returns all kinds that the model uses, without duplicates.
std::vector<const LayerKind*> kinds_of(const ModelConfig& config);
// Returns the matrix products of both branches.
std::vector<LayerProduct> layer_products(const ModelConfig& config, std::int64_t layer);

// Returns the average number of keys that a query attends to, in a sequence of `length` tokens: length / 2,
// or less with a window or chunk.
double keys_per_query(const ModelConfig& config, std::int64_t layer, double length);
// Like keys_per_query(), for queries that attend to at most `maximum` keys, either the nearest keys or
// selected keys.
double keys_up_to(double maximum, double length);

// Returns the number of tokens that the token after `length` tokens attends to: all of them, or those in its
// window or chunk.
std::int64_t keys_of_next(const ModelConfig& config, std::int64_t layer, std::int64_t length);

// Returns a mismatch if a context rank's slice of a sequence is shorter than the number of earlier tokens
// that a convolution of width `width` reads. `key` is the setting of that width.
std::optional<MeshMismatch> slices_too_short(std::int64_t width, const char* key,
                                             const engine::MeshShape& shape, std::int64_t sequence);

}  // namespace primus
