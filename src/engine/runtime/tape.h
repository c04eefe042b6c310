// The tape: runs the model forward as plain C++, records each call, and replays the record backwards.
//
// Model code calls operators (engine/operators/operators.h) on Values; each call runs its kernels immediately
// and adds one small entry to the tape. backward() walks the entries in reverse. An operator has an input
// gradient and a weight gradient. The input gradient runs during the walk. The weight gradient goes through a
// WeightGradientQueue and may run much later (zero-bubble pipelines). Activations that a RecomputePolicy
// drops are replayed from their entries when needed. The replay runs the same kernels on the same inputs, so
// results have the same bits.
//
// One Tape holds one microbatch of one chunk of the model. Several tapes may exist at the same time, in any
// phase. All tapes of a rank share its stash and compute stream. Not thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/system/stop_request.h"
#include "engine/runtime/operator_call.h"
#include "engine/runtime/parameters.h"
#include "engine/runtime/precision.h"
#include "engine/runtime/recompute.h"
#include "engine/runtime/stash.h"
#include "tensor/tensor.h"
#include "turbo/context.h"

namespace primus::engine {

class DataParallel;
struct DropoutSource;   // engine/operators/low_rank.h
struct RowAdapterPass;  // engine/operators/row_adapters.h
class Tape;
class WeightGradientQueue;

// Model code's handle to one activation of a tape. Copies share the activation. When the last copy is
// destroyed, the memory is freed, except if the backward pass needs it.
class Value {
 public:
  Value() = default;
  Value(const Value& other);
  Value(Value&& other) noexcept : tape_(std::exchange(other.tape_, nullptr)), slot_(other.slot_) {}
  Value& operator=(Value other) noexcept {
    std::swap(tape_, other.tape_);
    std::swap(slot_, other.slot_);
    return *this;
  }
  ~Value();

  explicit operator bool() const { return tape_ != nullptr; }
  Tape& tape() const { return *tape_; }
  int slot() const { return slot_; }
  const Shape& shape() const;
  DType dtype() const;
  // Returns the memory, valid while this Value lives. Use it only as an argument of kernels and copies.
  Tensor tensor() const;

 private:
  friend class Tape;
  Value(Tape* tape, int slot);  // one more owner of the slot
  Tape* tape_ = nullptr;
  int slot_ = -1;
};

class Tape {
 public:
  struct Settings {
    bool train = true;  // false: records nothing; memory is freed with its last Value
    int chunk = 0;      // the rank's chunk of the model
    std::int64_t microbatch = 0;
    RecomputePolicy recompute = {};
    PrecisionRecipe precision = {};
    WeightGradientQueue* weight_gradients = nullptr;  // required for training
    DataParallel* parallel = nullptr;                 // null: all parameters and gradients are resident
    bool adapters = true;                             // false: linear layers omit their adapters
    const RowAdapterPass* row_adapters = nullptr;     // adapters that differ between rows; null: none
    const std::atomic<bool>* stop = nullptr;  // any thread may set this flag; then no further operator begins
                                              // (StopRequest)
  };

  Tape(turbo::Context& context, Stash& stash) : context_(context), stash_(stash) {}
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;
  // Abandons the pass if an error interrupted it.
  ~Tape();

  // Starts again with an empty tape. All Values must be destroyed and all weight gradients done.
  void begin(const Settings& settings);
  void clear();
  // Abandons a forward or backward pass, after StopRequest: drops all its pending work. Gradients are invalid
  // until the next step begins (DataParallel::begin_step). All Values must be destroyed.
  void abandon();

  // Makes an input with memory from the stash, which the caller fills through Value::tensor().
  // `differentiable`: its gradient is needed.
  Value input(DType dtype, const Shape& shape, bool differentiable);
  // Makes an input from existing memory, which is only read.
  Value input(DType dtype, const Shape& shape, bool differentiable, Buffer data);

  // ---- for operators: recording and running one call
  struct Input {
    InputPlace at;
    const Value& value;  // empty: the call has no such input
  };
  struct Output {
    OutputPlace at;
    DType dtype;
    Shape shape;
    bool differentiable = true;
  };
  // The outputs of a call, by their names. Outputs that the call does not have are empty.
  struct Outputs {
    std::array<Value, Entry::kMaxOutputs> values;
    Value& operator[](OutputPlace j) { return values[static_cast<std::size_t>(j.index())]; }
  };
  struct NoAttributes {};
  // Outputs are given in the order of their names. Trailing outputs may be omitted.
  template <class Attributes = NoAttributes>
  Outputs record(const Operator& op, std::initializer_list<Input> inputs, Parameter* parameter,
                 std::initializer_list<Output> outputs, const Attributes& attributes = {}) {
    static_assert(std::is_trivially_copyable_v<Attributes> &&
                  sizeof(Attributes) <= Entry::kMaxAttributeBytes);
    return record_bytes(op, inputs, parameter, outputs, &attributes, sizeof(Attributes));
  }

