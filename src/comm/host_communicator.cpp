#include "comm/host_communicator.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "base/system/rank_waits.h"
#include "comm/split_id.h"
#include "device/cpu/cpu_device.h"

namespace primus::comm {
namespace {

using namespace std::chrono_literals;

// Up to this size, every rank receives all inputs and computes the entire result. This needs one exchange
// instead of two.
constexpr std::int64_t kSmallBytes = 4096;
// Bytes that one rank reduces before results are gathered. Blocks of this size stay in caches.
constexpr std::int64_t kBlockBytes = 256 << 10;
// Size of a rank's staging memory for an in-place all_to_all, over all peers.
constexpr std::int64_t kStagingBytes = 1 << 20;

std::byte* bytes_of(const Tensor& tensor) { return static_cast<std::byte*>(tensor.data); }

void copy_bytes(std::byte* to, const std::byte* from, std::int64_t bytes) {
  if (to != from && bytes != 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

// Returns where part `index` of `parts` begins in `count` elements.
std::int64_t part_begin(std::int64_t count, int parts, int index) {
  const std::int64_t each = count / parts, more = count % parts;
  return each * index + std::min<std::int64_t>(more, index);
}

// Returns the number of elements in the counts[peer] rows of a peer's part. A part has room for `maximum`
// elements.
std::int64_t counted_elements(const Tensor& counts, int peer, std::int64_t width, std::int64_t maximum) {
  const std::int64_t elements = static_cast<const std::int32_t*>(counts.data)[peer] * width;
  if (elements < 0 || elements > maximum)
    throw std::logic_error("communicator: a count exceeds the rows of a part");
  return elements;
}

}  // namespace

struct HostCommunicator::Launch {
  HostCommunicator* self;
  std::uint64_t turn;
};

HostCommunicator::HostCommunicator(std::string name, std::string id, std::vector<int> members, int rank,
                                   std::shared_ptr<LinkFactory> factory, std::shared_ptr<RankState> state,
                                   Overlap overlap)
    : Communicator(std::move(name), rank, static_cast<int>(members.size()), overlap),
      id_(std::move(id)),
      members_(std::move(members)),
      factory_(std::move(factory)),
      state_(std::move(state)),
      links_(factory_->make(id_, members_, rank)),
      messenger_(*links_, *state_, members_, rank),
      recorder_group_(state_->recorder.add_group(this->name(), size())),
      accumulators_(static_cast<std::size_t>(kAccumulatorElements) *
                    static_cast<std::size_t>(std::bit_width(members_.size()))) {}

HostCommunicator::~HostCommunicator() = default;

void HostCommunicator::abort(const std::string& reason) noexcept { state_->abort->abort(reason); }

void HostCommunicator::set_timeout(std::chrono::milliseconds timeout) { state_->timeout = timeout; }

std::unique_ptr<Communicator> HostCommunicator::make_split(std::span<const int> members, int new_rank,
                                                           const std::string& name, Overlap overlap) {
  state_->abort->check();
  std::vector<int> of_job;
  for (const int member : members) of_job.push_back(members_[static_cast<std::size_t>(member)]);
  return std::make_unique<HostCommunicator>(name, split_id(id_, name, members, splits_), std::move(of_job),
                                            new_rank, factory_, state_, overlap);
}

// ---- Order --------------------------------------------------------------------------------------

void HostCommunicator::enqueue(Stream& stream, Call call) {
  state_->abort->check();
  Operation operation{std::move(call), {}, 0, 0};
  operation.signature = signature_of(operation.call);
  // Not all ranks take part in an exchange, so exchanges are counted separately.
  const bool some = operation.call.kind == Kind::kExchange;
  const std::uint64_t counted = some ? ++exchanges_ : ++collectives_;
  operation.sequence = some ? 0 : counted;
  operation.record = state_->recorder.enqueued(recorder_group_, counted, operation.signature);
  Launch launch{this, 0};
  {
    const std::lock_guard lock(mutex_);
    launch.turn = next_turn_++;
    operations_.emplace(launch.turn, std::move(operation));
  }
  stream.launch(&HostCommunicator::kernel, &launch, sizeof(launch));
}

void HostCommunicator::kernel(KernelContext& context, const void* arguments) {
  const auto& launch = *static_cast<const Launch*>(arguments);
  launch.self->run(context, launch.turn);
}

void HostCommunicator::run(KernelContext& context, std::uint64_t turn) {
  const RankWait wait;
  Operation operation;
  {
    std::unique_lock lock(mutex_);
    while (turn_ != turn) {
      state_->abort->check();
      turn_changed_.wait_for(lock, 20ms);
    }
    operation = std::move(operations_.extract(turn).mapped());
  }
  // Device addresses are translated to host addresses only here.
  const auto& cpu = static_cast<const cpu::CpuContext&>(context);
  const auto translate = [&](Tensor& tensor) { tensor.data = cpu.data<std::byte>(tensor); };
  translate(operation.call.in);
  translate(operation.call.out);
  translate(operation.call.send_rows);
  translate(operation.call.receive_rows);
  for (Transfer& transfer : operation.call.transfers) translate(transfer.data);

  bool failed = true;
  try {
    state_->recorder.started(operation.record);
    messenger_.begin(operation.signature, operation.sequence, operation.record);
    execute(operation);
    messenger_.finish();
    failed = false;
  } catch (const Error& error) {
    state_->abort->abort(error.what(), error.kind());
  } catch (const std::exception& error) {
    state_->abort->abort(error.what());
  }
  state_->recorder.ended(operation.record, failed);
  if (failed) links_->revoke();
  {
    const std::lock_guard lock(mutex_);
    ++turn_;
  }
  turn_changed_.notify_all();
  if (failed) state_->abort->check();
}

void HostCommunicator::execute(const Operation& operation) {
  const Call& call = operation.call;
  switch (call.kind) {
    case Kind::kAllReduce:
      return run_all_reduce(call.in, call.out, call.reduction);
    case Kind::kReduceScatter:
      return run_reduce_scatter(call.in, call.out, call.reduction);
    case Kind::kAllGather:
      return run_all_gather(call.in, call.out);
    case Kind::kBroadcast:
      return run_broadcast(call.in, call.root);
    case Kind::kAllToAll:
      return call.in.data == call.out.data && call.in.data ? run_all_to_all_in_place(call)
                                                           : run_all_to_all(call);
    case Kind::kExchange:
      return run_exchange(call);
    case Kind::kBarrier:
      return run_barrier();
    case Kind::kCount:
      break;
  }
}

// ---- Algorithms ---------------------------------------------------------------------------------

void HostCommunicator::meet_all(DType dtype, std::int64_t count) {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    messenger_.open(peer, dtype, count);
    messenger_.expect(peer, dtype, count);
  }
}

void HostCommunicator::reduce(const std::byte* own, std::byte* to, std::int64_t count, DType dtype,
                              Reduction reduction) {
  const Accumulate accumulate = accumulate_for(dtype, reduction);
  const std::int64_t element = size_of(dtype);
  const auto sum = [&](int index) {
    return reinterpret_cast<std::byte*>(accumulators_.data() + index * kAccumulatorElements);
  };
  for (std::int64_t begin = 0; begin < count; begin += kAccumulatorElements) {
    const std::int64_t n = std::min(count - begin, kAccumulatorElements);
    std::byte* const result = to + begin * element;
    int sums = 0;
    for (int source = 0; source < size(); ++source) {
      const bool opens = source % 2 == 0, closes = size() == 2 && source == 1;
      std::byte* const accumulator = sum(opens ? sums : sums - 1);
      std::int64_t done = 0;
      const auto apply = [&](std::span<const std::byte> piece) {
        const std::int64_t elements = static_cast<std::int64_t>(piece.size()) / element;
        std::byte* const at = accumulator + done * accumulate.accumulator_size;
        if (opens) {
          accumulate.assign(at, piece.data(), elements);
        } else if (closes) {
          accumulate.add_store(result + done * element, at, piece.data(), elements, size());
        } else {
          accumulate.add(at, piece.data(), elements);
        }
        done += elements;
      };
      if (source == rank()) {
        apply({own + begin * element, static_cast<std::size_t>(n * element)});
      } else {
        messenger_.consume(source, n * element, element, apply);
      }
      if (opens) ++sums;
      // After `source` + 1 ranks, the number of partial sums is the number of set bits of `source` + 1. After
      // the last rank, all partial sums are merged into one.
      const int left = source + 1 < size() ? std::popcount(static_cast<unsigned>(source + 1)) : 1;
      for (; sums > left; --sums) accumulate.merge(sum(sums - 2), sum(sums - 1), n);
    }
    if (size() != 2) accumulate.store(result, sum(0), n, size());
    messenger_.progress();
  }
}

void HostCommunicator::run_all_reduce(const Tensor& in, const Tensor& out, Reduction reduction) {
  const std::int64_t count = in.elements(), element = size_of(in.dtype);
  const std::byte* from = bytes_of(in);
  std::byte* to = bytes_of(out);
  meet_all(in.dtype, count);
  if (in.bytes() <= kSmallBytes) {
    for (int peer = 0; peer < size(); ++peer) {
      if (peer != rank()) messenger_.send(peer, from, in.bytes());
    }
    // In place, the result stays in a buffer until the input has been sent.
    alignas(8) std::byte result[kSmallBytes];
    reduce(from, result, count, in.dtype, reduction);
    messenger_.settle();
    copy_bytes(to, result, in.bytes());
    return;
  }
  // For each block, every rank reduces its part, then the parts are gathered. This is safe in place. Another
  // rank's result overwrites this rank's input of that part, but the other rank has received this input
  // before it sends the result.
  const std::int64_t block = kBlockBytes / element * size();
  for (std::int64_t begin = 0; begin < count; begin += block) {
    const std::int64_t n = std::min(count - begin, block);
    const auto first = [&](int part) { return (begin + part_begin(n, size(), part)) * element; };
    for (int peer = 0; peer < size(); ++peer) {
      if (peer != rank()) messenger_.send(peer, from + first(peer), first(peer + 1) - first(peer));
    }
    const std::int64_t mine = first(rank()), mine_bytes = first(rank() + 1) - mine;
    reduce(from + mine, to + mine, mine_bytes / element, in.dtype, reduction);
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank()) continue;
      messenger_.send(peer, to + mine, mine_bytes);
      messenger_.receive(peer, to + first(peer), first(peer + 1) - first(peer));
    }
    messenger_.complete_receives();
  }
}

