#include "engine/parallel/data_parallel.h"

#include <algorithm>

#include "base/check.h"
#include "engine/runtime/shared_parameters.h"
#include "turbo/elementwise/elementwise.h"

namespace primus::engine {

DataParallel::DataParallel(Rank& rank, ParameterStore& store, const DataParallelSettings& settings)
    : rank_(rank), store_(store), settings_(settings), mesh_(rank.mesh()), traffic_(store.units().size()) {
  if (mesh_.size() == 1) return;
  computed_ = rank.device().create_event();
  communicated_ = rank.device().create_event();
  for (Traffic& traffic : traffic_) {
    traffic.gathered = rank.device().create_event();
    traffic.reduced = rank.device().create_event();
  }
}

void DataParallel::follow_compute() {
  rank_.compute().record(*computed_);
  rank_.communication().wait(*computed_);
}

// --- values

void DataParallel::begin_pass(Pass pass, int chunk) {
  pass_ = pass;
  program_ = &programs_[{pass, chunk}];
  program_->position = 0;
}

void DataParallel::use(const Parameter& parameter) {
  // The values of another store's parameters are complete (allocate_beside()).
  if (is_shared(store_, parameter)) return;
  ParameterUnit& unit = *parameter.unit;
  if (unit.sharding < Sharding::kParameters) {
    if (traffic_of(unit).gathering) wait_for_values(unit);
    return;
  }
  if (std::ranges::find(used_, &unit) != used_.end()) return;
  if (!used_.empty() && used_.front()->declared != unit.declared) {
    for (ParameterUnit* left : std::exchange(used_, {})) {
      if (pass_ == Pass::kForward && !settings_.reshard_after_forward) {
        kept_.push_back(left);
      } else {
        release(*left);
      }
    }
  }
  used_.push_back(&unit);
  if (std::erase(kept_, &unit) == 0) {
    if (prefetched_ == &unit) {
      prefetched_ = nullptr;
    } else {
      gather(unit);
    }
  }
  wait_for_values(unit);

  // Records the order in which a pass uses units. The order of the previous pass of the same kind predicts
  // the next unit.
  std::vector<int>& units = program_->units;
  std::size_t& position = program_->position;
  if (position == units.size() || units[position] != unit.number) {
    units.resize(position);
    units.push_back(unit.number);
  }
  ++position;
  if (!settings_.overlap_gather || position == units.size()) return;
  ParameterUnit& next = store_.units()[static_cast<std::size_t>(units[position])];
  if (&next == prefetched_ || !next.values.absent()) return;
  if (prefetched_) release(*prefetched_);
  gather(next);
  prefetched_ = &next;
}

// Earlier kernels on the compute stream may still use this memory, so the communication stream waits for the
// compute stream. Work enqueued on the compute stream from now on overlaps the gather.
void DataParallel::gather(ParameterUnit& unit) {
  Traffic& traffic = traffic_of(unit);
  if (unit.sharding == Sharding::kParameters) {
    traffic.values = rank_.stash().allocate(unit.elements * size_of(unit.dtype));
    unit.set_values(traffic.values.view(unit.dtype, {unit.elements}));
  }
  follow_compute();
  reduction_of(unit).shard->all_gather(rank_.communication(), unit.stored.values, unit.values);
  rank_.communication().record(*traffic.gathered);
  traffic.gathering = true;
}

void DataParallel::wait_for_values(ParameterUnit& unit) {
  Traffic& traffic = traffic_of(unit);
  if (!traffic.gathering) return;
  rank_.compute().wait(*traffic.gathered);
  traffic.gathering = false;
}

void DataParallel::release(ParameterUnit& unit) {
  wait_for_values(unit);
  unit.set_values({});
  traffic_of(unit).values.reset();
}

void DataParallel::release_all() {
  if (prefetched_) release(*std::exchange(prefetched_, nullptr));
  for (ParameterUnit* unit : std::exchange(used_, {})) release(*unit);
  for (ParameterUnit* unit : std::exchange(kept_, {})) release(*unit);
}

void DataParallel::wait_for_all_values() {
  for (ParameterUnit& unit : store_.units()) wait_for_values(unit);
}

void DataParallel::distribute_values() {
  for (ParameterUnit& unit : store_.units()) {
    if (unit.sharding == Sharding::kNone || unit.sharding == Sharding::kParameters) continue;
    gather(unit);
    if (!settings_.overlap_gather) wait_for_values(unit);
  }
}

void DataParallel::gather_shards(const ParameterUnit& unit, const Tensor& of_shard, const Tensor& whole) {
  PRIMUS_CHECK("DataParallel::gather_shards",
               of_shard.elements() == unit.shard.size() && whole.elements() == unit.elements);
  follow_compute();
  reduction_of(unit).shard->all_gather(rank_.communication(), of_shard, whole);
  rank_.communication().record(*communicated_);
  rank_.compute().wait(*communicated_);
}

// --- gradients

void DataParallel::begin_step(std::int64_t microbatches) {
  microbatches_ = microbatches;
  for (Parameter& p : store_.parameters()) {
    p.turn = 0;
    p.has_gradient = false;
  }
  for (Traffic& traffic : traffic_) {
    traffic.complete = 0;
    traffic.has_sum = false;
  }
}

void DataParallel::before_gradient(const Parameter& parameter) {
  ParameterUnit& unit = *parameter.unit;
  Traffic& traffic = traffic_of(unit);
  while (traffic.reducing) join_oldest_reduction();
  if (!unit.gradient.absent()) return;
  traffic.gradient = rank_.stash().allocate(unit.elements * size_of(unit.gradient_dtype));
  unit.set_gradient(traffic.gradient.view(unit.gradient_dtype, {unit.elements}));
  if (rank_.measuring()) return;
  // Zeroes the padding between parameters and after the last parameter, because kernels do not write padding.
  for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
    const std::int64_t begin = unit.parameters[i]->offset + unit.parameters[i]->shape.elements();
    const std::int64_t end = i + 1 < unit.parameters.size() ? unit.parameters[i + 1]->offset : unit.elements;
    if (begin == end) continue;
    const Tensor gap = unit.gradient.slice(begin, end);
    rank_.compute().fill_zero(gap.data, gap.bytes());
  }
}

