// An operator of the tape (engine/runtime/tape.h), a recorded call of an operator (Entry), and OperatorCall,
// the view of a call for the operator's functions.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <type_traits>

#include "engine/runtime/parameters.h"
#include "engine/runtime/precision.h"
#include "engine/runtime/recompute.h"
#include "engine/runtime/stash.h"
#include "tensor/tensor.h"
#include "turbo/context.h"

namespace primus::engine {

class OperatorCall;
class Tape;

// Every operator names its inputs and outputs, in a struct next to its functions:
//
//   struct AddNorm {
//     enum In : InputName { kX, kDelta };
//     enum Out : OutputName { kSum, kY, kRstd };
//   };
//
// A call is recorded with these names, and the operator's functions access tensors by name. A plain number in
// place of a name does not compile. Inputs and outputs have different types, so an output's name does not
// compile where an input is expected.
using InputName = std::int8_t;
using OutputName = std::int16_t;

template <class Enum, class Name>
concept NamesPlace = std::is_enum_v<Enum> && std::convertible_to<Enum, int> &&
    std::same_as<std::underlying_type_t<Enum>, Name>;

// The place of an input or of an output in a call: its name, or the counter of a loop.
template <class Name>
class Place {
 public:
  template <NamesPlace<Name> Enum>
  constexpr Place(Enum name) : index_(name) {}  // NOLINT(google-explicit-constructor)
  template <std::same_as<int> Int>
  explicit constexpr Place(Int index) : index_(index) {}
  constexpr int index() const { return index_; }

 private:
  int index_;
};
using InputPlace = Place<InputName>;
using OutputPlace = Place<OutputName>;

// Names of the input and output of operators that turn one tensor into another.
struct Unary {
  enum In : InputName { kX };
  enum Out : OutputName { kY };
};

// The inputs and outputs that a gradient computation needs, as bit sets. saves() makes such a set.
struct Saves {
  std::uint8_t inputs = 0, outputs = 0;

  constexpr void add(InputPlace i) { inputs = static_cast<std::uint8_t>(inputs | 1U << i.index()); }
  constexpr void add(OutputPlace j) { outputs = static_cast<std::uint8_t>(outputs | 1U << j.index()); }
};
// Returns the set of the named inputs and outputs. A call ignores names that it does not have.
template <class... Names>
constexpr Saves saves(Names... names) {
  Saves set;
  (set.add(names), ...);
  return set;
}

// A training operator: stateless functions over one entry of a tape.
struct Operator {
  std::string_view name;
  OperatorClass operator_class;
  void (*forward)(OperatorCall&);
  // Recomputes all other outputs from output 0. If a policy drops outputs of the operator's class, the tape
  // then keeps output 0 instead of the inputs. Null: all outputs are replayed from the inputs.
  void (*from_first)(OperatorCall&) = nullptr;
  void (*backward_input)(OperatorCall&) = nullptr;   // null: no input is differentiable
  void (*backward_weight)(OperatorCall&) = nullptr;  // null: no weights
  Saves for_input = {};                              // needed by backward_input
  Saves for_weight = {};  // needed by backward_weight, besides the gradients of the outputs
  // the backward pass does not read input 0, so output 0 may reuse its memory
  bool in_place = false;
  bool is_loss = false;  // gradients start at this operator, so backward_input always runs
  bool weight_reads_parameter =
      false;               // backward_weight reads the parameter (other functions may always read it)
  bool once = false;       // the call also updates counters, so its outputs are never dropped or replayed
  bool unsettled = false;  // outputs are still in flight, or some of their rows are never written
  bool hollow = false;     // outputs have no memory, only gradients; needs `unsettled`
};

// One recorded call. It has a fixed size and needs no heap memory.
struct Entry {
  static constexpr int kMaxInputs = 5, kMaxOutputs = 3, kMaxAttributeBytes = 384;