void HostCommunicator::run_reduce_scatter(const Tensor& in, const Tensor& out, Reduction reduction) {
  const std::int64_t count = out.elements(), bytes = out.bytes();
  meet_all(in.dtype, in.elements());
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) messenger_.send(peer, bytes_of(in) + peer * bytes, bytes);
  }
  reduce(bytes_of(in) + rank() * bytes, bytes_of(out), count, in.dtype, reduction);
}

void HostCommunicator::run_all_gather(const Tensor& in, const Tensor& out) {
  const std::int64_t bytes = in.bytes();
  meet_all(in.dtype, in.elements());
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    messenger_.send(peer, in.data, bytes);
    messenger_.receive(peer, bytes_of(out) + peer * bytes, bytes);
  }
  copy_bytes(bytes_of(out) + rank() * bytes, bytes_of(in), bytes);
}

void HostCommunicator::run_broadcast(const Tensor& data, int root) {
  const std::int64_t count = data.elements();
  const DType dtype = data.dtype;
  if (rank() == root) {
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank()) continue;
      messenger_.open(peer, dtype, count);
      messenger_.send(peer, data.data, data.bytes());
    }
  } else {
    messenger_.expect(root, dtype, count);
    messenger_.receive(root, data.data, data.bytes());
  }
}

