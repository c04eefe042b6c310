#include "engine/parallel/mesh.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "comm/measuring.h"

namespace primus::engine {

using comm::Overlap;

namespace {

// Returns `count` ranks: first, first + stride, and so on.
std::vector<int> every(int first, int count, int stride) {
  std::vector<int> ranks;
  for (int i = 0; i < count; ++i) ranks.push_back(first + i * stride);
  return ranks;
}

}  // namespace

MeshPlace place_of(const MeshShape& shape, int world, int rank) {
  const int stage_ranks = shape.stage_ranks(world), within = rank % stage_ranks;
  return {.tensor = within % shape.tensor,
          .context = within / shape.tensor % shape.context,
          .data = within / (shape.tensor * shape.context),
          .stage = rank / stage_ranks,
          .expert = within / shape.expert_tensor % shape.expert,
          .expert_tensor = within % shape.expert_tensor};
}

Mesh::Mesh() = default;

Mesh::Mesh(std::unique_ptr<comm::Communicator> world, const MeshShape& shape)
    : shape_(shape), world_(std::move(world)) {
  const int ranks = world_->size();
  for (const int axis :
       {shape.tensor, shape.context, shape.pipeline, shape.expert, shape.expert_tensor, shape.copies}) {
    if (axis < 1) throw std::logic_error("Mesh: an axis has no ranks");
  }
  const int tensor_context = shape.tensor * shape.context, expert_ranks = shape.expert * shape.expert_tensor;
  if (ranks % (tensor_context * shape.pipeline) != 0 || shape.stage_ranks(ranks) % expert_ranks != 0)
    throw std::logic_error("Mesh: the axes do not divide the ranks");
  place_ = place_of(shape, ranks, world_->rank());

  const int stage_ranks = shape.stage_ranks(ranks), first = place_.stage * stage_ranks;
  const int within = world_->rank() - first, data = shape.data(ranks);
  // the lowest of this stage's ranks that hold this rank's sequences
  const int of_data = first + place_.data * tensor_context;
  tensor_ =
      split(every(of_data + place_.context * shape.tensor, shape.tensor, 1), "tensor", Overlap::kProducts);
  context_ = split(every(of_data + place_.tensor, shape.context, shape.tensor), "context", Overlap::kKernels);
  if (shape.context > 1) sequence_ = split(every(of_data, tensor_context, 1), "sequence");
  experts_ = split(every(first + within / expert_ranks * expert_ranks, expert_ranks, 1), "experts");
  if (shape.experts_on_hosts()) {
    const int group = first + within / expert_ranks * expert_ranks, place = world_->rank() - group;
    expert_places_ =
        split(every(group + place % shape.host, expert_ranks / shape.host, shape.host), "expert_places");
    expert_host_ = split(every(group + place / shape.host * shape.host, shape.host, 1), "expert_host");
  }
  pipeline_ = split(every(within, shape.pipeline, stage_ranks), "pipeline");
  if (shape.pipeline > 1 && (place_.stage == 0 || place_.stage + 1 == shape.pipeline))
    ends_ = split({within, within + (shape.pipeline - 1) * stage_ranks}, "ends");

  make_reduction(ReduceGroup::kData, every(first + place_.tensor, shape.context * data, shape.tensor));
  if (resolve(ReduceGroup::kTokens) == ReduceGroup::kTokens)
    make_reduction(ReduceGroup::kTokens, every(first, stage_ranks, 1));
  if (resolve(ReduceGroup::kExperts) == ReduceGroup::kExperts) {
    make_reduction(ReduceGroup::kExperts,
                   every(first + within % expert_ranks, stage_ranks / expert_ranks, expert_ranks));
  }
  if (resolve(ReduceGroup::kExpertTokens) == ReduceGroup::kExpertTokens) {
    std::vector<int> members;
    const int begin = first + within % expert_ranks / shape.expert_tensor * shape.expert_tensor;
    for (const int copy : every(begin, stage_ranks / expert_ranks, expert_ranks))
      std::ranges::copy(every(copy, shape.expert_tensor, 1), std::back_inserter(members));
    make_reduction(ReduceGroup::kExpertTokens, members);
  }
}

ReduceGroup Mesh::resolve(ReduceGroup group) const {
  if (group == ReduceGroup::kExpertTokens) {
    if (shape_.expert_tensor == 1) {
      group = ReduceGroup::kExperts;
    } else if (shape_.expert == 1) {
      group = ReduceGroup::kTokens;
    }
  }
  if (group == ReduceGroup::kExperts && shape_.expert * shape_.expert_tensor == 1)
    group = ReduceGroup::kTokens;
  return group == ReduceGroup::kTokens && shape_.tensor == 1 ? ReduceGroup::kData : group;
}

std::unique_ptr<comm::Communicator> Mesh::split(const std::vector<int>& members, const std::string& name,
                                                Overlap overlap) {
  if (members.size() == 1) return nullptr;
  return world_->split(members, name + "." + std::to_string(members.front()), overlap);
}

void Mesh::make_reduction(ReduceGroup group, const std::vector<int>& members) {
  const int ranks = static_cast<int>(members.size());
  if (ranks == 1) return;
  if (ranks % shape_.copies != 0) throw std::logic_error("Mesh: copies do not divide a reduce group");
  static constexpr std::array<const char*, kReduceGroups> kNames = {"data", "tokens", "expert_data",
                                                                    "expert_tokens"};
  const std::string name = kNames[index(group)];
  Owned& owned = owned_[index(group)];
  owned.all = split(members, name, Overlap::kKernels);
  Reduction& reduction = reductions_[index(group)];
  reduction = {.all = owned.all.get(), .shard = owned.all.get(), .replicas = nullptr};
  if (shape_.copies == 1) return;
  const int shards = ranks / shape_.copies, rank = owned.all->rank();
  const auto members_of = [&](int begin, int count, int stride) {
    std::vector<int> chosen;
    for (const int i : every(begin, count, stride)) chosen.push_back(members[static_cast<std::size_t>(i)]);
    return chosen;
  };
  owned.shard = split(members_of(rank / shards * shards, shards, 1), name + ".shards", Overlap::kKernels);
  owned.replicas =
      split(members_of(rank % shards, shape_.copies, shards), name + ".replicas", Overlap::kKernels);
  reduction.shard = owned.shard.get();
  reduction.replicas = owned.replicas.get();
}

std::vector<comm::Communicator*> Mesh::groups() const {
  std::vector<comm::Communicator*> groups = {world_.get(),       tensor_.get(),   context_.get(),
                                             sequence_.get(),    experts_.get(),  expert_places_.get(),
                                             expert_host_.get(), pipeline_.get(), ends_.get()};
  for (const Owned& owned : owned_)
    groups.insert(groups.end(), {owned.all.get(), owned.shard.get(), owned.replicas.get()});
  std::erase(groups, nullptr);
  return groups;
}

void Mesh::set_timeout(std::chrono::milliseconds timeout) {
  for (comm::Communicator* communicator : groups()) communicator->set_timeout(timeout);
}

Mesh Mesh::measuring() const {
  if (size() == 1) return {};
  // If transfers use copy engines, products are split by rank. The measuring mesh splits them in the same
  // way, so that memory is measured, and GPU libraries are timed, with the products of training.
  const bool copied = tensor_ && tensor_->by_copy_engines();
  auto world = std::make_unique<comm::MeasuringCommunicator>(world_->name(), rank(), size(), copied);
  world->set_ordered_sums(world_->ordered_sums());
  return {std::move(world), shape_};
}

}  // namespace primus::engine
