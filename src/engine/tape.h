// The tape: run forward as plain C++, write down what ran, replay it backwards.
//
// Model code calls operators (engine/operators.h) on Values; each call runs its kernels at once and adds one
// small entry to the tape. backward() walks the entries in reverse. An operator splits its gradient into that
// of its inputs, which runs during the walk, and that of its weights, which goes through a
// WeightGradientQueue and may run much later (zero-bubble pipelines). Activations that a RecomputePolicy
// drops are replayed from their entries when needed, with the same kernels on the same inputs: bit-exact.
//
// One Tape holds one microbatch of one chunk of the model. Several may be alive at once, in any phase. All
// tapes of a rank share its stash and compute stream. Not thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/system/stop_request.h"
#include "engine/operator_call.h"
#include "engine/parameters.h"
#include "engine/precision.h"
#include "engine/recompute.h"
#include "engine/stash.h"
#include "tensor/tensor.h"
#include "turbo/context.h"

namespace primus::engine {

class DataParallel;
struct DropoutSource;  // engine/low_rank.h
class Tape;
class WeightGradientQueue;

// One activation of a tape, as model code holds it. Copies share it; when the last one goes, the memory goes
// too, unless the backward pass needs it.
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
  // The memory, valid while this Value lives. Only to be handed on to kernels and copies.
  Tensor tensor() const;

 private:
  friend class Tape;
  Value(Tape* tape, int slot);  // takes a share
  Tape* tape_ = nullptr;
  int slot_ = -1;
};

class Tape {
 public:
  struct Settings {
    bool train = true;  // false: nothing is recorded; Values free their memory as they go
    int chunk = 0;      // which part of the model on this rank
    std::int64_t microbatch = 0;
    RecomputePolicy recompute = {};
    PrecisionRecipe precision = {};
    WeightGradientQueue* weight_gradients = nullptr;  // needed when training
    DataParallel* parallel = nullptr;                 // null: all parameters and gradients have their memory
    bool adapters = true;                             // false: linear layers leave their adapters out
    const std::atomic<bool>* stop = nullptr;  // set by anybody: no further operator begins (StopRequest)
  };

  Tape(turbo::Context& context, Stash& stash) : context_(context), stash_(stash) {}
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;
  // A tape that an error left half-way is abandoned.
  ~Tape();

  // Starts over with an empty tape. All Values must be gone and all weight gradients done.
  void begin(const Settings& settings);
  void clear();
  // Leaves a forward or backward pass half-way, after StopRequest: nothing of it is done later. Gradients are
  // then worth nothing until a step begins anew (ParameterStore::begin_step). All Values must be gone.
  void abandon();

  // An input whose memory comes from the stash; fill it through Value::tensor(). `differentiable`: a gradient
  // is wanted.
  Value input(DType dtype, const Shape& shape, bool differentiable);
  // The same with memory that is there already; it is only read.
  Value input(DType dtype, const Shape& shape, bool differentiable, Buffer data);

  // ---- for operators: records and runs one call
  struct Output {
    DType dtype;
    Shape shape;
    bool differentiable = true;
  };
  struct NoAttributes {};
  // A null input at the end stands for one that the call does without.
  template <class Attributes = NoAttributes>
  std::array<Value, Entry::kMaxOutputs> record(const Operator& op, std::initializer_list<const Value*> inputs,
                                               Parameter* parameter, std::initializer_list<Output> outputs,
                                               const Attributes& attributes = {}) {
    static_assert(std::is_trivially_copyable_v<Attributes> &&
                  sizeof(Attributes) <= Entry::kMaxAttributeBytes);
    return record_bytes(op, inputs, parameter, outputs, &attributes, sizeof(Attributes));
  }

