#include "engine/parallel/expert_parallel.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/check.h"
#include "comm/overlap.h"

namespace primus::engine {

ExpertParallel::ExpertParallel(Rank& rank, comm::Communicator& group, bool overlap)
    : rank_(rank), group_(group), overlap_(overlap) {
  if (!overlap) return;
  stream_ = rank.device().create_stream(StreamKind::kCommunication);
  computed_ = rank.device().create_event();
}

void ExpertParallel::start(bool overlap, Collective collective, Buffer buffer) {
  Flight& flight = flights_.emplace_back();
  flight.buffer = std::move(buffer);
  if (!overlap) return collective(group_, rank_.compute());
  PRIMUS_CHECK("ExpertParallel::start", overlap_);
  if (events_.empty()) events_.push_back(rank_.device().create_event());
  flight.arrived = std::move(events_.back());
  events_.pop_back();
  rank_.compute().record(*computed_);
  stream_->wait(*computed_);
  collective(group_, *stream_);
  stream_->record(*flight.arrived);
  spare_processors();
}

Buffer ExpertParallel::finish() {
  PRIMUS_CHECK("ExpertParallel::finish", !flights_.empty());
  Flight flight = std::move(flights_.back());
  flights_.pop_back();
  if (flight.arrived) {
    rank_.compute().wait(*flight.arrived);
    events_.push_back(std::move(flight.arrived));
    spare_processors();
  }
  return std::move(flight.buffer);
}

void ExpertParallel::abandon() noexcept {
  while (!flights_.empty()) {
    try {
      finish();
    } catch (const std::exception&) {
      // This transfer has failed too. The transfer's error is ignored, because an earlier error of this step
      // is already being reported.
    }
  }
  spare_processors();
}

void ExpertParallel::spare_processors() {
  const bool in_flight = std::ranges::any_of(flights_, [](const Flight& f) { return f.arrived != nullptr; });
  rank_.context().spared = in_flight ? comm::kExpertOverlapProcessors : 0;
}

}  // namespace primus::engine
