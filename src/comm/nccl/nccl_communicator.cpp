#include "comm/nccl/nccl_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "base/files/sha256.h"
#include "comm/split_id.h"
#include "device/watched.h"

namespace primus::comm::nccl {
namespace {

using namespace std::chrono_literals;

// How long to wait, after a failure caused by another rank, for the rendezvous to report the cause.
// Maximum pending collectives. A rank that is further ahead waits here, because an abort can wake the rank
// here but not in the driver. The driver's queues hold about a thousand operations. The limit is lower with
// copy engines, because one exchange is several operations.
constexpr std::size_t kMaxPending = 256, kMaxPendingCopies = 64;
// Minimum bytes per rank for an all_gather by copy engines; for smaller tensors, the flags cost more than the
// library's call.
constexpr std::int64_t kMinCopied = std::int64_t{1} << 20;

std::byte* bytes_of(const Tensor& tensor) { return static_cast<std::byte*>(tensor.data); }
std::size_t count_of(const Tensor& tensor) { return static_cast<std::size_t>(tensor.elements()); }

// Calls `use(peer, elements before the part, elements of the part)` for each non-empty part.
template <class Use>
void for_each_part(const std::vector<std::int64_t>& counts, Use use) {
  std::int64_t begin = 0;
  for (std::size_t peer = 0; peer < counts.size(); ++peer) {
    if (counts[peer] != 0) use(static_cast<int>(peer), begin, counts[peer]);
    begin += counts[peer];
  }
}

// Keeps the first failure; kInProgress is not a failure.
void note(Result& worst, Result result) {
  if (worst == Result::kSuccess && result != Result::kInProgress) worst = result;
}

}  // namespace

Context::Context(Device& on, const DeviceCollectives& of_device, std::shared_ptr<const Library> opened,
                 std::shared_ptr<RankState> of_rank)
    : device(on),
      ordinal(on.properties().ordinal),
      collectives(of_device),
      library(std::move(opened)),
      state(std::move(of_rank)),
      watchdog(state) {
  collectives.guard(innermost(device), [abort = state->abort] { abort->check(); });
}

NcclCommunicator::NcclCommunicator(std::string name, std::string id, std::vector<int> members, int rank,
                                   std::shared_ptr<Context> context, Overlap overlap)
    : Communicator(std::move(name), rank, static_cast<int>(members.size()), overlap),
      id_(std::move(id)),
      members_(std::move(members)),
      context_(std::move(context)),
      state_(*context_->state),
      recorder_group_(state_.recorder.add_group(this->name(), size())),
      row_counter_(*context_, size()) {
  state_.abort->check();
  if (size() > 1) {
    context_->collectives.make_current(context_->ordinal);
    const Deadline deadline = in(context_->start_timeout);
    // The id lists all members, and may be too long for a key. Therefore the key contains a hash of the id.
    const std::string key = "nccl/" + hex(as_text(sha256(id_)));
    UniqueId unique{};
    if (rank == 0) {
      if (const Result result = context_->library->get_unique_id(&unique); result != Result::kSuccess) {
        throw Error(ErrorKind::kIo,
                    fmt::format("{} cannot begin group '{}': {}", context_->library->name, this->name(),
                                context_->library->error_string(result)),
                    "NCCL_SOCKET_IFNAME chooses the network interface; NCCL_DEBUG=WARN prints details");
      }
      context_->publish(key, std::string(unique.bytes.data(), unique.bytes.size()));
    } else {
      const std::string value = context_->wait_for(key);
      if (value.size() != unique.bytes.size()) {
        throw Error(ErrorKind::kIo,
                    fmt::format("rank 0 of group '{}' sent an invalid NCCL id", this->name()));
      }
      std::memcpy(unique.bytes.data(), value.data(), value.size());
    }
    handle_.emplace(context_->library, context_->state,
                    fmt::format("group '{}' of {} ranks", this->name(), size()), unique, size(), rank,
                    overlap == Overlap::kProducts ? kOverlapProcessors : 0, deadline);
    barrier_ = context_->device.allocate(sizeof(std::int32_t));
    const DevicePeers* const peers = context_->collectives.peers;
    if (wants_copy_engines(context_->copy_engines, overlap, peers && peers->usual)) {
      if (peers) {
        copies_ =
            PeerCopies::open(*context_, "copies/" + hex(as_text(sha256(id_))), size(), rank, why_no_copies_);
      } else {
        why_no_copies_ = "devices of this kind cannot access each other's memory";
      }
    }
  }
  context_->watchdog.add(*this);
}

NcclCommunicator::~NcclCommunicator() {
  context_->watchdog.remove(*this);
  copies_.reset();
  rows_.direct.reset();
  handle_.reset();
  if (barrier_) context_->device.release(barrier_);
  if (!staging_.absent()) context_->device.release(staging_.data);
}

void NcclCommunicator::abort(const std::string& reason) noexcept { state_.abort->abort(reason); }

void NcclCommunicator::set_timeout(std::chrono::milliseconds timeout) { state_.timeout = timeout; }

std::unique_ptr<Communicator> NcclCommunicator::make_split(std::span<const int> members, int new_rank,
                                                           const std::string& name, Overlap overlap) {
  state_.abort->check();
  std::vector<int> of_job;
  for (const int member : members) of_job.push_back(members_[static_cast<std::size_t>(member)]);
  return std::make_unique<NcclCommunicator>(name, split_id(id_, name, members, splits_), std::move(of_job),
                                            new_rank, context_, overlap);
}

// ---- Work ---------------------------------------------------------------------------------------

std::unique_ptr<Event> NcclCommunicator::take_event() {
  {
    const std::lock_guard lock(mutex_);
    if (!free_events_.empty()) {
      std::unique_ptr<Event> event = std::move(free_events_.back());
      free_events_.pop_back();
      return event;
    }
  }
  return context_->device.create_event();
}

void NcclCommunicator::wait_for_room() {
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (pending_.size() < (copies_ || rows_.direct ? kMaxPendingCopies : kMaxPending)) return;
    }
    state_.abort->check();
    std::this_thread::sleep_for(1ms);
  }
}

