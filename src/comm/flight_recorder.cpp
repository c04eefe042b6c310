#include "comm/flight_recorder.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace primus::comm {
namespace {

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// A reader that sees a field's new value also sees that the id was set to 0 (release order).
template <class T>
void put(std::atomic<T>& field, T value) {
  field.store(value, std::memory_order_release);
}

const char* name_of(FlightRecorder::State state) {
  static constexpr const char* kNames[] = {"enqueued", "running", "done", "failed"};
  return kNames[static_cast<std::size_t>(state)];
}

std::string details(const Signature& s) {
  switch (s.kind) {
    case Kind::kAllReduce:
    case Kind::kReduceScatter:
      return fmt::format(" ({} of {} {})", comm::name_of(s.reduction), s.count, primus::name_of(s.dtype));
    case Kind::kBroadcast:
      return fmt::format(" ({} {} from rank {})", s.count, primus::name_of(s.dtype), s.root);
    case Kind::kAllGather:
    case Kind::kAllToAll:
    case Kind::kExchange:
      return fmt::format(" ({} {})", s.count, primus::name_of(s.dtype));
    default:
      return "";
  }
}

}  // namespace

Signature signature_of(const Call& call) {
  Signature result{call.kind, DType::kU8, call.reduction, call.root, 0};
  if (call.kind == Kind::kAllToAll) {
    result.dtype = call.in.dtype;
    for (const std::int64_t count : call.send_counts) result.count += count;
  } else if (call.kind == Kind::kExchange) {
    result.dtype = call.transfers.front().data.dtype;
    for (const Transfer& t : call.transfers) result.count += t.sends ? t.data.elements() : 0;
  } else if (call.kind != Kind::kBarrier) {
    result.dtype = call.in.dtype;
    result.count = call.in.elements();
  }
  return result;
}

std::string Signature::to_string() const { return std::string(comm::name_of(kind)) + details(*this); }

std::string FlightRecorder::Record::to_string() const {
  return fmt::format("{} #{}{} of group '{}'", comm::name_of(signature.kind), sequence, details(signature),
                     group);
}

FlightRecorder::FlightRecorder()
    : storage_(std::make_unique<std::array<Slot, kRecords>>()), slots_(*storage_) {}

int FlightRecorder::add_group(std::string name, int size) {
  const std::lock_guard lock(groups_mutex_);
  groups_.push_back({std::move(name), size});
  return static_cast<int>(groups_.size()) - 1;
}

std::uint64_t FlightRecorder::enqueued(int group, std::uint64_t sequence, const Signature& signature) {
  const std::uint64_t id = next_.fetch_add(1);
  Slot& s = slot(id);
  put(s.id, std::uint64_t{0});  // readers skip a slot that is being filled
  put(s.sequence, sequence);
  put(s.group, std::int32_t{group});
  put(s.kind, static_cast<std::uint8_t>(signature.kind));
  put(s.dtype, static_cast<std::uint8_t>(signature.dtype));
  put(s.reduction, static_cast<std::uint8_t>(signature.reduction));
  put(s.root, signature.root);
  put(s.count, signature.count);
  put(s.waiting_for, -1);
  put(s.started, std::int64_t{0});
  put(s.ended, std::int64_t{0});
  put(s.enqueued, now_ns());
  put(s.state, static_cast<std::uint8_t>(State::kEnqueued));
  put(s.id, id);
  return id;
}

// Does nothing if the record is lost: 2 000 later collectives overwrite its slot.
void FlightRecorder::started(std::uint64_t id) {
  Slot& s = slot(id);
  if (s.id != id) return;
  put(s.started, now_ns());
  put(s.state, static_cast<std::uint8_t>(State::kRunning));
}

void FlightRecorder::waiting_for(std::uint64_t id, int rank) {
  Slot& s = slot(id);
  if (s.id == id) put(s.waiting_for, std::int32_t{rank});
}

void FlightRecorder::ended(std::uint64_t id, bool failed) {
  Slot& s = slot(id);
  if (s.id != id) return;
  if (!failed) put(s.waiting_for, -1);
  put(s.ended, now_ns());
  put(s.state, static_cast<std::uint8_t>(failed ? State::kFailed : State::kDone));
}

std::vector<FlightRecorder::Record> FlightRecorder::records() const {
  std::vector<Record> result;
  result.reserve(kRecords);
  const std::lock_guard lock(groups_mutex_);
  for (const Slot& s : slots_) {
    Record record;
    record.id = s.id;
    if (record.id == 0) continue;
    const auto group = static_cast<std::size_t>(s.group.load());
    record.sequence = s.sequence;
    record.signature = {static_cast<Kind>(s.kind.load()), static_cast<DType>(s.dtype.load()),
                        static_cast<Reduction>(s.reduction.load()), s.root, s.count};
    record.state = static_cast<State>(s.state.load());
    record.enqueued = static_cast<double>(s.enqueued) * 1e-9;
    record.started = static_cast<double>(s.started) * 1e-9;
    record.ended = static_cast<double>(s.ended) * 1e-9;
    record.waiting_for = s.waiting_for;
    if (s.id != record.id || group >= groups_.size()) continue;  // overwritten meanwhile
    record.group = groups_[group].name;
    record.group_size = groups_[group].size;
    result.push_back(std::move(record));
  }
  std::sort(result.begin(), result.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  return result;
}

nlohmann::ordered_json FlightRecorder::to_json() const {
  auto list = nlohmann::ordered_json::array();
  for (const Record& r : records()) {
    list.push_back({{"id", r.id},
                    {"group", r.group},
                    {"group_size", r.group_size},
                    {"sequence", r.sequence},
                    {"kind", comm::name_of(r.signature.kind)},
                    {"dtype", primus::name_of(r.signature.dtype)},
                    {"reduction", comm::name_of(r.signature.reduction)},
                    {"root", r.signature.root},
                    {"count", r.signature.count},
                    {"state", name_of(r.state)},
                    {"enqueued", r.enqueued},
                    {"started", r.started},
                    {"ended", r.ended},
                    {"waiting_for", r.waiting_for}});
  }
  return {{"records", std::move(list)}};
}

}  // namespace primus::comm
