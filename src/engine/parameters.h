// Parameters and their gradients, in flat buffers.
//
// A model's parameters are grouped into units (the embedding, one block, the head). A unit is one flat fp32
// buffer of master weights, an equal one of gradients, and in bf16 training a bf16 working copy: the grain of
// the optimizer, of checkpoints, and of sharding. Within a unit the decayed parameters come first and those
// that are not trained last, so that the optimizer sees two runs.
//
// A unit's buffers live in the rank's persistent arena. Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensor/arena.h"
#include "tensor/tensor.h"
#include "turbo/context.h"

namespace primus::engine {

// How a parameter starts. Random values are drawn by (seed, the parameter's name, element), whatever the
// layout and whichever other parameters there are.
struct Initializer {
  enum class Kind : std::uint8_t { kNormal, kConstant } kind = Kind::kConstant;
  float value = 0;  // the standard deviation, or the constant
  static Initializer normal(double std) { return {Kind::kNormal, static_cast<float>(std)}; }
  static Initializer constant(double value) { return {Kind::kConstant, static_cast<float>(value)}; }
};

// Axes of a published tensor that lie in another order than the parameter's: the rows of a part, seen as
// [dims...], have their axes permuted (published axis i is dims[axes[i]]) and are then given `shape`. The
// first axis stays the first.
struct PublishedLayout {
  std::vector<std::int64_t> dims;
  std::vector<int> axes;
  std::vector<std::int64_t> shape;
};

// A tensor of the published checkpoint: rows [row, row + rows) of a parameter, which is [rows, last extent]
// when all extents before the last are taken together (a vector's rows are its elements). Fused projections
// hold several parts (q, k and v, say), experts some for each of them.
struct CheckpointPart {
  std::string name;
  std::int64_t row = 0, rows = 0;
  PublishedLayout layout = {};  // empty: the rows as they are
  // Further tensors that are equal to this one where a checkpoint has them; all are written.
  std::vector<std::string> copies = {};
};

struct Parameter {
  std::string name;  // "layers.3.attention.qkv"
  Shape shape;       // [out, in], [n], or [experts, out, in]
  Initializer initializer;
  std::vector<CheckpointPart> parts;
  bool trainable = true;
  bool decay = true;        // false: no weight decay although it is no vector (the biases of experts)
  bool per_expert = false;  // the first axis is experts, of which a token meets a few
  // Always fp32, in checkpoints and for operators too: `value` is the master.
  bool full_precision = false;

  Tensor master;    // fp32
  Tensor value;     // what operators read: the bf16 working copy, or the master itself
  Tensor gradient;  // fp32; absent when nothing is trained

  int index = 0;                                              // position among all parameters
  std::int64_t offset = 0;                                    // in elements, within its unit
  bool decayed() const { return decay && shape.rank() > 1; }  // Megatron: not on norms and biases
  std::int64_t row_elements() const { return shape.rank() > 1 ? shape[shape.rank() - 1] : 1; }

  // Which chunk of the model uses it, once per use, in forward order: fixes the order in which gradients are
  // summed (see WeightGradientQueue).
  std::vector<int> uses;
  std::int64_t turn = 0;      // uses accounted for so far in this step
  bool has_gradient = false;  // the first contribution of a step assigns, later ones accumulate
};

struct ParameterUnit {
  std::string name;
  // What to do about weights that have no tensor of this unit; empty: nothing but to say what is missing.
  std::string if_missing;
  std::vector<Parameter*> parameters;
  std::int64_t elements = 0;          // of the flat buffers, padding included
  std::int64_t decayed_elements = 0;  // the decayed run [0, decayed_elements)
  std::int64_t trained_elements = 0;  // the run [decayed_elements, trained_elements) is trained, not decayed
  Tensor master, working, gradient, exp_avg, exp_avg_sq;  // [elements]; absent when not needed
};

class ParameterStore {
 public:
  // Declares a unit; the following add() calls go into it. Returned addresses are stable.
  ParameterUnit& begin_unit(std::string name);
  // `parts` empty means: one part of the parameter's own name.
  Parameter& add(std::string name, Shape shape, Initializer initializer,
                 std::vector<CheckpointPart> parts = {});

  // Published tensors whose names begin so belong to the model, and this use of it does without.
  void leave_out(std::string prefix) { left_out_.push_back(std::move(prefix)); }
  bool left_out(std::string_view published_name) const;

  struct Layout {
    DType compute = DType::kF32;  // fp32 or bf16
    bool gradients = true;        // false: inference
    bool optimizer_states = true;
  };
  // Lays every unit out and takes its buffers from `arena`. Call once, after the last add().
  void allocate(const Layout& layout, Arena& arena);

  // Enqueues the initial values (master and working copy).
  void initialize(turbo::Context& context, std::uint64_t seed);
  // Enqueues the refresh of the bf16 working copies from the masters; nothing in fp32.
  void refresh_working_copies(turbo::Context& context);
  // Starts a step: the next contribution to each gradient assigns it.
  void begin_step();
  // Ends a step: gradients that received nothing become zero.
  void finish_gradients(turbo::Context& context);

  std::deque<ParameterUnit>& units() { return units_; }
  const std::deque<ParameterUnit>& units() const { return units_; }
  std::deque<Parameter>& parameters() { return parameters_; }
  const std::deque<Parameter>& parameters() const { return parameters_; }
  std::int64_t elements() const;  // of all parameters, padding not counted
  const Layout& layout() const { return layout_; }

 private:
  std::deque<ParameterUnit> units_;
  std::deque<Parameter> parameters_;
  std::vector<std::string> left_out_;
  Layout layout_;
};

}  // namespace primus::engine