void DataParallel::contributed(const Parameter& parameter) {
  ParameterUnit& unit = *parameter.unit;
  if (unit.ranks == 1) return;
  const bool each = store_.layout().reduce_each_microbatch;
  const auto uses = static_cast<std::int64_t>(parameter.uses.size());
  if (parameter.turn % (each ? uses : uses * microbatches_) != 0) return;
  Traffic& traffic = traffic_of(unit);
  const auto used = std::count_if(unit.parameters.begin(), unit.parameters.end(),
                                  [](const Parameter* p) { return !p->uses.empty(); });
  if (++traffic.complete < used) return;
  traffic.complete = 0;
  if (settings_.overlap_reduction || each) reduce(unit);
}

void DataParallel::complete_gradient(ParameterUnit& unit) {
  for (Parameter* p : unit.parameters) {
    if (p->has_gradient) continue;
    before_gradient(*p);
    turbo::launch(rank_.context(), turbo::Fill{.out = p->gradient, .value = 0});
  }
}

DType DataParallel::sent_dtype(const ParameterUnit& unit) const {
  return unit.gradient_dtype == DType::kF32 ? settings_.reduce_dtype : unit.gradient_dtype;
}

void DataParallel::reduce(ParameterUnit& unit) {
  // At most two reductions hold memory: one in flight, and the next one, which waits.
  while (reducing_.size() > 1) join_oldest_reduction();
  complete_gradient(unit);
  Traffic& traffic = traffic_of(unit);
  const DType dtype = sent_dtype(unit);
  Tensor source = unit.gradient, sum = unit.reduced;
  if (dtype != unit.gradient_dtype) {
    traffic.narrow = rank_.stash().allocate(unit.elements * size_of(dtype));
    source = traffic.narrow.view(dtype, {unit.elements});
    turbo::launch(rank_.context(), turbo::Cast{.x = unit.gradient, .out = source});
  }
  traffic.adds = traffic.has_sum;
  if (traffic.adds || dtype != unit.gradient_dtype) {
    traffic.part = rank_.stash().allocate(unit.shard.size() * size_of(dtype));
    sum = traffic.part.view(dtype, {unit.shard.size()});
  }
  follow_compute();
  Stream& stream = rank_.communication();
  const Reduction& group = reduction_of(unit);
  constexpr auto kSum = comm::Reduction::kSum;
  if (unit.sharding == Sharding::kNone) {
    group.all->all_reduce(stream, source, sum, kSum);
  } else {
    group.shard->reduce_scatter(stream, source, sum, kSum);
    if (group.replicas) group.replicas->all_reduce(stream, sum, sum, kSum);
  }
  stream.record(*traffic.reduced);
  traffic.has_sum = traffic.reducing = true;
  reducing_.push_back(&unit);
  for (Parameter* p : unit.parameters) p->has_gradient = false;
}

