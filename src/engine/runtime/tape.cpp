#include "engine/runtime/tape.h"

#include <algorithm>
#include <cassert>

#include "base/check.h"
#include "engine/parallel/data_parallel.h"
#include "engine/runtime/four_bit_storage.h"
#include "engine/runtime/weight_gradient_queue.h"
#include "turbo/elementwise/elementwise.h"

namespace primus::engine {

// --- Value

Value::Value(Tape* tape, int slot) : tape_(tape), slot_(slot) { ++tape_->slots_[slot].handles; }

Value::Value(const Value& other) : tape_(other.tape_), slot_(other.slot_) {
  if (tape_) ++tape_->slots_[slot_].handles;
}

Value::~Value() {
  if (tape_) tape_->release_handle(slot_);
}

const Shape& Value::shape() const { return tape_->slots_[slot_].shape; }
DType Value::dtype() const { return tape_->slots_[slot_].dtype; }

Tensor Value::tensor() const {
  const Tape::Slot& slot = tape_->slots_[slot_];
  PRIMUS_CHECK("Value::tensor", slot.data);
  return slot.data.view(slot.dtype, slot.shape);
}

// --- OperatorCall

const Entry& OperatorCall::entry() const { return tape_.entries_[entry_]; }
turbo::Context& OperatorCall::context() const { return tape_.context_; }
Parameter& OperatorCall::parameter() const { return *entry().parameter; }
const PrecisionRecipe& OperatorCall::precision() const { return tape_.precision(); }
bool OperatorCall::training() const { return tape_.training(); }

Tensor OperatorCall::in(InputPlace i) const {
  PRIMUS_CHECK(entry().op->name.data(), has_in(i));
  const Tape::Slot& slot = tape_.slots_[entry().inputs[i.index()]];
  PRIMUS_CHECK(entry().op->name.data(), slot.data);
  return slot.data.view(slot.dtype, slot.shape);
}

Tensor OperatorCall::out(OutputPlace j) const {
  const Tape::Slot& slot = tape_.slots_[entry().outputs[j.index()]];
  PRIMUS_CHECK(entry().op->name.data(), slot.data);
  return slot.data.view(slot.dtype, slot.shape);
}

const Shape& OperatorCall::in_shape(InputPlace i) const {
  return tape_.slots_[entry().inputs[i.index()]].shape;
}

Tensor OperatorCall::in_or_out(InputPlace i, OutputPlace j) const {
  return tape_.slots_[entry().inputs[i.index()]].data ? in(i) : out(j);
}

Tensor OperatorCall::d_out(OutputPlace j) const {
  const Tape::Slot& slot = tape_.slots_[entry().outputs[j.index()]];
  return slot.gradient ? slot.gradient.view(slot.dtype, slot.shape) : Tensor();
}

bool OperatorCall::needs_d_in(InputPlace i) const {
  return has_in(i) && tape_.slots_[entry().inputs[i.index()]].differentiable;
}

OperatorCall::Target OperatorCall::d_in(InputPlace i) {
  Tape::Slot& slot = tape_.slots_[entry().inputs[i.index()]];
  if (!slot.gradient.unique()) return fresh_d_in(i);
  const Tensor gradient = slot.gradient.view(slot.dtype, slot.shape);
  return {gradient, gradient};
}

OperatorCall::Target OperatorCall::fresh_d_in(InputPlace i) {
  Tape::Slot& slot = tape_.slots_[entry().inputs[i.index()]];
  Target target;
  if (slot.gradient) target.previous = slot.gradient.view(slot.dtype, slot.shape);
  // The operator may allocate more memory, so the old buffer is held until the operator is done.
  Buffer fresh = tape_.stash_.allocate(slot.shape.elements() * size_of(slot.dtype));
  target.out = fresh.view(slot.dtype, slot.shape);
  replaced_[static_cast<std::size_t>(i.index())] = std::exchange(slot.gradient, std::move(fresh));
  return target;
}

OperatorCall::Target OperatorCall::d_in_over_in(InputPlace i) {
  const Entry& e = entry();
  Tape::Slot& slot = tape_.slots_[e.inputs[i.index()]];
  // Uses of the input by this entry: for its gradient, and for its replay.
  const int own = (e.op->for_input.inputs >> i.index() & 1) + (e.dropped && !e.keeps_first ? 1 : 0);
  const bool wanted = slot.handles > 0 || slot.uses > own || slot.external || !slot.data.unique();
  if (wanted || slot.gradient) return fresh_d_in(i);
  slot.gradient = slot.data;
  return {slot.gradient.view(slot.dtype, slot.shape), {}};
}

Tensor OperatorCall::complete_d_out(OutputPlace j) {
  Tape::Slot& slot = tape_.slots_[entry().outputs[j.index()]];
  if (!slot.gradient.unique())
    slot.gradient = tape_.stash_.allocate(slot.shape.elements() * size_of(slot.dtype));
  return slot.gradient.view(slot.dtype, slot.shape);
}

void add_previous(OperatorCall& op, const OperatorCall::Target& target) {
  if (target.previous.absent()) return;
  launch(op.context(), turbo::Add{.a = target.previous, .b = target.out, .out = target.out});
}

void OperatorCall::pass_d_in(InputPlace i, OutputPlace j) {
  take_d_in(i, tape_.slots_[entry().outputs[j.index()]].gradient);
}

void OperatorCall::take_d_in(InputPlace i, Buffer part) {
  if (!needs_d_in(i)) return;
  Tape::Slot& to = tape_.slots_[entry().inputs[i.index()]];
  if (!to.gradient) {
    to.gradient = std::move(part);
    return;
  }
  const Tensor addend = part.view(to.dtype, to.shape);
  const Target target = d_in(i);
  turbo::launch(context(), turbo::Add{.a = target.previous, .b = addend, .out = target.out});
}

OperatorCall::WeightTarget OperatorCall::d_weight() const {
  Parameter& p = parameter();
  if (tape_.settings_.parallel) tape_.settings_.parallel->before_gradient(p);
  const bool accumulate = p.has_gradient;
  p.has_gradient = true;
  return {p.gradient, accumulate};
}

bool OperatorCall::weight_gradient_now() const {
  return parameter().trainable && tape_.settings_.weight_gradients->in_turn_now(tape_, entry_);
}

void OperatorCall::weight_gradient_done() { tape_.entries_[entry_].weight_done = true; }

// --- Tape: forward

Buffer Tape::memory_for(const Operator& op, const Slot& slot) {
  return stash_.allocate(op.hollow ? 0 : slot.shape.elements() * size_of(slot.dtype));
}

Tape::~Tape() {
  if (settled()) {
    clear();
  } else {
    abandon();
  }
}

void Tape::begin(const Settings& settings) {
  PRIMUS_CHECK("Tape::begin", settled());
  PRIMUS_CHECK("Tape::begin",
               std::ranges::all_of(slots_, [](const Slot& slot) { return slot.handles == 0; }));
  clear();
  settings_ = settings;
  layer_ = -1;
  if (settings_.parallel) {
    settings_.parallel->begin_pass(settings_.train      ? DataParallel::Pass::kForward
                                   : settings_.adapters ? DataParallel::Pass::kEvaluation
                                                        : DataParallel::Pass::kBase,
                                   settings_.chunk);
  }
}

void Tape::clear() {
  assert(pending_weight_gradients_ == 0);
  slots_.clear();
  entries_.clear();
  free_slots_.clear();
  in_backward_ = false;
}

void Tape::stop_if_asked() const {
  if (settings_.stop && settings_.stop->load(std::memory_order_relaxed)) throw StopRequest();
}

void Tape::abandon() {
  if (settings_.weight_gradients) settings_.weight_gradients->forget(*this);
  pending_weight_gradients_ = 0;
  clear();
}

Value Tape::input(DType dtype, const Shape& shape, bool differentiable) {
  return input(dtype, shape, differentiable, stash_.allocate(shape.elements() * size_of(dtype)));
}

Value Tape::input(DType dtype, const Shape& shape, bool differentiable, Buffer data) {
  Slot slot;
  slot.dtype = dtype;
  slot.shape = shape;
  slot.differentiable = differentiable && settings_.train;
  slot.external = settings_.train;
  slot.data = std::move(data);
  slots_.push_back(std::move(slot));
  return {this, static_cast<int>(slots_.size()) - 1};
}

Tape::Outputs Tape::record_bytes(const Operator& op, std::initializer_list<Input> inputs,
                                 Parameter* parameter, std::initializer_list<Output> outputs,
                                 const void* attributes, std::size_t attribute_bytes) {
  PRIMUS_CHECK(op.name.data(), outputs.size() <= Entry::kMaxOutputs);
  stop_if_asked();
  Entry entry;
  entry.op = &op;
  entry.parameter = parameter;
  entry.layer = static_cast<std::int32_t>(layer_);
  std::memcpy(entry.attributes.data(), attributes, attribute_bytes);
  bool differentiable = parameter && parameter->trainable;
  entry.inputs.fill(-1);
  for (const auto& [at, value] : inputs) {
    if (!value) continue;
    const int i = at.index();
    PRIMUS_CHECK(op.name.data(), i >= 0 && i < Entry::kMaxInputs && !entry.has_input(i));
    entry.inputs[i] = value.slot_;
    entry.input_count = std::max(entry.input_count, static_cast<std::uint8_t>(i + 1));
    differentiable = differentiable || slots_[value.slot_].differentiable;
  }
  differentiable = differentiable && settings_.train;
  entry.dropped = differentiable && !op.once && drops(op.operator_class);
  entry.keeps_first = entry.dropped && op.from_first && !replay_ && !settings_.recompute.full(layer_);

  // Runs in place only if input 0 has no other reader and a replay can recompute it.
  const auto unread = [&](const Slot& first) {
    return first.handles == 1 && first.uses == 0 && !first.external && (!entry.dropped || first.dropped);
  };
  const bool take_over = op.in_place && unread(slots_[entry.inputs[0]]);

  Outputs recorded;
  const int entry_index = static_cast<int>(entries_.size());
  for (const Output& output : outputs) {
    PRIMUS_CHECK(op.name.data(), output.at.index() == entry.output_count);
    int index;
    if (!settings_.train && !free_slots_.empty()) {
      index = free_slots_.back();
      free_slots_.pop_back();
    } else {
      index = static_cast<int>(slots_.size());
      slots_.emplace_back();
    }
    Slot& slot = slots_[index];
    slot = Slot{};
    slot.dtype = output.dtype;
    slot.shape = output.shape;
    slot.producer = differentiable ? entry_index : -1;
    slot.differentiable = differentiable && output.differentiable;
    slot.dropped = entry.dropped && !(entry.keeps_first && entry.output_count == 0);
    if (entry.output_count == 0 && take_over) {
      slot.data = std::move(slots_[entry.inputs[0]].data);
    } else {
      slot.data = memory_for(op, slot);
    }
    entry.outputs[entry.output_count] = index;
    recorded.values[entry.output_count++] = Value(this, index);
  }
  entries_.push_back(entry);
  run_forward(entry_index);
  if (!differentiable) {
    entries_.pop_back();
    return recorded;
  }
  acquire_saves(entry, op.for_input);
  if (parameter && parameter->trainable && op.backward_weight) acquire_saves(entry, op.for_weight);
  if (entry.keeps_first) {
    add_use(entry.outputs[0]);
  } else if (entry.dropped) {
    for (int i = 0; i < entry.input_count; ++i) {
      if (entry.has_input(i)) add_use(entry.inputs[i]);  // the replay needs its inputs
    }
  }
  return recorded;
}

void Tape::use_parameter(const Entry& entry) {
  if (entry.parameter && settings_.parallel) settings_.parallel->use(*entry.parameter);
}

namespace {

// Sets the outputs to zero, so that an observer finds zero in the rows that no kernel writes.
void clear_outputs(const Operator& op, const OperatorCall& call) {
  // An in-place operator has its first output in the memory of its first input, which must not be cleared.
  constexpr int kFirst = 0;
  const OutputPlace first(kFirst);
  const bool in_place = op.in_place && call.in_or_out(InputPlace(kFirst), first).data == call.out(first).data;
  for (int j = in_place ? 1 : 0; j < call.output_count(); ++j) {
    const Tensor out = call.out(OutputPlace(j));
    if (out.dtype != DType::kI32) turbo::launch(call.context(), turbo::Fill{.out = out, .value = 0});
  }
}

}  // namespace

void Tape::run_forward(int entry) {
  OperatorCall call(*this, entry);
  use_parameter(entries_[entry]);
  const Operator& op = *entries_[entry].op;
  const ExpandedWeight expanded(context_, entries_[entry].parameter);
  const bool observed = observer_ && !op.unsettled;
  if (observed) clear_outputs(op, call);
  op.forward(call);
  if (observed) observer_(call);
}

void Tape::replay(int entry) {
  if (!entries_[entry].keeps_first) return run_forward(entry);
  OperatorCall call(*this, entry);
  use_parameter(entries_[entry]);
  const ExpandedWeight expanded(context_, entries_[entry].parameter);
  entries_[entry].op->from_first(call);
  if (observer_) observer_(call);
}

void Tape::release_handle(int slot) {
  --slots_[slot].handles;
  drop_if_idle(slot);
}

void Tape::release_use(int slot) {
  --slots_[slot].uses;
  drop_if_idle(slot);
}

void Tape::drop_if_idle(int index) {
  Slot& slot = slots_[index];
  if (slot.handles > 0 || slot.external) return;
  // Pending uses keep memory that cannot be replayed. During backward(), they also keep memory that was
  // already replayed.
  if (slot.uses > 0 && (!slot.dropped || in_backward_)) return;
  slot.data.reset();
  if (!settings_.train) free_slots_.push_back(index);
}

void Tape::acquire_saves(const Entry& entry, const Saves& saves) {
  for (int i = 0; i < entry.input_count; ++i) {
    if (entry.has_input(i) && (saves.inputs >> i & 1)) add_use(entry.inputs[i]);
  }
  for (int i = 0; i < entry.output_count; ++i) {
    if (saves.outputs >> i & 1) add_use(entry.outputs[i]);
  }
}

void Tape::release_saves(const Entry& entry, const Saves& saves) {
  for (int i = 0; i < entry.input_count; ++i) {
    if (entry.has_input(i) && (saves.inputs >> i & 1)) release_use(entry.inputs[i]);
  }
  for (int i = 0; i < entry.output_count; ++i) {
    if (saves.outputs >> i & 1) release_use(entry.outputs[i]);
  }
}

// --- Tape: backward

void Tape::set_gradient(const Value& value, const Tensor& gradient) {
  Slot& slot = slots_[value.slot_];
  PRIMUS_CHECK("Tape::set_gradient", slot.differentiable && !slot.gradient && gradient.dtype == slot.dtype);
  slot.gradient = stash_.allocate(gradient.bytes());
  if (!context_.measuring()) {
    context_.stream.copy_on_device(slot.gradient.view(slot.dtype, slot.shape).data, gradient.data,
                                   gradient.bytes());
  }
}

void Tape::set_gradient(int index, Buffer gradient) {
  Slot& slot = slots_[index];
  PRIMUS_CHECK("Tape::set_gradient", !slot.gradient);
  // The gradient is dropped if all parameters before the value are frozen, for example the embedding in LoRA
  // training.
  if (slot.differentiable) slot.gradient = std::move(gradient);
}

Tensor Tape::gradient(const Value& value) const {
  const Slot& slot = slots_[value.slot_];
  return slot.gradient ? slot.gradient.view(slot.dtype, slot.shape) : Tensor();
}

void Tape::materialize(int index) {
  if (slots_[index].data) return;
  stop_if_asked();
  const int producer = slots_[index].producer;
  PRIMUS_CHECK("Tape::materialize", producer >= 0 && entries_[producer].dropped);
  // A copy, in case the replay of inputs moves the entries.
  const Entry entry = entries_[producer];
  for (int i = 0; i < entry.input_count && !entry.keeps_first; ++i) {
    if (entry.has_input(i)) materialize(entry.inputs[i]);
  }
  for (int i = 0; i < entry.output_count; ++i) {
    Slot& slot = slots_[entry.outputs[i]];
    if (slot.data) continue;  // still resident: the replay rewrites it with the same bits
    if (i == 0 && entry.op->in_place && slots_[entry.inputs[0]].dropped) {
      slot.data = std::move(slots_[entry.inputs[0]].data);
    } else {
      slot.data = memory_for(*entry.op, slot);
    }
  }
  replay(producer);
  // Frees the outputs that are not needed: the replay wrote all of them.
  for (int i = 0; i < entry.output_count; ++i) drop_if_idle(entry.outputs[i]);
}

void Tape::materialize_saves(const Entry& entry, const Saves& saves) {
  for (int i = 0; i < entry.input_count; ++i) {
    if (entry.has_input(i) && (saves.inputs >> i & 1)) materialize(entry.inputs[i]);
  }
  for (int i = 0; i < entry.output_count; ++i) {
    if (saves.outputs >> i & 1) materialize(entry.outputs[i]);
  }
}

void Tape::backward() {
  PRIMUS_CHECK("Tape::backward", settings_.train && settings_.weight_gradients && !in_backward_);
  in_backward_ = true;
  if (settings_.parallel) settings_.parallel->begin_pass(DataParallel::Pass::kBackward, settings_.chunk);
  for (int e = static_cast<int>(entries_.size()) - 1; e >= 0; --e) backward_entry(e);
  // With the inline policy, a waiting weight gradient may run as soon as its turn comes.
  if (settings_.weight_gradients->policy() == WeightGradientQueue::Policy::kInline) {
    settings_.weight_gradients->run(*this);
  }
}

void Tape::backward_entry(int index) {
  stop_if_asked();
  const Entry entry = entries_[index];
  const Operator& op = *entry.op;
  bool reached = op.is_loss;
  for (int i = 0; i < entry.output_count; ++i) reached = reached || slots_[entry.outputs[i]].gradient;
  bool wants_input = op.is_loss;
  for (int i = 0; i < entry.input_count; ++i)
    wants_input = wants_input || (entry.has_input(i) && slots_[entry.inputs[i]].differentiable);
  const bool has_weight = entry.parameter && entry.parameter->trainable && op.backward_weight;

  OperatorCall call(*this, index);
  if (reached && has_weight) materialize_saves(entry, op.for_weight);
  if (reached && wants_input && op.backward_input) {
    materialize_saves(entry, op.for_input);
    use_parameter(entry);
    const ExpandedWeight expanded(context_, entry.parameter);
    op.backward_input(call);
    if (gradient_observer_) observe_gradients(entry, call);
  }
  release_saves(entry, op.for_input);
  if (entry.keeps_first) {
    release_use(entry.outputs[0]);
  } else if (entry.dropped) {
    for (int i = 0; i < entry.input_count; ++i) {
      if (entry.has_input(i)) release_use(entry.inputs[i]);
    }
  }
  if (!has_weight) {
    release_outputs(entry);
    return;
  }
  const bool nothing_to_do = !reached || entries_[index].weight_done;
  if (nothing_to_do) {
    release_saves(entry, op.for_weight);
    release_outputs(entry);
  } else {
    ++pending_weight_gradients_;
  }
  settings_.weight_gradients->push(*this, index, nothing_to_do);
}

void Tape::observe_gradients(const Entry& entry, OperatorCall& call) {
  if (entry.op->unsettled) return;
  for (int i = 0; i < entry.input_count; ++i) {
    if (!entry.has_input(i)) continue;
    const Slot& slot = slots_[entry.inputs[static_cast<std::size_t>(i)]];
    // The producer leaves some rows unwritten, and so do the operators that compute their gradients.
    const bool partial = slot.producer >= 0 && entries_[slot.producer].op->unsettled;
    if (slot.gradient && !partial && slot.dtype != DType::kI32)
      gradient_observer_(call, nullptr, slot.gradient.view(slot.dtype, slot.shape));
  }
}

void Tape::release_outputs(const Entry& entry) {
  for (int i = 0; i < entry.output_count; ++i) {
    slots_[entry.outputs[i]].gradient.reset();
    drop_if_idle(entry.outputs[i]);
  }
}

void Tape::run_weight_gradient(int index) {
  stop_if_asked();
  const Entry entry = entries_[index];
  OperatorCall call(*this, index);
  if (entry.op->weight_reads_parameter) use_parameter(entry);
  entry.op->backward_weight(call);
  if (gradient_observer_ && !entry.parameter->gradient.absent())
    gradient_observer_(call, entry.parameter, entry.parameter->gradient);
  release_saves(entry, entry.op->for_weight);
  release_outputs(entry);
  --pending_weight_gradients_;
}

// --- WeightGradientQueue

namespace {

// Returns the position of an entry's contribution among all contributions of a step to its parameter. Within
// one tape, uses of a parameter count in backward order: the last recorded use is the first. Operators
// without a weight gradient (token_losses) do not count.
std::int64_t turn_of(const std::vector<Entry>& entries, int entry, int chunk, std::int64_t microbatch) {
  const Parameter& p = *entries[entry].parameter;
  std::int64_t before = 0;
  for (int later : p.uses) before += later > chunk;
  if (p.uses.size() > 1) {
    for (std::size_t e = entry + 1; e < entries.size(); ++e)
      before += entries[e].parameter == &p && entries[e].op->backward_weight;
  }
  return microbatch * static_cast<std::int64_t>(p.uses.size()) + before;
}

}  // namespace

bool WeightGradientQueue::in_turn_now(const Tape& tape, int entry) const {
  return policy_ == Policy::kInline && turn_of(tape.entries_, entry, tape.chunk(), tape.microbatch()) ==
                                           tape.entries_[entry].parameter->turn;
}

void WeightGradientQueue::push(Tape& tape, int entry, bool nothing_to_do) {
  items_.push_back({.tape = nothing_to_do ? nullptr : &tape,
                    .entry = entry,
                    .parallel = tape.settings_.parallel,
                    .parameter = tape.entries_[entry].parameter,
                    .turn = turn_of(tape.entries_, entry, tape.chunk(), tape.microbatch()),
                    .released = nothing_to_do || policy_ == Policy::kInline});
  if (items_.back().released) drain();
}

void WeightGradientQueue::forget(const Tape& tape) {
  std::erase_if(items_, [&](const Item& item) { return item.tape == &tape || item.tape == nullptr; });
}

void WeightGradientQueue::run(Tape& tape) {
  for (Item& item : items_) item.released = item.released || item.tape == &tape;
  drain();
}

void WeightGradientQueue::drain() {
  for (bool progress = true; progress;) {
    progress = false;
    for (std::size_t i = 0; i < items_.size();) {
      const Item item = items_[i];
      if (!item.released || item.turn != item.parameter->turn) {
        ++i;
        continue;
      }
      items_.erase(items_.begin() + static_cast<std::ptrdiff_t>(i));
      if (item.tape) item.tape->run_weight_gradient(item.entry);
      ++item.parameter->turn;
      if (item.parallel) item.parallel->contributed(*item.parameter);
      progress = true;
    }
  }
}

}  // namespace primus::engine
