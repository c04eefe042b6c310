#include "engine/parallel/ordered_sums.h"

#include <vector>

namespace primus::engine {

bool sums_need_order(const comm::Communicator& group) { return group.ordered_sums() && group.size() > 2; }

void sum_in_order(turbo::Context& context, comm::Communicator& group, const Tensor& all, const Tensor& parts,
                  const Tensor& own) {
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(group.size()), own.elements());
  group.all_to_all(context.stream, all, counts, parts, counts);
  const std::int64_t first = group.rank() * own.shape[0];
  turbo::launch(context, turbo::Add{.a = parts.slice(first, first + own.shape[0]).reshaped(own.shape),
                                    .b = parts,
                                    .out = own,
                                    .ranks = group.size(),
                                    .rank = group.rank(),
                                    .by_rank = true});
}

}  // namespace primus::engine
