#include "comm/fake_nccl.h"

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "comm/conformance.h"
#include "comm/nccl/library.h"
#include "device/cpu/cpu_device.h"

namespace primus::comm::nccl {
namespace {

using Bytes = std::vector<std::byte>;

thread_local int version = 22809;
std::atomic<int> slowness{0}, alive{0}, aborted{0}, ids{0}, blocks{0};
std::atomic<void (*)()> abort_hook{nullptr};
std::atomic<long long> sent{0};
std::mutex errors_mutex;
std::map<int, Result> errors;  // by rank

// The ranks of a group, and the calls and messages in flight between them.
struct Group {
  std::mutex mutex;
  std::condition_variable changed;
  int size = 0, joined = 0, leaving = 0;
  struct Meeting {
    std::vector<Bytes> inputs;
    int came = 0, left = 0;
  };
  std::map<int, Meeting> meetings;                        // by call number
  std::map<std::pair<int, int>, std::deque<Bytes>> mail;  // by sender and receiver
};

std::mutex groups_mutex;
std::map<std::string, std::shared_ptr<Group>> groups;

struct Communicator {
  std::shared_ptr<Group> group;
  int rank = 0, calls = 0;
  std::atomic<bool> ended{false}, leaves{false};
  std::atomic<int> not_ready{0};
};

Communicator& of(Comm comm) { return *reinterpret_cast<Communicator*>(comm); }

// One call, as its kernel sees it. The kernel shares ownership because it may outlive the communicator.
struct Work {
  std::shared_ptr<Communicator> comm;
  Kind kind;
  const void* in;
  void* out;
  std::size_t count;
  DType dtype;
  Reduction reduction;
  int root, number;
  struct Part {
    bool sends;
    int peer;
    void* data;
    std::size_t bytes;
  };
  std::vector<Part> parts;
};

std::map<Comm, std::shared_ptr<Communicator>> communicators;
std::mutex communicators_mutex;

std::shared_ptr<Communicator> shared(Comm comm) {
  const std::lock_guard lock(communicators_mutex);
  return communicators.at(comm);
}

std::byte* translate(const cpu::CpuContext& context, const void* address) {
  return context.data<std::byte>(Tensor(const_cast<void*>(address), DType::kU8, {1}));
}

void run_parts(const cpu::CpuContext& context, Work& work) {
  Group& group = *work.comm->group;
  std::unique_lock lock(group.mutex);
  for (const Work::Part& part : work.parts) {
    if (!part.sends) continue;
    const std::byte* const from = translate(context, part.data);
    group.mail[{work.comm->rank, part.peer}].emplace_back(from, from + part.bytes);
  }
  group.changed.notify_all();
  for (const Work::Part& part : work.parts) {
    if (part.sends) continue;
    auto& box = group.mail[{part.peer, work.comm->rank}];
    group.changed.wait(lock, [&] { return work.comm->ended || !box.empty(); });
    if (work.comm->ended) return;
    std::memcpy(translate(context, part.data), box.front().data(), part.bytes);
    box.pop_front();
  }
}

void run_meeting(const cpu::CpuContext& context, Work& work) {
  Group& group = *work.comm->group;
  const std::size_t element = static_cast<std::size_t>(size_of(work.dtype));
  const auto ranks = static_cast<std::size_t>(group.size);
  const std::size_t in_count = work.count * (work.kind == Kind::kReduceScatter ? ranks : 1);
  std::unique_lock lock(group.mutex);
  Group::Meeting& meeting = group.meetings[work.number];
  meeting.inputs.resize(ranks);
  const std::byte* const in = translate(context, work.in);
  meeting.inputs[static_cast<std::size_t>(work.comm->rank)] = Bytes(in, in + in_count * element);
  ++meeting.came;
  group.changed.notify_all();
  group.changed.wait(lock, [&] { return work.comm->ended || meeting.came == group.size; });
  if (work.comm->ended) return;
  Bytes result;
  if (work.kind == Kind::kAllGather) {
    for (const Bytes& each : meeting.inputs) result.insert(result.end(), each.begin(), each.end());
  } else if (work.kind == Kind::kBroadcast) {
    result = meeting.inputs[static_cast<std::size_t>(work.root)];
  } else {
    result = test::reduce_plainly(work.dtype, meeting.inputs, work.reduction);
    if (work.kind == Kind::kReduceScatter) {
      const std::size_t begin = work.count * element * static_cast<std::size_t>(work.comm->rank);
      result = Bytes(result.begin() + static_cast<std::ptrdiff_t>(begin),
                     result.begin() + static_cast<std::ptrdiff_t>(begin + work.count * element));
    }
  }
  std::memcpy(translate(context, work.out), result.data(), result.size());
  if (++meeting.left == group.size) group.meetings.erase(work.number);
}

void kernel(KernelContext& context, const void* arguments) {
  Work* pointer = nullptr;
  std::memcpy(&pointer, arguments, sizeof(pointer));
  const std::unique_ptr<Work> work(pointer);
  const auto& cpu = static_cast<const cpu::CpuContext&>(context);
  work->parts.empty() ? run_meeting(cpu, *work) : run_parts(cpu, *work);
}

Result launch(std::unique_ptr<Work> work, StreamHandle stream) {
  work->comm->not_ready = slowness.load();
  const bool slow = work->comm->not_ready != 0;
  Work* const pointer = work.release();
  static_cast<Stream*>(stream)->launch(&kernel, &pointer, sizeof(pointer));
  return slow ? Result::kInProgress : Result::kSuccess;
}

DType dtype_of(DataType type) {
  switch (type) {
    case DataType::kU8:
      return DType::kU8;
    case DataType::kI32:
      return DType::kI32;
    case DataType::kI64:
      return DType::kI64;
    case DataType::kF32:
      return DType::kF32;
    case DataType::kF64:
      return DType::kF64;
    case DataType::kBF16:
      return DType::kBF16;
    case DataType::kF16:
      return DType::kF16;
  }
  return DType::kU8;
}

Result meet(Kind kind, const void* in, void* out, std::size_t count, DataType type, Operation operation,
            int root, Comm comm, StreamHandle stream) {
  auto work = std::make_unique<Work>();
  work->comm = shared(comm);
  work->kind = kind;
  work->in = in;
  work->out = out;
  work->count = count;
  work->dtype = dtype_of(type);
  work->reduction = operation == Operation::kSum   ? Reduction::kSum
                    : operation == Operation::kMax ? Reduction::kMax
                                                   : Reduction::kMean;
  work->root = root;
  work->number = of(comm).calls++;
  return launch(std::move(work), stream);
}

// The group call that this thread has started.
thread_local std::unique_ptr<Work> group_work;
thread_local StreamHandle group_stream = nullptr;

Result add_part(bool sends, const void* data, std::size_t count, DataType type, int peer, Comm comm,
                StreamHandle stream) {
  if (!group_work) return Result::kInvalidUsage;  // outside a group, a send would wait for its receiver
  group_work->comm = shared(comm);
  if (sends) sent += static_cast<long long>(count) * size_of(dtype_of(type));
  group_work->parts.push_back(
      {sends, peer, const_cast<void*>(data), count * static_cast<std::size_t>(size_of(dtype_of(type)))});
  group_stream = stream;
  return Result::kSuccess;
}

Result forget(Comm comm, bool abort) {
  const std::shared_ptr<Communicator> one = shared(comm);
  {
    const std::lock_guard lock(one->group->mutex);
    one->ended = true;
  }
  one->group->changed.notify_all();
  --alive;
  if (abort) ++aborted;
  const std::lock_guard lock(communicators_mutex);
  communicators.erase(comm);
  return Result::kSuccess;
}

}  // namespace
}  // namespace primus::comm::nccl