  const Operator* op = nullptr;
  std::array<int, kMaxInputs> inputs{};  // indexed by position; below 0: the call has no such input
  std::array<int, kMaxOutputs> outputs{};
  std::uint8_t input_count = 0, output_count = 0;  // positions up to the last one in use
  bool dropped = false;      // the outputs are replayed when the backward pass needs them
  bool keeps_first = false;  // output 0 is not dropped (Operator::from_first)
  bool weight_done = false;  // backward_input has already contributed the weight gradient (fused)
  Parameter* parameter = nullptr;
  std::int32_t layer = -1;
  alignas(8) std::array<std::byte, kMaxAttributeBytes> attributes{};

  bool has_input(int i) const { return i < input_count && inputs[static_cast<std::size_t>(i)] >= 0; }
};

// A recorded call, as its operator's functions see it.
class OperatorCall {
 public:
  OperatorCall(Tape& tape, int entry) : tape_(tape), entry_(entry) {}

  turbo::Context& context() const;
  Tensor in(InputPlace i) const;
  Tensor out(OutputPlace j) const;
  bool has_in(InputPlace i) const { return entry().has_input(i.index()); }
  // Returns input i, or an absent tensor if the call has no such input.
  Tensor optional_in(InputPlace i) const { return has_in(i) ? in(i) : Tensor(); }
  // Returns the shape of input i, even after the input's memory is released.
  const Shape& in_shape(InputPlace i) const;
  // Returns input i or, if output j reuses its memory (in-place operators), output j.
  Tensor in_or_out(InputPlace i, OutputPlace j) const;
  bool has_parameter() const { return entry().parameter != nullptr; }
  Parameter& parameter() const;
  Tensor weight() const { return parameter().value; }
  const PrecisionRecipe& precision() const;
  bool training() const;
  template <class T>
  T attributes() const {
    T value;
    std::memcpy(&value, entry().attributes.data(), sizeof(T));
    return value;
  }

  // Returns the gradient of output j; absent if there is none.
  Tensor d_out(OutputPlace j) const;
  // Returns whether the gradient of input i is needed; false if the call has no such input.
  bool needs_d_in(InputPlace i) const;
  // The memory for the gradient of input i. `previous`: the gradient from other operators that read this
  // input, or absent. The operator must write `previous` plus its own contribution to `out`. `previous` and
  // `out` may be the same memory.
  struct Target {
    Tensor out, previous;
  };
  Target d_in(InputPlace i);
  // Like d_in(), for kernels that overwrite and cannot accumulate: `out` and `previous` are different memory,
  // and `previous` stays readable for the kernels of this call. The operator adds `previous` afterwards.
  Target fresh_d_in(InputPlace i);
  // Like fresh_d_in(), for kernels that may overwrite input i: `out` is the input's memory if no later
  // operator reads this input.
  Target d_in_over_in(InputPlace i);
  // Passes the gradient of output j to input i unchanged, without a copy.
  void pass_d_in(InputPlace i, OutputPlace j);
  // Adds `part` to the gradient of input i, or makes it the gradient without a copy.
  void take_d_in(InputPlace i, Buffer part);
  // Returns memory in which the call can complete the gradient of output j. This is the memory of d_out(j) if
  // only this call reads it.
  Tensor complete_d_out(OutputPlace j);

  // Memory for the weight gradient, in its unit's type. `accumulate` false: assign, because this is the first
  // contribution. For kernels that write only fp32: engine/operators/fp32_weight_gradient.h.
  struct WeightTarget {
    Tensor out;
    bool accumulate;
  };
  WeightTarget d_weight() const;
  // For operators whose input and weight gradients share work: true if backward_input may contribute the
  // weight gradient now. In that case the operator must call weight_gradient_done() afterwards.
  bool weight_gradient_now() const;
  void weight_gradient_done();

  std::string_view name() const { return entry().op->name; }
  int layer() const { return entry().layer; }
  int output_count() const { return entry().output_count; }

 private:
  const Entry& entry() const;
  Tape& tape_;
  int entry_;
  std::array<Buffer, Entry::kMaxInputs> replaced_;  // gradients that kernels of this call still read
};

// Adds the gradient from other operators that read the input. An operator that wrote to fresh_d_in() calls it
// last.
void add_previous(OperatorCall& op, const OperatorCall::Target& target);

}  // namespace primus::engine
