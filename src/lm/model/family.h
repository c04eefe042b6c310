// A model family: how its config.json reads, what a block is made of, and how its tensors are called in
// published checkpoints. Everything else (embedding, head, loss, training, generation) is shared. A new
// family is one file like families/llama.cpp.
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

// Keys and values of earlier tokens: pages per layer, and which of them the rows of a pass belong to.
struct KvCache {
  std::vector<engine::KvCacheLayer> layers;  // of all blocks; those of other ranks have no memory
  turbo::PagedSequences sequences;
  engine::CachedSequences layer(std::int64_t index) const {
    return {&layers[static_cast<std::size_t>(index)], &sequences};
  }
};

// What the routers of a training step need besides hidden states: random numbers, what the microbatch's loss
// weighs in the sum over all, and counters in persistent memory, a row for each layer
// (those of multi-token prediction last).
struct RoutingStep {
  turbo::RouterRandom random;
  double loss_weight = 1;
  // With MoeConfig::Training::balance_step: who adds up over data ranks, how many these are, and loads of the
  // step so far.
  engine::DataParallel* parallel = nullptr;
  int data_ranks = 1;
  Tensor running;  // [layers, experts] int32
  Tensor load;     // [layers, experts + 1] int32 (turbo::ExpertLoad)
  Tensor losses;   // [layers, 2] fp32 (turbo::RouterLosses)
  // [layers, experts * bins] int32 (turbo::MarginHistogram), where biases are set by quantiles; else absent
  Tensor margins;
};

// The experts that one microbatch's tokens go to, and the pooled latents that an indexer chooses for them:
// noted down, or given instead of their own choice. What verification in bf16 needs, where rounding would
// choose between equals.
struct RoutingTrace {
  enum class Use : std::uint8_t { kRecord, kReplay } use = Use::kRecord;
  Tensor experts;   // [layers, T * top_k] int32, persistent
  Tensor selected;  // [layers, T * index_top_k] int32, persistent; absent without an indexer
};

// What every block gets besides the residual stream. T = batch * sequence tokens, of this context rank.
struct BlockInputs {
  std::int64_t batch = 0, sequence = 0;  // in generation they only multiply to T
  engine::Value positions = {};          // [T] int32
  Tensor rope_table = {};                // see turbo/rope/rope.h
  Tensor compressed_rope_table = {};     // of layers with pooled latents
  Tensor local_rope_table = {};          // of local layers, where they have one of their own
  engine::Value tokens = {};             // [T] int32, for layers whose experts are those of a table
  const KvCache* cache = nullptr;        // generation only
  // [T] int32: where each token's document begins in its sequence (turbo/attention/attention.h), of sequences
  // packed from documents; empty: at 0.
  engine::Value first_key = {};
  const RoutingStep* routing = nullptr;  // training only
  // Each token's number within the step's global batch (turbo::RouterRandom), with `routing` or `dropout`: [T
  // of all context ranks, in their order] int32.
  engine::Value token_numbers = {};
  // Training with dropout of adapters alone: what it draws by, without the tokens.
  const engine::DropoutSource* dropout = nullptr;
  const RoutingTrace* trace = nullptr;  // usually none
  // Context parallelism: the ranks that hold the rest of each sequence, of which `sequence` tokens are here;
  // null: nobody does.
  engine::ContextParallel* context = nullptr;
  // Tensor parallelism: collectives run beside products (engine/tensor_parallel.h); null: one after the
  // other.
  engine::TensorParallel* tensor = nullptr;
  // Expert parallelism: how tokens travel to experts of other ranks (engine/expert_parallel.h); with such
  // ranks.
  engine::ExpertParallel* experts = nullptr;
};

// One block of a decoder. Stateless but for its parameters, which live in the store.
class Block {
 public:
  virtual ~Block() = default;
  virtual void forward(engine::Residual& x, const BlockInputs& inputs) const = 0;
  // Enqueues what changes after a step besides what the optimizer does.
  virtual void end_step(turbo::Context&, const RoutingStep&) const {}
};

// The two ends of a residual stream that is wider than hidden states, [T, streams * hidden]
// (ModelConfig::streams). Stateless but for its parameters.
class StreamEnds {
 public:
  virtual ~StreamEnds() = default;
  // In front of the first block: [T, hidden] -> [T, streams * hidden].
  virtual engine::Value widen(const engine::Value& hidden) const = 0;
  // Between two stages of a pipeline: the whole of the stream as [T, streams * hidden], and the reverse in
  // front of block `layer`.
  virtual engine::Value pack(engine::Residual& x) const {
    flush(x);
    return x.sum;
  }
  virtual engine::Residual unpack(const engine::Value& packed, std::int64_t layer) const {
    static_cast<void>(layer);
    return {packed, {}};
  }
  // Behind the last one, in front of the final norm: the reverse of widen().
  virtual engine::Value contract(engine::Residual& x) const = 0;
};