  // Operators called between enter_block() and leave_block() belong to block `layer`.
  void enter_block(std::int64_t layer) { layer_ = layer; }
  void leave_block() { layer_ = -1; }
  const RecomputePolicy& recompute() const { return settings_.recompute; }
  const PrecisionRecipe& precision() const { return settings_.precision; }
  // Returns whether the backward pass computes an operator of this class again, if it is called now.
  bool drops(OperatorClass c) const {
    return settings_.train && (replay_ || settings_.recompute.drops(c, layer_));
  }
  // While the setting is true, the backward pass computes called operators again under any policy. Returns
  // the previous setting.
  bool set_replay(bool replay) { return std::exchange(replay_, replay); }
  // Returns the random source of adapters' dropout; null: no dropout (DropoutScope).
  const DropoutSource* dropout() const { return dropout_; }
  void set_dropout(const DropoutSource* source) { dropout_ = source; }
  bool training() const { return settings_.train; }
  // Returns the adapter of a linear layer; empty if there is none, or if this tape omits adapters.
  const LowRank& adapter_of(const Parameter& weight) const {
    static const LowRank kNone;
    return settings_.adapters ? weight.low_rank : kNone;
  }
  // Like adapter_of(), for LowRank::parts.
  std::span<const LowRank> part_adapters_of(const Parameter& weight) const {
    return settings_.adapters ? std::span<const LowRank>(weight.low_rank.parts) : std::span<const LowRank>();
  }
  const RowAdapterPass* row_adapters() const { return settings_.row_adapters; }
  // Returns whether parameters are gathered. If so, an operator may read only its own parameter, whose values
  // exist while the operator runs.
  bool gathers_parameters() const { return settings_.parallel != nullptr; }

  // ---- backward
  // Sets the gradient of an output of this chunk (copied on the stream).
  void set_gradient(const Value& value, const Tensor& gradient);
  // Sets the gradient of the value in `slot` without a copy, even if no Value holds the slot any more. Empty:
  // no gradient. Drops the gradient if the value is not differentiable.
  void set_gradient(int slot, Buffer gradient);
  // Walks the tape backwards: runs input gradients immediately, and queues weight gradients. Call once.
  void backward();
  // Returns the gradient of a differentiable input. Valid after backward(), until clear().
  Tensor gradient(const Value& value) const;

  // Return the memory of a value or, after backward(), of its gradient, for another tape or a transfer. The
  // memory lives as long as the Buffer.
  Buffer share(const Value& value) const { return slots_[value.slot_].data; }
  Buffer share_gradient(const Value& value) const { return slots_[value.slot_].gradient; }
  // Returns whether the queue has no weight gradient of this tape.
  bool settled() const { return pending_weight_gradients_ == 0; }

  int chunk() const { return settings_.chunk; }
  std::int64_t microbatch() const { return settings_.microbatch; }
  turbo::Context& context() const { return context_; }

  // Called after each forward call, including replays, of operators whose outputs are complete. Used to find
  // the first NaN.
  using Observer = std::function<void(OperatorCall&)>;
  void set_observer(Observer observer) { observer_ = std::move(observer); }
  // Called in the backward pass for each complete gradient of an input (`of`: null) or of a parameter.
  // Gradients of rows that some operator does not write are omitted. Used to find the first NaN.
  using GradientObserver = std::function<void(OperatorCall&, const Parameter* of, const Tensor& gradient)>;
  void set_gradient_observer(GradientObserver observer) { gradient_observer_ = std::move(observer); }

 private:
  friend class Value;
  friend class OperatorCall;
  friend class WeightGradientQueue;

  struct Slot {
    DType dtype = DType::kF32;
    Shape shape;
    Buffer data, gradient;
    int producer = -1;  // index of the entry, or -1 for an input
    int handles = 0;    // live Values
    int uses = 0;       // number of pending backward computations that read this slot
    bool differentiable = false;
    bool dropped = false;   // freed after the forward pass; the backward pass replays it
    bool external = false;  // input of the tape: its memory lives until clear()
  };

  Outputs record_bytes(const Operator& op, std::initializer_list<Input> inputs, Parameter* parameter,
                       std::initializer_list<Output> outputs, const void* attributes,
                       std::size_t attribute_bytes);
  // Throws StopRequest if a stop was requested. Called before each operator.
  void stop_if_asked() const;
  void release_handle(int slot);
  void drop_if_idle(int slot);
  void add_use(int slot) { ++slots_[slot].uses; }
  void release_use(int slot);
  void release_saves(const Entry& entry, const Saves& saves);
  void acquire_saves(const Entry& entry, const Saves& saves);
  // Returns memory for an output of a call of `op`.
  Buffer memory_for(const Operator& op, const Slot& slot);
  void materialize(int slot);
  void materialize_saves(const Entry& entry, const Saves& saves);
  void use_parameter(const Entry& entry);
  void run_forward(int entry);
  void replay(int entry);
  void release_outputs(const Entry& entry);
  void backward_entry(int entry);
  void observe_gradients(const Entry& entry, OperatorCall& call);
  // Runs the weight gradient of an entry and releases the values that it held.
  void run_weight_gradient(int entry);

  turbo::Context& context_;
  Stash& stash_;
  Settings settings_;
  Observer observer_;
  GradientObserver gradient_observer_;
  std::vector<Slot> slots_;
  std::vector<Entry> entries_;
  std::vector<int> free_slots_;  // reused by tapes that do not record
  std::int64_t layer_ = -1;
  bool replay_ = false;
  const DropoutSource* dropout_ = nullptr;
  int pending_weight_gradients_ = 0;
  bool in_backward_ = false;
};

}  // namespace primus::engine