void NcclCommunicator::choose_rows() {
  if (rows_.chosen) return;
  state_.abort->check();
  const CountedRows wanted = context_->counted_rows;
  const DevicePeers* const peers = context_->collectives.peers;
  std::unique_ptr<PeerCopies> opened;
  std::string why = !peers ? "devices of this kind cannot access each other's memory"
                    : !peers->copy_rows
                        ? "devices of this kind cannot write rows to each other's memory"
                        : "devices of this kind were not tested with PRIMUS_COUNTED_ROWS=direct";
  if (peers && peers->copy_rows && wants_direct_rows(wanted, peers))
    opened = PeerCopies::open(*context_, "rows/" + hex(as_text(sha256(id_))), size(), rank(), why,
                              PeerCopies::Use::kRows);
  if (!opened && wanted == CountedRows::kDirect)
    throw invalid(fmt::format("PRIMUS_COUNTED_ROWS=direct is not possible in group '{}': {}", name(), why),
                  "choose auto, which then copies the row counts to the host");
  if (!opened && wanted == CountedRows::kAuto) rows_.why_not_direct = std::move(why);
  rows_.chosen = true;
  const std::lock_guard lock(mutex_);
  rows_.direct = std::move(opened);
}

std::string NcclCommunicator::prepare_rows() {
  if (!handle_) return {};
  if (context_->counted_rows == CountedRows::kOff)
    return fmt::format("{} sends complete parts (PRIMUS_COUNTED_ROWS=off)", context_->library->name);
  choose_rows();
  if (rows_.direct) return "kernels write the rows into the memory of the host's other GPUs";
  return fmt::format("{} sends the counted rows, and the host waits for the counts{}",
                     context_->library->name,
                     rows_.why_not_direct.empty() ? "" : ": " + rows_.why_not_direct);
}

std::int64_t NcclCommunicator::unsent() const {
  const std::lock_guard lock(mutex_);
  return Communicator::unsent() + (rows_.direct ? rows_.direct->unsent() : 0);
}

bool NcclCommunicator::counts_rows(Stream& stream) {
  if (!handle_ || context_->counted_rows == CountedRows::kOff) return false;
  if (context_->collectives.recording(innermost(stream))) return false;
  choose_rows();
  return !rows_.direct;
}

void NcclCommunicator::count_rows(Stream& stream, const Tensor& send_counts, const Tensor& receive_counts,
                                  std::uint64_t number) {
  if (number == 0 || !counts_rows(stream)) return;
  state_.abort->check();
  row_counter_.begin(stream, send_counts, receive_counts, number);
}

