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

#include "engine/operators/low_rank.h"
#include "engine/operators/operators.h"
#include "engine/parallel/data_parallel.h"
#include "engine/runtime/parameters.h"
#include "lm/model/model_config.h"
#include "turbo/router/router.h"

namespace primus {

// The KV cache: memory pages per layer, and the page table that maps the rows of a pass to pages.
struct KvCache {
  std::vector<engine::KvCacheLayer> layers;  // cache of each block; empty for blocks on other ranks
  turbo::PagedSequences sequences;
  engine::CachedSequences layer(std::int64_t index) const {
    return {&layers[static_cast<std::size_t>(index)], &sequences};
  }
};

// Inputs of routers in a training step besides the hidden states: random numbers, the microbatch's weight in
// the loss, and counters in persistent memory. Counters have one row per layer, followed by one row per
// multi-token prediction module.
struct RoutingStep {
  turbo::RouterRandom random;
  double loss_weight = 1;
  // Used if MoeConfig::Training::balance_step is set. The members are: the object that sums loads over
  // data-parallel ranks, the number of these ranks, and the loads summed over the microbatches of the step.
  engine::DataParallel* parallel = nullptr;
  int data_ranks = 1;
  Tensor running;  // loads summed over microbatches, [layers, experts] int32
  Tensor load;     // loads of the current microbatch, [layers, experts + 1] int32 (turbo::ExpertLoad)
  Tensor losses;   // router losses: [layers, 2] fp32 (turbo::RouterLosses)
  // [layers, experts * bins] int32 (turbo::MarginHistogram); exists only if biases are set by quantiles
  Tensor margins;
};

// Records or replays the routing of one microbatch: the experts of each token and the pooled latents that the
// indexer selected. Verification in bf16 replays the reference's choices, because rounding may change which
// of two nearly equal scores is larger.
struct RoutingTrace {
  enum class Use : std::uint8_t { kRecord, kReplay } use = Use::kRecord;
  Tensor experts;  // experts of each token: [layers, T * top_k] int32, persistent
  // Selected latents: [layers, T * index_top_k] int32, persistent; absent if the model has no indexer.
  Tensor selected;
};

// Inputs of a block besides the residual stream. T = batch * sequence is the number of tokens on this context
// rank.
struct BlockInputs {
  // Number of sequences, and tokens per sequence; generation uses only their product T.
  std::int64_t batch = 0, sequence = 0;
  engine::Value positions = {};       // position of each token: [T] int32
  Tensor rope_table = {};             // table of rotary factors; see turbo/rope/rope.h
  Tensor compressed_rope_table = {};  // table of rotary factors for layers with pooled latents
  Tensor local_rope_table = {};       // table of rotary factors for local layers, if they need a separate one
  engine::Value tokens = {};          // token ids, [T] int32; used by layers that choose experts by a table
  const KvCache* cache = nullptr;     // set only during generation
  // [T] int32, for sequences packed from documents: the index in the sequence at which the document of each
  // token begins (turbo/attention/attention.h). Empty: each sequence is one document.
  engine::Value first_key = {};
  const RoutingStep* routing = nullptr;  // set only during training
  // The index of each token in the global batch of the step (turbo::RouterRandom), int32. The tensor contains
  // the T tokens of every context rank, in rank order. Required if `routing` or `dropout` is set.
  engine::Value token_numbers = {};
  // Random source for the dropout of LoRA adapters, without the token indices. Set only during training.
  const engine::DropoutSource* dropout = nullptr;
  const RoutingTrace* trace = nullptr;  // set if routing is recorded or replayed, which is rare
  // Context parallelism: the ranks that hold the other slices of each sequence. `sequence` counts only the
  // tokens on this rank. Null: no context parallelism.
  engine::ContextParallel* context = nullptr;
  // Tensor parallelism that overlaps collectives with matrix products (engine/parallel/tensor_parallel.h).
  // Null: no overlap.
  engine::TensorParallel* tensor = nullptr;
  // Expert parallelism: sends tokens to the experts on other ranks (engine/parallel/expert_parallel.h). Null:
  // no expert parallelism.
  engine::ExpertParallel* experts = nullptr;
};

// One decoder block. Stateless except for its parameters, which the store owns.
class Block {
 public:
  virtual ~Block() = default;
  virtual void forward(engine::Residual& x, const BlockInputs& inputs) const = 0;
  // At the end of a step, enqueues those parameter updates that the optimizer does not make.
  virtual void end_step(turbo::Context&, const RoutingStep&) const {}
};

// The layers at both ends of a residual stream, if the stream is wider than the hidden states: [T, streams *
// hidden] (ModelConfig::streams). Stateless except for its parameters.
class StreamEnds {
 public:
  virtual ~StreamEnds() = default;
  // Before the first block: [T, hidden] -> [T, streams * hidden].
  virtual engine::Value widen(const engine::Value& hidden) const = 0;
  // Between pipeline stages: packs the entire stream into [T, streams * hidden]. unpack() reverses pack()
  // before block `layer`.
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

// A switch of Megatron-LM and the value that it has in a family. The value is text; "" means null.
struct FamilySwitch {
  std::string_view key, value;
};
inline constexpr std::string_view kEither = "either";  // marks a switch that the family ignores
// Marks a switch whose value differs between models of the family.
inline constexpr std::string_view kChosen = "chosen";

struct Family {
  std::string model_type;    // model_type in config.json, such as "llama"
  std::string architecture;  // entry of `architectures` in config.json, such as "LlamaForCausalLM"
  // Reads the family's own keys of config.json. Refuses options that Primus does not support.
  void (*read)(const nlohmann::json& json, ModelConfig& config);
  void (*write)(const ModelConfig& config, nlohmann::json& json);
  // Declares the parameters of block `layer` in the store's current unit (ParameterUnit), and makes the
  // block. `chunk` is recorded as the model chunk that uses these parameters.
  std::unique_ptr<Block> (*make_block)(const ModelConfig& config, engine::ParameterStore& store,
                                       std::int64_t layer, int chunk);
  // Switches whose value in this family differs from their default, such as add_qkv_bias: "true". The
  // defaults are in lm/model/family_switches.cpp. An experiment may set a switch only to the family's value.
  std::vector<FamilySwitch> switches = {};
  // A JSON object with the defaults of transformers for architecture keys that config.json omits.
  std::string_view defaults = {};
  bool partial_rotary = false;  // whether the rotation may cover only a fraction of each head
                                // (partial_rotary_factor)
  std::string_view final_norm = "model.norm.weight";
  // Other model_type names under which models of this architecture are published (Kimi K2).
  std::vector<std::string_view> other_names = {};
  // Further known keys of config.json: keys that `read` reads but `write` does not always write, and keys of
  // published models that do not affect the output. A note reports every unknown key. The keys that `write`
  // writes are also known, and so are the keys that lm/model/config_keys.cpp lists for all families.
  std::vector<std::string_view> other_keys = {};
  // Prefixes of the names of published tensors that Primus does not load.
  std::vector<std::string_view> left_out = {};
  // Aliases of keys, as attribute_map in transformers. In {"num_experts", "num_local_experts"}, the first
  // name is an alias of the second, and takes precedence if config.json has both.
  std::vector<std::pair<std::string_view, std::string_view>> aliases = {};
  std::string_view embedding = "model.embed_tokens.weight", head = "lm_head.weight";
  // Converts a config.json with another layout into the common layout. prepare() runs before any key is read.
  void (*prepare)(nlohmann::json& root) = nullptr;
  // Whether rope_parameters contains two objects: "main" with only the base, and "compress" with all values
  // (DeepSeek-V4).
  bool rope_by_branch = false;
  // Whether rope_parameters contains two objects: "sliding_attention" with only the base, and
  // "full_attention" with all values (Gemma 3).
  bool rope_by_layer_type = false;
  // Further known keys in rope_parameters: `read` reads them, or they have no effect.
  std::vector<std::string_view> other_rope_keys = {};
  // Used if streams() > 1: declares the parameters of both ends of the stream in the unit that is current in
  // the store. `depth` is 0 for the model itself, and otherwise the depth of a multi-token prediction module.
  // `chunk`: as in make_block. A rank that has only the first block passes -1 as `chunk`, and calls only
  // widen(), which has no parameters.
  std::unique_ptr<StreamEnds> (*make_stream_ends)(const ModelConfig& config, engine::ParameterStore& store,
                                                  int depth, int chunk) = nullptr;
};

class FamilyRegistry {
 public:
  void add(Family family) { families_.push_back(std::move(family)); }
  // Finds a family by one of its names. Throws Error(kUnsupported), which suggests the most similar known
  // name.
  const Family& find(std::string_view model_type) const;
  const std::vector<Family>& all() const { return families_; }

 private:
  std::vector<Family> families_;
};

// Registers a built-in family. The file of a family in families/ defines extern const FamilyEntry kLlama{[] {
// return Family{...}; }}; and the build collects these definitions (primus_entry_list in
// cmake/PrimusBuild.cmake).
struct FamilyEntry {
  Family (*make)();
};

// Returns the families that are part of Primus.
FamilyRegistry builtin_families();

// Declares a parameter for make_block, and records that `chunk` uses it once. The gradients of an unsharded
// parameter are reduced over all ranks, because each rank has different tokens. If tensor ranks shard it, the
// gradients of a shard are reduced over the data-parallel ranks that hold the same shard.
engine::Parameter& declare(engine::ParameterStore& store, int chunk, std::string name, Shape shape,
                           engine::Initializer initializer, std::vector<engine::CheckpointPart> parts,
                           engine::Placement placement = {});

}  // namespace primus