using namespace primus::comm::nccl;
using primus::comm::Kind;

extern "C" {

void fake_nccl_version(int wanted) { version = wanted; }
void fake_nccl_on_abort(void (*hook)()) { abort_hook = hook; }
void fake_nccl_error(int rank, int result) {
  const std::lock_guard lock(errors_mutex);
  errors[rank] = static_cast<Result>(result);
}
void fake_nccl_slowness(int times) { slowness = times; }
int fake_nccl_alive() { return alive; }
int fake_nccl_aborted() { return aborted; }
long long fake_nccl_sent() { return sent; }
int fake_nccl_blocks() { return blocks; }

Result ncclGetVersion(int* out) {
  *out = version;
  return Result::kSuccess;
}
const char* ncclGetErrorString(Result result) {
  return result == Result::kRemoteError ? "remote process exited or there was a network error"
                                        : "some error of the library";
}
const char* ncclGetLastError(Comm) { return "as the library logged it"; }

Result ncclGetUniqueId(UniqueId* id) {
  *id = {};
  const std::string text = "group " + std::to_string(ids++);
  std::memcpy(id->bytes.data(), text.data(), text.size());
  return Result::kSuccess;
}

Result ncclCommInitRankConfig(Comm* comm, int ranks, UniqueId id, int rank, Config* config) {
  if (config->blocking != 0 || config->magic != 0xcafebeef) return Result::kInvalidArgument;
  blocks = config->max_ctas;
  auto one = std::make_shared<Communicator>();
  {
    const std::lock_guard lock(groups_mutex);
    auto& group = groups[std::string(id.bytes.data())];
    if (!group) group = std::make_shared<Group>();
    one->group = group;
  }
  one->rank = rank;
  {
    const std::lock_guard lock(one->group->mutex);
    one->group->size = ranks;
    ++one->group->joined;
  }
  *comm = reinterpret_cast<Comm>(one.get());
  ++alive;
  const std::lock_guard lock(communicators_mutex);
  communicators[*comm] = std::move(one);
  return Result::kInProgress;
}

Result ncclCommGetAsyncError(Comm comm, Result* out) {
  Communicator& one = of(comm);
  {
    const std::lock_guard lock(errors_mutex);
    *out = errors[one.rank];
  }
  if (*out != Result::kSuccess) return Result::kSuccess;
  const std::lock_guard lock(one.group->mutex);
  if (one.not_ready != 0) {
    if (one.not_ready > 0) --one.not_ready;
    *out = Result::kInProgress;
  }
  if (one.group->joined < one.group->size) *out = Result::kInProgress;
  if (one.leaves && one.group->leaving < one.group->size) *out = Result::kInProgress;
  return Result::kSuccess;
}

Result ncclCommFinalize(Comm comm) {
  Communicator& one = of(comm);
  const std::lock_guard lock(one.group->mutex);
  one.leaves = true;
  ++one.group->leaving;
  return Result::kInProgress;
}
Result ncclCommDestroy(Comm comm) { return forget(comm, false); }
Result ncclCommAbort(Comm comm) {
  if (void (*const hook)() = abort_hook.load()) hook();
  return forget(comm, true);
}

Result ncclGroupStart() {
  group_work = std::make_unique<Work>();
  return Result::kSuccess;
}
Result ncclGroupEnd() {
  const std::unique_ptr<Work> work = std::move(group_work);
  if (!work) return Result::kInvalidUsage;
  return work->parts.empty() ? Result::kSuccess
                             : launch(std::make_unique<Work>(std::move(*work)), group_stream);
}
Result ncclSend(const void* data, std::size_t count, DataType type, int peer, Comm comm,
                StreamHandle stream) {
  return add_part(true, data, count, type, peer, comm, stream);
}
Result ncclRecv(void* data, std::size_t count, DataType type, int peer, Comm comm, StreamHandle stream) {
  return add_part(false, data, count, type, peer, comm, stream);
}

Result ncclAllReduce(const void* in, void* out, std::size_t count, DataType type, Operation operation,
                     Comm comm, StreamHandle stream) {
  return meet(Kind::kAllReduce, in, out, count, type, operation, 0, comm, stream);
}
Result ncclReduceScatter(const void* in, void* out, std::size_t count, DataType type, Operation operation,
                         Comm comm, StreamHandle stream) {
  return meet(Kind::kReduceScatter, in, out, count, type, operation, 0, comm, stream);
}
Result ncclAllGather(const void* in, void* out, std::size_t count, DataType type, Comm comm,
                     StreamHandle stream) {
  return meet(Kind::kAllGather, in, out, count, type, Operation::kSum, 0, comm, stream);
}
Result ncclBroadcast(const void* in, void* out, std::size_t count, DataType type, int root, Comm comm,
                     StreamHandle stream) {
  return meet(Kind::kBroadcast, in, out, count, type, Operation::kSum, root, comm, stream);
}
}