// Lists the rows of an all_to_all_rows() as the transfers of an exchange.
void NcclCommunicator::prepare(Stream& stream, Call& call) {
  if (call.send_rows.absent() || !counts_rows(stream)) return;
  state_.abort->check();
  const RowCounter::Counts rows = row_counter_.counts_of(stream, call, [this] { state_.abort->check(); });
  const std::int64_t part = call.in.rows() / size();
  for (int peer = 0; peer < size(); ++peer) {
    const std::int64_t sends = rows.sends[static_cast<std::size_t>(peer)],
                       receives = rows.receives[static_cast<std::size_t>(peer)];
    if (sends < 0 || sends > part || receives < 0 || receives > part)
      throw std::logic_error("communicator: a count exceeds the rows of a part");
    const std::int64_t first = peer * part;
    call.transfers.push_back(Transfer::send(call.in.slice(first, first + sends), peer));
    call.transfers.push_back(Transfer::receive(call.out.slice(first, first + receives), peer));
    if (peer != rank()) call.unsent += (part - sends) * call.in.cols() * size_of(call.in.dtype);
  }
}

std::vector<int> NcclCommunicator::peers_of(const Call& call) const {
  std::vector<int> peers;
  const auto add = [&](int peer) {
    if (peer != rank() && std::find(peers.begin(), peers.end(), peer) == peers.end()) peers.push_back(peer);
  };
  if (call.kind == Kind::kExchange) {
    for (const Transfer& transfer : call.transfers) add(transfer.peer);
  } else {
    for (int peer = 0; peer < size(); ++peer) add(peer);
  }
  return peers;
}

void NcclCommunicator::enqueue(Stream& stream, Call call) {
  state_.abort->check();
  context_->collectives.make_current(context_->ordinal);
  const Signature signature = signature_of(call);
  Pending pending;
  pending.exchange = call.kind == Kind::kExchange;
  pending.peers = peers_of(call);
  if (!call.send_rows.absent() && !call.transfers.empty()) call.kind = Kind::kExchange;
  // Not all ranks take part in an exchange, so exchanges are counted separately.
  const std::uint64_t sequence = pending.exchange ? ++exchanges_ : ++collectives_;
  pending.record = state_.recorder.enqueued(recorder_group_, sequence, signature);
  // The watchdog cannot watch replays of a graph, because events recorded in a graph cannot be queried.
  if (context_->collectives.recording(innermost(stream)))
    return start(stream, call, signature, pending, true);

  if (last_stream_ && last_stream_ != &stream) {
    const std::lock_guard lock(mutex_);
    if (!pending_.empty()) stream.wait(*pending_.back().end);
  }
  last_stream_ = &stream;
  wait_for_room();
  pending.begin = take_event();
  pending.end = take_event();
  stream.record(*pending.begin);
  start(stream, call, signature, pending, false);
  stream.record(*pending.end);
  {
    const std::lock_guard lock(mutex_);
    pending_.push_back(std::move(pending));
  }
  context_->watchdog.wake();
}

void NcclCommunicator::start(Stream& stream, Call& call, const Signature& signature, const Pending& pending,
                             bool recording) {
  if (call.kind == Kind::kAllToAll && call.in.data == call.out.data) stage(stream, call);
  const bool direct = rows_.direct && !recording && !call.send_rows.absent();
  if (!direct) copy_own_parts(stream, call);
  if (!handle_) return;
  bool noted = false;
  const auto waiting = [&](std::chrono::milliseconds waited) {
    state_.abort->check();
    // This function is called while the host waits for other ranks, so the collective counts as started.
    if (!std::exchange(noted, true)) state_.recorder.started(pending.record);
    if (waited <= state_.timeout.load() || Clock::now() < state_.excused_until.load()) return;
    be_late(pending, waited);
    state_.abort->check();
  };
  if (direct) return rows_.direct->move_rows(stream, call, waiting);
  // A graph would replay the flag values of its recording, so copy engines are not used in graphs.
  if (copies_ && !recording) {
    if (call.kind == Kind::kExchange) return copies_->exchange(stream, call.transfers, waiting);
    if (call.kind == Kind::kAllGather && call.in.bytes() >= kMinCopied) {
      return copies_->all_gather(stream, call.in, call.out, waiting);
    }
  }
  handle_->run([&](Comm comm) { return start_in_library(stream, call, comm); }, signature, waiting);
}

// Received data overwrites data that is not sent yet, so the operand is copied to a staging buffer.
void NcclCommunicator::stage(Stream& stream, Call& call) {
  const std::int64_t bytes = call.in.bytes();
  if (bytes == 0 || size() == 1) return;
  if (staging_.absent() || staging_.bytes() < bytes) {
    // Device memory is released only after its work has finished.
    if (!staging_.absent()) context_->device.release(staging_.data);
    staging_ = Tensor();
    staging_ = Tensor(context_->device.allocate(bytes), DType::kU8, {bytes});
  }
  stream.copy_on_device(staging_.data, call.in.data, bytes);
  call.in.data = staging_.data;
}

