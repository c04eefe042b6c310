#include "engine/parallel/expert_hops.h"

#include <algorithm>

namespace primus::engine {
namespace {

using turbo::DispatchPlan;
using turbo::launch;

// Returns the elements of the first hop's plan. The second hop's plan follows it.
std::int64_t first_elements(const ExpertHops& h) {
  return DispatchPlan::shape(h.hosts, h.tokens, h.top_k, h.to_host)[0];
}

Shape second_shape(const ExpertHops& h) {
  return DispatchPlan::shape(h.places, h.hosts * h.tokens, h.top_k, h.hosts * h.to_rank, h.host_rows());
}

// out[r] = the sum of the rows of x whose indices are in row r of `rows`.
void combine(turbo::Context& context, const Tensor& x, const Tensor& rows, const Tensor& out) {
  launch(context, turbo::CombineRows{.x = x, .rows = rows, .weights = {}, .previous = {}, .out = out});
}

}  // namespace

Shape ExpertHops::plan_shape() const { return {first_elements(*this) + second_shape(*this)[0]}; }

DispatchPlan ExpertHops::between_hosts(const Tensor& plan) const {
  return {plan.slice(0, first_elements(*this)), hosts, tokens, top_k, to_host};
}

DispatchPlan ExpertHops::within_host(const Tensor& plan) const {
  return {plan.slice(first_elements(*this), plan.elements()),
          places,
          hosts * tokens,
          top_k,
          hosts * to_rank,
          host_rows()};
}

std::int64_t max_rows_to_host(std::int64_t tokens, std::int64_t capacity, std::int64_t places,
                              std::int64_t experts_of_rank, std::int64_t ranks_of_expert) {
  if (capacity == 0) return tokens;
  // Number of groups of ranks with the same experts that have a rank on one host. If the groups are not
  // aligned with hosts, the first and the last of them may be incomplete.
  const std::int64_t groups = places / ranks_of_expert + (places % ranks_of_expert == 0 ? 0 : 2);
  return std::min(tokens, groups * experts_of_rank * capacity);
}

void gather_by_hosts(Stream& stream, const ExpertHosts& hosts, const Tensor& own, const Tensor& all) {
  const std::int64_t rows = hosts.between->size() * own.shape[0], place = hosts.within->rank();
  const Tensor of_place = all.slice(place * rows, (place + 1) * rows);
  hosts.between->all_gather(stream, own, of_place);
  hosts.within->all_gather(stream, of_place, all);
}

void scatter_by_hosts(Stream& stream, const ExpertHosts& hosts, const Tensor& all, const Tensor& own) {
  const std::int64_t rows = hosts.between->size() * own.shape[0], place = hosts.within->rank();
  const Tensor of_place = all.slice(place * rows, (place + 1) * rows);
  hosts.within->reduce_scatter(stream, all, of_place, comm::Reduction::kSum);
  hosts.between->reduce_scatter(stream, of_place, own, comm::Reduction::kSum);
}

void plan_hops(turbo::Context& context, const ExpertHosts& hosts, const ExpertHops& h, const Tensor& choices,
               const Tensor& kept, std::int64_t experts_of_rank, std::int64_t ranks_of_expert,
               const Tensor& plan, std::uint64_t number) {
  const std::int64_t host = hosts.between->rank(), place = hosts.within->rank();
  const std::int64_t of_place = h.hosts * h.tokens;
  const auto own_place = [&](const Tensor& of_all) {
    return of_all.absent() ? Tensor() : of_all.slice(place * of_place, (place + 1) * of_place);
  };
  launch(context, turbo::PlanDispatch{.experts = own_place(choices),
                                      .kept = own_place(kept),
                                      .plan = plan.slice(0, first_elements(h)),
                                      .ranks = h.hosts,
                                      .rank = host,
                                      .maximum = h.to_host,
                                      .experts_of_rank = experts_of_rank,
                                      .ranks_of_expert = ranks_of_expert,
                                      .first = 0,
                                      .span = h.places});
  launch(context, turbo::PlanDispatch{.experts = choices,
                                      .kept = kept,
                                      .plan = plan.slice(first_elements(h), plan.elements()),
                                      .ranks = h.places,
                                      .rank = place,
                                      .maximum = h.hosts * h.to_rank,
                                      .experts_of_rank = experts_of_rank,
                                      .ranks_of_expert = ranks_of_expert,
                                      .first = host * h.places,
                                      .span = 1,
                                      .held = h.between_hosts(plan).sources});
  // The counts travel to the host while the device does the following work.
  const DispatchPlan between = h.between_hosts(plan), within = h.within_host(plan);
  hosts.between->count_rows(context.stream, between.sends, between.receives, number);
  hosts.within->count_rows(context.stream, within.sends, within.receives, number);
}

void send_by_hosts(turbo::Context& context, const ExpertHosts& hosts, const ExpertHops& hops,
                   const Tensor& plan, std::uint64_t number, const Tensor& packed, const HopBuffers& buffers,
                   const Tensor& out) {
  const DispatchPlan between = hops.between_hosts(plan), within = hops.within_host(plan);
  hosts.between->all_to_all_rows(context.stream, packed, between.sends, buffers.of_hosts, between.receives,
                                 {.number = number});
  combine(context, buffers.of_hosts, within.sent, buffers.of_ranks);
  hosts.within->all_to_all_rows(context.stream, buffers.of_ranks, within.sends, out, within.receives,
                                {.number = number});
}

void return_by_hosts(turbo::Context& context, const ExpertHosts& hosts, const ExpertHops& hops,
                     const Tensor& plan, std::uint64_t number, const Tensor& rows, const HopBuffers& buffers,
                     const Tensor& returned) {
  const DispatchPlan between = hops.between_hosts(plan), within = hops.within_host(plan);
  hosts.within->all_to_all_rows(context.stream, rows, within.receives, buffers.of_ranks, within.sends,
                                {.number = number, .back = true});
  combine(context, buffers.of_ranks, within.parts, buffers.of_hosts);
  hosts.between->all_to_all_rows(context.stream, buffers.of_hosts, between.receives, returned, between.sends,
                                 {.number = number, .back = true});
}

}  // namespace primus::engine
