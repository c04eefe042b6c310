#include "lm/train/objectives/rollouts/rank_table.h"

namespace primus {

RankTable::RankTable(engine::Rank& rank, std::int64_t rows, std::int64_t columns, bool writes)
    : columns_(columns), writes_(writes) {
  on_device_ = rank.persistent(DType::kF64, {rows, columns});
  values_.resize(static_cast<std::size_t>(rows * columns));
}

void RankTable::exchange(TrainingSession& session) {
  engine::Rank& rank = session.rank();
  if (rank.mesh().size() == 1) return;
  if (!rank.measuring()) {
    if (!writes_) clear();
    rank.compute().copy_to_device(on_device_.data, values_.data(), on_device_.bytes());
  }
  session.parallel().sum(on_device_);
  if (rank.measuring()) return;
  rank.compute().copy_to_host(values_.data(), on_device_.data, on_device_.bytes());
  rank.compute().synchronize();
}

}  // namespace primus