// Copies the parts that a rank sends to itself; a group of one rank has only such parts.
void NcclCommunicator::copy_own_parts(Stream& stream, const Call& call) const {
  const auto copy = [&](std::byte* to, const std::byte* from, std::int64_t bytes) {
    if (to != from && bytes != 0) stream.copy_on_device(to, from, bytes);
  };
  switch (call.kind) {
    case Kind::kAllReduce:
    case Kind::kReduceScatter:
    case Kind::kAllGather:
      if (size() == 1) copy(bytes_of(call.out), bytes_of(call.in), call.out.bytes());
      break;
    case Kind::kAllToAll: {
      const std::int64_t element = size_of(call.in.dtype);
      std::int64_t from = 0, to = 0;
      for (int peer = 0; peer < rank(); ++peer) {
        from += call.send_counts[static_cast<std::size_t>(peer)];
        to += call.receive_counts[static_cast<std::size_t>(peer)];
      }
      copy(bytes_of(call.out) + to * element, bytes_of(call.in) + from * element,
           call.send_counts[static_cast<std::size_t>(rank())] * element);
      break;
    }
    case Kind::kExchange: {
      std::vector<const Tensor*> sent;
      for (const Transfer& transfer : call.transfers) {
        if (transfer.peer == rank() && transfer.sends) sent.push_back(&transfer.data);
      }
      std::size_t next = 0;
      for (const Transfer& transfer : call.transfers) {
        if (transfer.peer != rank() || transfer.sends) continue;
        copy(bytes_of(transfer.data), bytes_of(*sent[next++]), transfer.data.bytes());
      }
      break;
    }
    default:
      break;
  }
}

Result NcclCommunicator::start_in_library(Stream& stream, const Call& call, Comm comm) const {
  const Library& library = *context_->library;
  const StreamHandle handle = context_->collectives.stream_handle(innermost(stream));
  const bool reduces = call.kind == Kind::kAllReduce || call.kind == Kind::kReduceScatter;
  if (call.kind == Kind::kAllToAll || call.kind == Kind::kExchange) {
    return send_and_receive(stream, call, comm);
  }
  if (call.kind == Kind::kBarrier) {
    return library.all_reduce(barrier_, barrier_, 1, DataType::kI32, Operation::kMax, comm, handle);
  }
  if (call.in.elements() == 0) return Result::kSuccess;
  const DataType type = type_of(call.in.dtype);
  const Operation operation = reduces ? operation_of(call.reduction) : Operation::kSum;
  switch (call.kind) {
    case Kind::kAllReduce:
      return library.all_reduce(call.in.data, call.out.data, count_of(call.in), type, operation, comm,
                                handle);
    case Kind::kReduceScatter:
      return library.reduce_scatter(call.in.data, call.out.data, count_of(call.out), type, operation, comm,
                                    handle);
    case Kind::kAllGather:
      return library.all_gather(call.in.data, call.out.data, count_of(call.in), type, comm, handle);
    case Kind::kBroadcast:
      return library.broadcast(call.in.data, call.out.data, count_of(call.in), type, call.root, comm, handle);
    default:
      throw std::logic_error("nccl: an unknown call");
  }
}

Result NcclCommunicator::send_and_receive(Stream& stream, const Call& call, Comm comm) const {
  const Library& library = *context_->library;
  const StreamHandle handle = context_->collectives.stream_handle(innermost(stream));
  if (const Result result = library.group_start(); result != Result::kSuccess) return result;
  Result worst = Result::kSuccess;
  const auto move = [&](bool sends, int peer, const Tensor& data, std::int64_t begin, std::int64_t count) {
    if (peer == rank() || count == 0) return;
    std::byte* const at = bytes_of(data) + begin * size_of(data.dtype);
    const auto elements = static_cast<std::size_t>(count);
    const DataType type = type_of(data.dtype);
    note(worst, sends ? library.send(at, elements, type, peer, comm, handle)
                      : library.receive(at, elements, type, peer, comm, handle));
  };
  if (call.kind == Kind::kAllToAll) {
    for_each_part(call.send_counts, [&](int peer, std::int64_t begin, std::int64_t count) {
      move(true, peer, call.in, begin, count);
    });
    for_each_part(call.receive_counts, [&](int peer, std::int64_t begin, std::int64_t count) {
      move(false, peer, call.out, begin, count);
    });
  } else {
    for (const Transfer& transfer : call.transfers) {
      move(transfer.sends, transfer.peer, transfer.data, 0, transfer.data.elements());
    }
  }
  // A library group must be closed even after a failure within it.
  const Result closed = library.group_end();
  return worst == Result::kSuccess ? closed : worst;
}