void DataParallel::join_oldest_reduction() {
  ParameterUnit& unit = *reducing_.front();
  reducing_.pop_front();
  Traffic& traffic = traffic_of(unit);
  rank_.compute().wait(*traffic.reduced);
  traffic.reducing = false;
  if (traffic.part) {
    const Tensor part = traffic.part.view(sent_dtype(unit), {unit.shard.size()});
    if (!traffic.adds) {
      turbo::launch(rank_.context(), turbo::Cast{.x = part, .out = unit.reduced});
    } else if (part.dtype == unit.gradient_dtype) {
      turbo::launch(rank_.context(), turbo::Add{.a = unit.reduced, .b = part, .out = unit.reduced});
    } else {
      const Buffer buffer = rank_.stash().allocate(unit.reduced.bytes());
      const Tensor wide = buffer.view(DType::kF32, unit.reduced.shape);
      turbo::launch(rank_.context(), turbo::Cast{.x = part, .out = wide});
      turbo::launch(rank_.context(), turbo::Add{.a = unit.reduced, .b = wide, .out = unit.reduced});
    }
  }
  traffic.part.reset();
  traffic.narrow.reset();
  if (!traffic.gradient) return;
  unit.set_gradient({});
  traffic.gradient.reset();
}

void DataParallel::end_microbatch() {
  release_all();
  while (!reducing_.empty()) join_oldest_reduction();
}

void DataParallel::finish_gradients() {
  for (ParameterUnit& unit : store_.units()) {
    if (!unit.trained) continue;
    if (unit.ranks == 1) {
      complete_gradient(unit);
    } else if (!traffic_of(unit).has_sum) {
      reduce(unit);
    }
  }
  while (!reducing_.empty()) join_oldest_reduction();
  for (ParameterUnit& unit : store_.units()) {
    if (unit.trained && unit.at_both_ends) all_reduce(*mesh_.ends(), unit.reduced, comm::Reduction::kSum);
  }
}

void DataParallel::sum(const Tensor& tensor) {
  if (mesh_.size() > 1) all_reduce(*mesh_.world(), tensor, comm::Reduction::kSum);
}

void DataParallel::sum_over_data(const Tensor& tensor) {
  if (mesh_.data_ranks() == 1) return;
  // The group includes the context ranks. Context ranks share sequences and hold equal values, so only the
  // first context rank contributes.
  if (mesh_.place().context != 0 && !rank_.measuring())
    rank_.compute().fill_zero(tensor.data, tensor.bytes());
  all_reduce(*mesh_.reduction(ReduceGroup::kData).all, tensor, comm::Reduction::kSum);
}

void DataParallel::largest(const Tensor& tensor) {
  if (mesh_.size() > 1) all_reduce(*mesh_.world(), tensor, comm::Reduction::kMax);
}

void DataParallel::all_reduce(comm::Communicator& group, const Tensor& tensor, comm::Reduction reduction) {
  follow_compute();
  group.all_reduce(rank_.communication(), tensor, tensor, reduction);
  rank_.communication().record(*communicated_);
  rank_.compute().wait(*communicated_);
}

}  // namespace primus::engine
