#include "comm/communicator.h"

#include <fmt/format.h>

#include <stdexcept>
#include <utility>

#include "device/watched.h"

namespace primus::comm {
namespace {

void require(bool holds, const char* what) {
  if (!holds) throw std::logic_error(std::string("communicator: ") + what);
}

// Checks one operand: it must exist and have a supported type.
void check(const Tensor& tensor) {
  require(!tensor.absent(), "an operand is missing");
  require(supports(tensor.dtype), "only fp32, fp64, bf16, fp16, int32, int64 and uint8 can be communicated");
}

void check_reduction(DType dtype, Reduction reduction) {
  const bool floating =
      dtype == DType::kF32 || dtype == DType::kF64 || dtype == DType::kBF16 || dtype == DType::kF16;
  require(reduction != Reduction::kMean || floating, "a mean of integers is not defined");
}

const char* address(const Tensor& tensor) { return static_cast<const char*>(tensor.data); }

// Returns whether two tensors overlap in memory; false in a dry run, in which data pointers are null.
bool share_bytes(const Tensor& a, const Tensor& b) {
  return a.data && b.data && address(a) < address(b) + b.bytes() && address(b) < address(a) + a.bytes();
}

// Checks that `part` either does not overlap `whole`, or is exactly part `rank` of `whole`.
void check_overlap(const Tensor& part, const Tensor& whole, int rank) {
  require(!share_bytes(part, whole) || address(part) == address(whole) + rank * part.bytes(),
          "operands overlap, but are not in place");
}

std::int64_t checked_total(std::span<const std::int64_t> counts, std::size_t size) {
  require(counts.size() == size, "one count per rank is needed");
  std::int64_t total = 0;
  for (const std::int64_t count : counts) {
    require(count >= 0 && !__builtin_add_overflow(total, count, &total), "a count is negative or too large");
  }
  return total;
}

}  // namespace

std::string_view name_of(Kind kind) {
  static constexpr std::string_view kNames[] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast",
                                                "all_to_all", "exchange",       "barrier"};
  const auto index = static_cast<std::size_t>(kind);
  return index < std::size(kNames) ? kNames[index] : "unknown";
}

std::string_view name_of(Reduction reduction) {
  static constexpr std::string_view kNames[] = {"sum", "max", "mean"};
  const auto index = static_cast<std::size_t>(reduction);
  return index < std::size(kNames) ? kNames[index] : "unknown";
}

bool supports(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF64 || dtype == DType::kBF16 || dtype == DType::kF16 ||
         dtype == DType::kI32 || dtype == DType::kI64 || dtype == DType::kU8;
}

double Traffic::total_bytes() const {
  double sum = 0;
  for (const Line& line : lines) sum += line.bytes;
  return sum;
}

Communicator::Communicator(std::string name, int rank, int size, Overlap overlap)
    : name_(std::move(name)), rank_(rank), size_(size), overlap_(overlap) {
  require(size >= 1 && rank >= 0 && rank < size, "a rank is outside its group");
}

Traffic Communicator::traffic() const {
  Traffic result = traffic_;
  result.lines[static_cast<std::size_t>(Kind::kAllToAll)].bytes -= static_cast<double>(unsent());
  return result;
}

void Communicator::submit(Stream& stream, Call call, double bytes) {
  prepare(stream, call);
  bytes -= static_cast<double>(call.unsent);
  Traffic::Line& line = traffic_.lines[static_cast<std::size_t>(call.kind)];
  ++line.calls;
  line.bytes += bytes;
  const WatchedWork watched(&stream, [&] {
    return WorkLabel{
        .name = std::string(name_of(call.kind)),
        .category = "communication",
        .arguments = fmt::format(R"("group": "{}", "ranks": {}, "bytes": {:.0f})", name_, size_, bytes)};
  });
  enqueue(stream, std::move(call));
}

void Communicator::all_reduce(Stream& stream, const Tensor& in, const Tensor& out, Reduction reduction) {
  check(in);
  check(out);
  check_reduction(in.dtype, reduction);
  require(in.dtype == out.dtype && in.elements() == out.elements(), "operands of all_reduce differ");
  check_overlap(in, out, 0);
  const double bytes = 2.0 * (size_ - 1) / size_ * static_cast<double>(in.bytes());
  submit(stream, {.kind = Kind::kAllReduce, .reduction = reduction, .in = in, .out = out}, bytes);
}

void Communicator::reduce_scatter(Stream& stream, const Tensor& in, const Tensor& out, Reduction reduction) {
  check(in);
  check(out);
  check_reduction(in.dtype, reduction);
  require(in.dtype == out.dtype && in.elements() == out.elements() * size_,
          "operands of reduce_scatter do not fit");
  check_overlap(out, in, rank_);
  const double bytes = static_cast<double>(size_ - 1) * static_cast<double>(out.bytes());
  submit(stream, {.kind = Kind::kReduceScatter, .reduction = reduction, .in = in, .out = out}, bytes);
}

void Communicator::all_gather(Stream& stream, const Tensor& in, const Tensor& out) {
  check(in);
  check(out);
  require(in.dtype == out.dtype && out.elements() == in.elements() * size_,
          "operands of all_gather do not fit");
  check_overlap(in, out, rank_);
  const double bytes = static_cast<double>(size_ - 1) * static_cast<double>(in.bytes());
  submit(stream, {.kind = Kind::kAllGather, .in = in, .out = out}, bytes);
}

