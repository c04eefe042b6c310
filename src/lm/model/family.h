// A model family: how its config.json is read, what a block consists of, and how published checkpoints name
// its tensors. Everything else (embedding, head, loss, training, generation) is shared. A new family is one
// file like families/llama.cpp.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/data_parallel.h"
#include "engine/low_rank.h"
#include "engine/operators.h"
#include "engine/parameters.h"
#include "lm/model/model_config.h"
#include "turbo/router/router.h"

namespace primus {

// The KV cache: pages per layer, and the page table that maps the rows of a pass to pages.
struct KvCache {
  std::vector<engine::KvCacheLayer> layers;  // cache of each block; empty for blocks that other ranks hold
  turbo::PagedSequences sequences;
  engine::CachedSequences layer(std::int64_t index) const {
    return {&layers[static_cast<std::size_t>(index)], &sequences};
  }
};

// Inputs of routers in a training step, in addition to hidden states: random numbers, the microbatch's weight
// in the loss, and counters in persistent memory. Counters have one row per layer; rows of multi-token
// prediction come last.
struct RoutingStep {
  turbo::RouterRandom random;
  double loss_weight = 1;
  // Used with MoeConfig::Training::balance_step: the object that sums loads over data-parallel ranks, the
  // number of these ranks, and the loads summed over the step's microbatches.
  engine::DataParallel* parallel = nullptr;
  int data_ranks = 1;
  Tensor running;  // loads summed over microbatches: [layers, experts] int32
  Tensor load;     // loads of the microbatch: [layers, experts + 1] int32 (turbo::ExpertLoad)
  Tensor losses;   // router losses: [layers, 2] fp32 (turbo::RouterLosses)
  // [layers, experts * bins] int32 (turbo::MarginHistogram); exists only if biases are set by quantiles
  Tensor margins;
};

// Records or replays the routing of one microbatch: the experts of each token and the pooled latents that the
// indexer selected. Verification in bf16 replays the reference's choices, because rounding may break ties
// differently.
struct RoutingTrace {
  enum class Use : std::uint8_t { kRecord, kReplay } use = Use::kRecord;
  Tensor experts;  // experts of each token: [layers, T * top_k] int32, persistent
  // Selected latents: [layers, T * index_top_k] int32, persistent; absent without an indexer.
  Tensor selected;
};

// Inputs of a block in addition to the residual stream. T = batch * sequence: tokens of this context rank.
struct BlockInputs {
  // Numbers of sequences and of tokens; generation uses only the product T.
  std::int64_t batch = 0, sequence = 0;
  engine::Value positions = {};       // position of each token: [T] int32
  Tensor rope_table = {};             // table of rotary factors; see turbo/rope/rope.h
  Tensor compressed_rope_table = {};  // table for layers with pooled latents
  Tensor local_rope_table = {};       // table for local layers, if they need a separate one
  engine::Value tokens = {};          // token ids: [T] int32, for layers that choose experts by a table
  const KvCache* cache = nullptr;     // used only in generation
  // [T] int32: where each token's document begins in its sequence (turbo/attention/attention.h), for
  // sequences packed from documents. Empty: every document begins at 0.
  engine::Value first_key = {};
  const RoutingStep* routing = nullptr;  // used only in training
  // Each token's index in the step's global batch (turbo::RouterRandom): [T of all context ranks, in their
  // order] int32. Needed with `routing` or `dropout`.
  engine::Value token_numbers = {};
  // Dropout of LoRA adapters, in training only: its random source, without the token indices.
  const engine::DropoutSource* dropout = nullptr;
  const RoutingTrace* trace = nullptr;  // usually null: no routing is recorded or replayed
  // Context parallelism: the ranks that hold the other slices of each sequence; `sequence` counts only the
  // tokens here. Null: no context parallelism.
  engine::ContextParallel* context = nullptr;
  // Tensor parallelism that overlaps collectives with matrix products (engine/tensor_parallel.h). Null: no
  // overlap.
  engine::TensorParallel* tensor = nullptr;
  // Expert parallelism: dispatches tokens to experts of other ranks (engine/expert_parallel.h). Null: no
  // expert parallelism.
  engine::ExpertParallel* experts = nullptr;
};

// One decoder block. Stateless except for its parameters, which the store owns.
class Block {
 public:
  virtual ~Block() = default;
  virtual void forward(engine::Residual& x, const BlockInputs& inputs) const = 0;
  // Enqueues updates that the optimizer does not make, at the end of a step.
  virtual void end_step(turbo::Context&, const RoutingStep&) const {}
};

// The two ends of a residual stream that is wider than the hidden states, [T, streams * hidden]
// (ModelConfig::streams). Stateless except for its parameters.
class StreamEnds {
 public:
  virtual ~StreamEnds() = default;
  // Before the first block: [T, hidden] -> [T, streams * hidden].
  virtual engine::Value widen(const engine::Value& hidden) const = 0;
  // Between pipeline stages: packs the entire stream into [T, streams * hidden]. unpack() reverses it before
  // block `layer`.
  virtual engine::Value pack(engine::Residual& x) const {
    flush(x);
    return x.sum;
  }
  virtual engine::Residual unpack(const engine::Value& packed, std::int64_t layer) const {
    static_cast<void>(layer);
    return {packed, {}};
  }
  // After the last block, before the final norm: the reverse of widen().
  virtual engine::Value contract(engine::Residual& x) const = 0;
};

// A switch of Megatron-LM and its value in a family. The value is text; "" means null.
struct FamilySwitch {
  std::string_view key, value;
};
inline constexpr std::string_view kEither = "either";  // value of a switch that the family ignores
// Value of a switch that differs between models of the family.
inline constexpr std::string_view kChosen = "chosen";

struct Family {
  std::string model_type;    // such as "llama"
  std::string architecture;  // such as "LlamaForCausalLM"
  // Reads the family's own keys of config.json and refuses options that Primus does not support.
  void (*read)(const nlohmann::json& json, ModelConfig& config);
  void (*write)(const ModelConfig& config, nlohmann::json& json);
  // Declares the parameters of block `layer` in the store's current unit and composes the block. `chunk` is
  // recorded as the user of these parameters.
  std::unique_ptr<Block> (*make_block)(const ModelConfig& config, engine::ParameterStore& store,
                                       std::int64_t layer, int chunk);
  // Switches whose value differs from the default of most families, such as add_qkv_bias: "true".
  // lm/model/family_switches.cpp lists the defaults. An experiment may set a switch only to the family's
  // value.
  std::vector<FamilySwitch> switches = {};
  // The defaults of transformers for architecture keys that config.json omits: a JSON object.
  std::string_view defaults = {};
  bool partial_rotary = false;  // whether only a part of each head may be rotated (partial_rotary_factor)
  std::string_view final_norm = "model.norm.weight";
  // Other model_type names of published models with this architecture (Kimi K2).
  std::vector<std::string_view> other_names = {};
  // Further known keys of config.json: keys that `read` reads and `write` does not always write, and keys of
  // published models that do not affect the output. A note reports all other keys, except the
  // keys that lm/model/config_keys.cpp lists for all families and the keys that `write` writes.
  std::vector<std::string_view> other_keys = {};
  // Name prefixes of published tensors that this program leaves out.
  std::vector<std::string_view> left_out = {};
  // {"num_experts", "num_local_experts"}: the first name is an alias of the second and takes precedence, as
  // attribute_map does in transformers.
  std::vector<std::pair<std::string_view, std::string_view>> aliases = {};
  std::string_view embedding = "model.embed_tokens.weight", head = "lm_head.weight";
  // Converts a config.json with another layout into the common one before any key is read.
  void (*prepare)(nlohmann::json& root) = nullptr;
  // rope_parameters has two objects: "main" with only the base, and "compress" with the rest (DeepSeek-V4).
  bool rope_by_branch = false;
  // rope_parameters has two objects: "sliding_attention" with only the base, and "full_attention" with the
  // rest (Gemma 3).
  bool rope_by_layer_type = false;
  // Keys in rope_parameters that `read` reads or that have no effect.
  std::vector<std::string_view> other_rope_keys = {};
  // Used if streams() > 1: declares the parameters of the stream's ends in the store's current unit. `depth`
  // is 0 for the model itself, else the depth of a multi-token prediction module. `chunk` is as in
  // make_block. Widening has no parameters, so a rank that has only the first part passes -1 as `chunk` and
  // calls only widen().
  std::unique_ptr<StreamEnds> (*make_stream_ends)(const ModelConfig& config, engine::ParameterStore& store,
                                                  int depth, int chunk) = nullptr;
};

class FamilyRegistry {
 public:
  void add(Family family) { families_.push_back(std::move(family)); }
  // Finds a family by its name or by one of its other names. Throws Error(kUnsupported), which suggests the
  // nearest known name.
  const Family& find(std::string_view model_type) const;
  const std::vector<Family>& all() const { return families_; }

 private:
  std::vector<Family> families_;
};

// Registers a built-in family. Its file in families/ defines
// extern const FamilyEntry kLlama{[] { return Family{...}; }};
// and the build collects these definitions (primus_entry_list in cmake/PrimusBuild.cmake).
struct FamilyEntry {
  Family (*make)();
};

// Returns the families that are part of Primus.
FamilyRegistry builtin_families();

// Declares a parameter for make_block, and records one use by `chunk`. Gradients of an unsharded parameter
// are reduced over all ranks, because each rank has different tokens. Gradients of a tensor rank's shard are
// reduced over the data-parallel ranks that hold the same shard.
engine::Parameter& declare(engine::ParameterStore& store, int chunk, std::string name, Shape shape,
                           engine::Initializer initializer, std::vector<engine::CheckpointPart> parts,
                           engine::Placement placement = {});

}  // namespace primus
