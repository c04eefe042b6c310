#include "engine/parallel/expert_parallel.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/check.h"
#include "comm/overlap.h"

namespace primus::engine {

ExpertParallel::ExpertParallel(Rank& rank, comm::Communicator& group, const Options& options,
                               const ExpertHosts& hosts)
    : rank_(rank), group_(group), options_(options), hosts_(hosts) {
  if (!overlaps(true)) return;
  stream_ = rank.device().create_stream(StreamKind::kCommunication);
  computed_ = rank.device().create_event();
  spare_processors();
}

void ExpertParallel::start(bool overlap, Collective collective, Buffer buffer, std::vector<Buffer> working) {
  Flight& flight = flights_[strands_.current()].emplace_back();
  flight.buffer = std::move(buffer);
  if (overlap) flight.working = std::move(working);
  if (!overlap) return collective(group_, rank_.compute());
  PRIMUS_CHECK("ExpertParallel::start", stream_);
  if (events_.empty()) events_.push_back(rank_.device().create_event());
  flight.arrived = std::move(events_.back());
  events_.pop_back();
  rank_.compute().record(*computed_);
  stream_->wait(*computed_);
  collective(group_, *stream_);
  stream_->record(*flight.arrived);
  spare_processors();
  strands_.yield();
}

Buffer ExpertParallel::finish() { return finish(flights_[strands_.current()]); }

Buffer ExpertParallel::finish(std::vector<Flight>& flights) {
  PRIMUS_CHECK("ExpertParallel::finish", !flights.empty());
  Flight flight = std::move(flights.back());
  flights.pop_back();
  if (flight.arrived) {
    rank_.compute().wait(*flight.arrived);
    events_.push_back(std::move(flight.arrived));
    spare_processors();
  }
  return std::move(flight.buffer);
}

void ExpertParallel::abandon() noexcept {
  for (std::vector<Flight>& flights : flights_) {
    while (!flights.empty()) {
      try {
        finish(flights);
      } catch (const std::exception&) {
        // This transfer has failed too. The transfer's error is ignored, because an earlier error of this
        // step is already being reported.
      }
    }
  }
  spare_processors();
}

void ExpertParallel::spare_processors() {
  const bool in_flight = std::ranges::any_of(flights_, [](const std::vector<Flight>& flights) {
    return std::ranges::any_of(flights, [](const Flight& f) { return f.arrived != nullptr; });
  });
  // If microbatches alternate, nearly every product overlaps a transfer. All products then leave the same
  // multiprocessors, so that a recomputed product has the bits of the first one.
  rank_.context().spared = in_flight || options_.microbatches ? comm::kExpertOverlapProcessors : 0;
}

}  // namespace primus::engine