  // Operators called between these belong to block `layer`.
  void enter_block(std::int64_t layer) { layer_ = layer; }
  void leave_block() { layer_ = -1; }
  const RecomputePolicy& recompute() const { return settings_.recompute; }
  const PrecisionRecipe& precision() const { return settings_.precision; }
  // Whether outputs of an operator of this class that is called now are replayed in the backward pass.
  bool drops(OperatorClass c) const {
    return settings_.train && (replay_ || settings_.recompute.drops(c, layer_));
  }
  // Operators called while this is set are replayed in the backward pass, whatever the policy says; returns
  // what it was before.
  bool set_replay(bool replay) { return std::exchange(replay_, replay); }
  // What adapters' dropout draws by; null: there is none (DropoutScope).
  const DropoutSource* dropout() const { return dropout_; }
  void set_dropout(const DropoutSource* source) { dropout_ = source; }
  bool training() const { return settings_.train; }
  // The adapter of a linear layer on this tape; empty: it has none, or the tape leaves adapters out.
  const LowRank& adapter_of(const Parameter& weight) const {
    static const LowRank kNone;
    return settings_.adapters ? weight.low_rank : kNone;
  }
  // Parameters may have no values but while an operator runs that names them: no other may be read.
  bool gathers_parameters() const { return settings_.parallel != nullptr; }

  // ---- backward
  // Seeds the gradient of an output of this chunk (a copy is taken on the stream).
  void set_gradient(const Value& value, const Tensor& gradient);
  // The same for the value in `slot`, which need not be held any more, without a copy. Empty: none. Where the
  // value is not differentiable the gradient is dropped.
  void set_gradient(int slot, Buffer gradient);
  // Walks the tape back: input gradients now, weight gradients into the queue. Call once.
  void backward();
  // The gradient of a differentiable input, valid after backward() until clear().
  Tensor gradient(const Value& value) const;

  // The memory of a value, and of its gradient after backward(), for another tape or a transfer. It stays as
  // long as the Buffer does.
  Buffer share(const Value& value) const { return slots_[value.slot_].data; }
  Buffer share_gradient(const Value& value) const { return slots_[value.slot_].gradient; }
  // Whether no weight gradient of this tape waits in the queue.
  bool settled() const { return pending_weight_gradients_ == 0; }

  int chunk() const { return settings_.chunk; }
  std::int64_t microbatch() const { return settings_.microbatch; }
  turbo::Context& context() const { return context_; }

  // Called after every forward of an operator whose outputs are settled, replays included: to look for the
  // first NaN.
  using Observer = std::function<void(OperatorCall&)>;
  void set_observer(Observer observer) { observer_ = std::move(observer); }

 private:
  friend class Value;
  friend class OperatorCall;
  friend class WeightGradientQueue;

  struct Slot {
    DType dtype = DType::kF32;
    Shape shape;
    Buffer data, gradient;
    int producer = -1;  // entry, or -1 for an input
    int handles = 0;    // Values alive
    int uses = 0;       // backward computations that will still read it
    bool differentiable = false;
    bool dropped = false;   // uses do not keep the memory before backward: it is replayed for them
    bool external = false;  // an input: its memory stays until clear()
  };

  std::array<Value, Entry::kMaxOutputs> record_bytes(const Operator& op,
                                                     std::initializer_list<const Value*> inputs,
                                                     Parameter* parameter,
                                                     std::initializer_list<Output> outputs,
                                                     const void* attributes, std::size_t attribute_bytes);
  // Throws StopRequest where a stop was asked for. Before each operator.
  void stop_if_asked() const;
  void release_handle(int slot);
  void drop_if_idle(int slot);
  void add_use(int slot) { ++slots_[slot].uses; }
  void release_use(int slot);
  void release_saves(const Entry& entry, const Saves& saves);
  void acquire_saves(const Entry& entry, const Saves& saves);
  void materialize(int slot);
  void materialize_saves(const Entry& entry, const Saves& saves);
  void use_parameter(const Entry& entry);
  void run_forward(int entry);
  void replay(int entry);
  void release_outputs(const Entry& entry);
  void backward_entry(int entry);
  // Runs the weight gradient of an entry and lets go of what it held.
  void run_weight_gradient(int entry);

  turbo::Context& context_;
  Stash& stash_;
  Settings settings_;
  Observer observer_;
  std::vector<Slot> slots_;
  std::vector<Entry> entries_;
  std::vector<int> free_slots_;  // recycled when nothing is recorded
  std::int64_t layer_ = -1;
  bool replay_ = false;
  const DropoutSource* dropout_ = nullptr;
  int pending_weight_gradients_ = 0;
  bool in_backward_ = false;
};

}  // namespace primus::engine