// One of Megatron-LM's switches, and what it is in a family: the text of its value, "" for null.
struct FamilySwitch {
  std::string_view key, value;
};
inline constexpr std::string_view kEither = "either";  // the switch has no meaning in the family
inline constexpr std::string_view kChosen = "chosen";  // each model of the family has its own answer

struct Family {
  std::string model_type;    // "llama"
  std::string architecture;  // "LlamaForCausalLM"
  // Keys of config.json beyond the common ones: reads them, or refuses what the family here does not have.
  void (*read)(const nlohmann::json& json, ModelConfig& config);
  void (*write)(const ModelConfig& config, nlohmann::json& json);
  // Declares the parameters of block `layer` in the store's current unit and composes the block. `chunk` is
  // to be noted as their user.
  std::unique_ptr<Block> (*make_block)(const ModelConfig& config, engine::ParameterStore& store,
                                       std::int64_t layer, int chunk);
  // Where the family is not as most are (lm/model/model_settings.cpp has the list): add_qkv_bias: "true".
  // Experiments may say so, and nothing else.
  std::vector<FamilySwitch> switches = {};
  // Where config.json leaves out a key of the architecture, what transformers takes: a JSON object.
  std::string_view defaults = {};
  bool partial_rotary = false;  // heads may rotate in part (partial_rotary_factor)
  std::string_view final_norm = "model.norm.weight";
  // Other model_types that published models of this architecture have (Kimi K2).
  std::vector<std::string_view> other_names = {};
  // Keys of config.json that `read` knows and `write` does not always write, and those that published models
  // have and that have no say in what they compute. Any other that is neither common nor written gets a note.
  std::vector<std::string_view> other_keys = {};
  // What the names of published tensors begin with that are no part of the model here.
  std::vector<std::string_view> left_out = {};
  // {"num_experts", "num_local_experts"}: the first is another name of the second, and goes before it, as in
  // transformers (attribute_map).
  std::vector<std::pair<std::string_view, std::string_view>> aliases = {};
  std::string_view embedding = "model.embed_tokens.weight", head = "lm_head.weight";
  // Brings a config.json of another layout into the common one, before anything else is read.
  void (*prepare)(nlohmann::json& root) = nullptr;
  // rope_parameters has two objects, "main" with the base alone, and "compress" with the rest (DeepSeek-V4).
  bool rope_by_branch = false;
  // rope_parameters has two objects, "sliding_attention" with the base alone, and "full_attention" with the
  // rest (Gemma 3).
  bool rope_by_layer_type = false;
  // Keys in rope_parameters that `read` knows, or that have no say.
  std::vector<std::string_view> other_rope_keys = {};
  // For streams() > 1: declares the parameters of the ends in the store's current unit. `depth`: 0 for the
  // model's own, else that of a module of multi-token prediction. `chunk`: as above; widening needs no
  // parameters, so the rank that has the first part alone makes the ends with -1 and only widens.
  std::unique_ptr<StreamEnds> (*make_stream_ends)(const ModelConfig& config, engine::ParameterStore& store,
                                                  int depth, int chunk) = nullptr;
};

class FamilyRegistry {
 public:
  void add(Family family) { families_.push_back(std::move(family)); }
  // By its name, or another one of its. Throws Error(kUnsupported) with the nearest known name.
  const Family& find(std::string_view model_type) const;
  const std::vector<Family>& all() const { return families_; }

 private:
  std::vector<Family> families_;
};

// A built-in family's line in the registry. Its file in families/ defines it as
//   extern const FamilyEntry kLlama{[] { return Family{...}; }};
// where the build finds it (primus_entry_list in cmake/PrimusBuild.cmake).
struct FamilyEntry {
  Family (*make)();
};

// The families that come with Primus.
FamilyRegistry builtin_families();

// For make_block: declares a parameter used once, by `chunk`. Gradients of whole parameters are reduced over
// all ranks, since each sees other tokens, and those of a tensor rank's share over the ranks that have the
// same.
engine::Parameter& declare(engine::ParameterStore& store, int chunk, std::string name, Shape shape,
                           engine::Initializer initializer, std::vector<engine::CheckpointPart> parts,
                           engine::Placement placement = {});

}  // namespace primus