void Communicator::broadcast(Stream& stream, const Tensor& data, int root) {
  check(data);
  require(root >= 0 && root < size_, "the root of a broadcast is outside the group");
  const double bytes = rank_ == root ? static_cast<double>(size_ - 1) * static_cast<double>(data.bytes()) : 0;
  submit(stream, {.kind = Kind::kBroadcast, .root = root, .in = data, .out = data}, bytes);
}

void Communicator::all_to_all(Stream& stream, const Tensor& in, std::span<const std::int64_t> send_counts,
                              const Tensor& out, std::span<const std::int64_t> receive_counts) {
  check(in);
  check(out);
  const auto size = static_cast<std::size_t>(size_);
  const auto self = static_cast<std::size_t>(rank_);
  const std::int64_t sends = checked_total(send_counts, size);
  const std::int64_t receives = checked_total(receive_counts, size);
  require(in.dtype == out.dtype, "operands of all_to_all differ in type");
  require(sends <= in.elements() && receives <= out.elements(), "counts of all_to_all exceed its operands");
  require(send_counts[self] == receive_counts[self],
          "a rank's send to itself and its receive from itself differ in size");
  if (share_bytes(in, out)) {
    require(in.data == out.data, "operands overlap, but are not in place");
    for (std::size_t peer = 0; peer < size; ++peer) {
      require(send_counts[peer] == receive_counts[peer], "in-place all_to_all needs equal counts");
    }
  }
  const double bytes = static_cast<double>((sends - send_counts[self]) * size_of(in.dtype));
  submit(stream,
         {.kind = Kind::kAllToAll,
          .in = in,
          .out = out,
          .send_counts = {send_counts.begin(), send_counts.end()},
          .receive_counts = {receive_counts.begin(), receive_counts.end()}},
         bytes);
}

void Communicator::all_to_all_rows(Stream& stream, const Tensor& in, const Tensor& send_counts,
                                   const Tensor& out, const Tensor& receive_counts, RowCounts counts) {
  check(in);
  check(out);
  require(in.shape == out.shape && in.dtype == out.dtype && in.shape.rank() == 2 && in.rows() % size_ == 0,
          "operands of all_to_all_rows are not equal parts of rows");
  for (const Tensor* list : {&send_counts, &receive_counts}) {
    check(*list);
    require(list->dtype == DType::kI32 && list->elements() == size_,
            "all_to_all_rows needs one int32 count for each rank");
  }
  require(!share_bytes(in, out), "all_to_all_rows does not work in place");
  const std::int64_t part = in.elements() / size_;
  const std::vector<std::int64_t> parts(static_cast<std::size_t>(size_), part);
  const double bytes = static_cast<double>((size_ - 1) * part * size_of(in.dtype));
  submit(stream,
         {.kind = Kind::kAllToAll,
          .in = in,
          .out = out,
          .send_counts = parts,
          .receive_counts = parts,
          .send_rows = send_counts,
          .receive_rows = receive_counts,
          .row_counts = counts},
         bytes);
}

void Communicator::exchange(Stream& stream, std::span<const Transfer> transfers) {
  double bytes = 0;
  std::vector<const Tensor*> to_self, from_self;
  for (const Transfer& transfer : transfers) {
    check(transfer.data);
    require(transfer.peer >= 0 && transfer.peer < size_, "a peer is outside the group");
    if (transfer.peer == rank_) {
      (transfer.sends ? to_self : from_self).push_back(&transfer.data);
    } else if (transfer.sends) {
      bytes += static_cast<double>(transfer.data.bytes());
    }
  }
  require(to_self.size() == from_self.size(), "a rank's sends to itself must match its receives from itself");
  for (std::size_t i = 0; i < to_self.size(); ++i) {
    require(to_self[i]->dtype == from_self[i]->dtype && to_self[i]->elements() == from_self[i]->elements(),
            "a rank's sends to itself differ from its receives in type or size");
  }
  if (transfers.empty()) return;
  submit(stream, {.kind = Kind::kExchange, .transfers = {transfers.begin(), transfers.end()}}, bytes);
}

std::unique_ptr<Communicator> Communicator::split(std::span<const int> members, const std::string& name,
                                                  Overlap overlap) {
  std::vector<bool> seen(static_cast<std::size_t>(size_));
  int new_rank = -1;
  for (std::size_t i = 0; i < members.size(); ++i) {
    require(members[i] >= 0 && members[i] < size_, "a member is outside the group");
    require(!seen[static_cast<std::size_t>(members[i])], "a member is named twice");
    seen[static_cast<std::size_t>(members[i])] = true;
    if (members[i] == rank_) new_rank = static_cast<int>(i);
  }
  require(new_rank >= 0, "a rank splits off a group that does not contain it");
  std::unique_ptr<Communicator> group = make_split(members, new_rank, name, overlap);
  group->set_ordered_sums(ordered_sums_);
  return group;
}

void Communicator::barrier(Stream& stream) { submit(stream, {.kind = Kind::kBarrier}, 0); }

}  // namespace primus::comm