// ---- Watching -----------------------------------------------------------------------------------

bool NcclCommunicator::poll() noexcept {
  try {
    bool late = false, busy = false;
    Pending oldest;  // a copy for be_late(), without events
    std::chrono::milliseconds waited{};
    {
      const std::lock_guard lock(mutex_);
      const auto reached = [&](const std::unique_ptr<Event>& event) {
        return context_->collectives.reached(*event);
      };
      while (!pending_.empty()) {
        Pending& front = pending_.front();
        if (!front.begun && reached(front.begin)) {
          front.begun = Clock::now();
          state_.recorder.started(front.record);
        }
        if (!front.begun || !reached(front.end)) break;
        if (!state_.abort->aborted()) state_.recorder.ended(front.record, false);
        free_events_.push_back(std::move(front.begin));
        free_events_.push_back(std::move(front.end));
        pending_.pop_front();
      }
      busy = !pending_.empty();
      if (busy && pending_.front().begun) {
        const Pending& front = pending_.front();
        waited = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - *front.begun);
        late = size() > 1 && waited > state_.timeout.load() && Clock::now() >= state_.excused_until.load();
        oldest.record = front.record;
        oldest.exchange = front.exchange;
        oldest.peers = front.peers;
      }
    }
    if (!busy || !handle_ || state_.abort->aborted()) return busy;
    if (late) be_late(oldest, waited);
    bool remote = false;
    if (const std::string problem = handle_->problem(remote); !problem.empty()) {
      // Waits for the rendezvous, which also detects lost ranks and states the cause more precisely.
      for (auto patience = 0ms; remote && patience < kCauseDelay && !state_.abort->aborted();
           patience += 5ms) {
        std::this_thread::sleep_for(5ms);
      }
      state_.abort->abort(fmt::format("rank {}: {} failed in group '{}': {}", state_.rank,
                                      context_->library->name, name(), problem));
    }
    return busy;
  } catch (const Error& error) {
    state_.abort->abort(fmt::format("rank {}: {}", state_.rank, error.what()), error.kind());
  } catch (const std::exception& error) {
    state_.abort->abort(fmt::format("rank {}: {}", state_.rank, error.what()));
  }
  return false;
}

void NcclCommunicator::be_late(const Pending& pending, std::chrono::milliseconds waited) {
  FlightRecorder::Record mine;
  for (FlightRecorder::Record& record : state_.recorder.records()) {
    if (record.id == pending.record) mine = std::move(record);
  }
  std::vector<std::optional<RankStatus>> statuses;
  if (state_.ask_all) statuses = state_.ask_all(name());
  // The library does not report which rank it waits for. The suspects are the ranks that have not arrived, or
  // all ranks if all have arrived.
  std::vector<int> suspects, absent;
  for (const int peer : pending.peers) {
    const auto member = static_cast<std::size_t>(members_[static_cast<std::size_t>(peer)]);
    suspects.push_back(static_cast<int>(member));
    const std::optional<RankStatus> status = member < statuses.size() ? statuses[member] : std::nullopt;
    const bool came = status && !pending.exchange && status->sequence >= mine.sequence;
    if (!came) absent.push_back(static_cast<int>(member));
  }
  if (!absent.empty()) suspects = absent;
  if (!suspects.empty()) state_.recorder.waiting_for(pending.record, suspects.front());
  if (excused(state_, suspects, statuses)) return;
  state_.abort->abort(fmt::format("rank {}: {}", state_.rank, diagnose(mine, waited, suspects, statuses)));
}

bool NcclCommunicator::release() noexcept {
  if (copies_) copies_->release();
  const std::lock_guard lock(mutex_);
  if (rows_.direct) rows_.direct->release();
  // A concurrent call may have enqueued further waits for flags, so release() is needed again.
  return copies_ || rows_.direct;
}

void NcclCommunicator::end() noexcept {
  if (handle_) handle_->end();
  const std::lock_guard lock(mutex_);
  for (const Pending& pending : pending_) {
    if (pending.begun) state_.recorder.ended(pending.record, true);
  }
}

}  // namespace primus::comm::nccl