void HostCommunicator::run_all_to_all(const Call& call) {
  const std::int64_t element = size_of(call.in.dtype);
  std::int64_t send_at = 0, receive_at = 0, unsent = 0;
  for (int peer = 0; peer < size(); ++peer) {
    std::int64_t sends = call.send_counts[static_cast<std::size_t>(peer)];
    std::int64_t receives = call.receive_counts[static_cast<std::size_t>(peer)];
    const std::byte* from = bytes_of(call.in) + send_at * element;
    std::byte* to = bytes_of(call.out) + receive_at * element;
    send_at += sends;
    receive_at += receives;
    if (!call.send_rows.absent()) {
      const std::int64_t part = sends;
      sends = counted_elements(call.send_rows, peer, call.in.cols(), part);
      if (peer != rank()) unsent += (part - sends) * element;
      receives = counted_elements(call.receive_rows, peer, call.in.cols(), receives);
    }
    if (peer == rank()) {
      copy_bytes(to, from, sends * element);
      continue;
    }
    messenger_.open(peer, call.in.dtype, sends);
    messenger_.send(peer, from, sends * element);
    messenger_.expect(peer, call.in.dtype, receives);
    messenger_.receive(peer, to, receives * element);
  }
  count_unsent(unsent);
}

// Received data overwrites data that is not sent yet. So outgoing data is copied to a staging buffer, one
// slice of each part at a time.
void HostCommunicator::run_all_to_all_in_place(const Call& call) {
  const std::int64_t element = size_of(call.in.dtype);
  const std::int64_t piece =
      std::max<std::int64_t>(kStagingBytes / size() / static_cast<std::int64_t>(Links::kGranule), 1) *
      static_cast<std::int64_t>(Links::kGranule);
  const auto bytes_with = [&](int peer) {
    return call.send_counts[static_cast<std::size_t>(peer)] * element;
  };
  std::int64_t longest = 0;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    longest = std::max(longest, bytes_with(peer));
    messenger_.open(peer, call.in.dtype, call.send_counts[static_cast<std::size_t>(peer)]);
    messenger_.expect(peer, call.in.dtype, call.receive_counts[static_cast<std::size_t>(peer)]);
  }
  std::vector<std::byte> staging(static_cast<std::size_t>(std::min(longest, piece) * size()));
  for (std::int64_t done = 0; done < longest; done += piece) {
    std::int64_t begin = 0;
    for (int peer = 0; peer < size(); ++peer) {
      std::byte* const place = bytes_of(call.in) + begin + done;
      begin += bytes_with(peer);
      const std::int64_t n = std::min(bytes_with(peer) - done, piece);
      if (peer == rank() || n <= 0) continue;
      std::byte* const staged = staging.data() + peer * std::min(longest, piece);
      copy_bytes(staged, place, n);
      messenger_.send(peer, staged, n);
      messenger_.receive(peer, place, n);
    }
    messenger_.complete_receives();
    messenger_.settle();
  }
}

void HostCommunicator::run_exchange(const Call& call) {
  std::vector<const Transfer*> to_self;
  for (const Transfer& transfer : call.transfers) {
    if (transfer.peer == rank() && transfer.sends) to_self.push_back(&transfer);
  }
  std::size_t next_own = 0;
  for (const Transfer& transfer : call.transfers) {
    const Tensor& data = transfer.data;
    if (transfer.peer == rank()) {
      if (!transfer.sends) copy_bytes(bytes_of(data), bytes_of(to_self[next_own++]->data), data.bytes());
    } else if (transfer.sends) {
      messenger_.open(transfer.peer, data.dtype, data.elements());
      messenger_.send(transfer.peer, data.data, data.bytes());
    } else {
      messenger_.expect(transfer.peer, data.dtype, data.elements());
      messenger_.receive(transfer.peer, data.data, data.bytes());
    }
  }
}

void HostCommunicator::run_barrier() { meet_all(DType::kU8, 0); }

}  // namespace primus::comm
