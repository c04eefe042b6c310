// Checks that every communicator must pass. The references are computed element by element, in the order that
// comm/communicator.h documents; a communicator with another order must agree within rounding. Every rank
// calls run() with the same arguments. Ranks may be threads, processes or GPUs.
#pragma once

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "base/random/random.h"
#include "comm/communicator.h"
#include "device/device.h"
#include "tensor/bfloat16.h"
#include "tensor/float16.h"

namespace primus::comm::test {

// Returns `count` pseudorandom values, which depend only on the arguments.
inline std::vector<std::byte> make_values(DType dtype, std::int64_t count, int rank, int salt) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(count * size_of(dtype)));
  for (std::int64_t i = 0; i < count; ++i) {
    const auto draw = Philox::block({static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(rank),
                                     static_cast<std::uint32_t>(salt), 7},
                                    {1, 2});
    // Magnitudes range from 2^-12 to 2^11, so that sums depend on their order.
    const float real = std::ldexp(static_cast<float>(static_cast<std::int32_t>(draw[0])) * 0x1p-31F,
                                  static_cast<int>(draw[1] % 24) - 12);
    std::byte* const to = bytes.data() + i * size_of(dtype);
    const auto put = [&](auto value) { std::memcpy(to, &value, sizeof(value)); };
    switch (dtype) {
      case DType::kF32:
        put(real);
        break;
      case DType::kF64:
        put(static_cast<double>(real) * (1 + 0x1p-40));
        break;
      case DType::kBF16:
        put(BFloat16(real));
        break;
      case DType::kF16:
        put(Float16(real));
        break;
      case DType::kI32:
        put(static_cast<std::int32_t>(draw[0]));
        break;
      case DType::kI64:
        put(static_cast<std::int64_t>(draw[0] | (std::uint64_t{draw[1]} << 32)));
        break;
      default:
        put(static_cast<std::uint8_t>(draw[0]));
        break;
    }
  }
  return bytes;
}

// Sums in the order of comm/communicator.h. p is the largest power of two that is less than the number of
// ranks. First sums the ranks below p, then the other ranks, and then adds the two sums.
template <class T, class A>
A reduce_element(const std::vector<std::vector<std::byte>>& inputs, std::size_t i, std::size_t first,
                 std::size_t last, Reduction reduction) {
  if (last - first == 1) {
    T value;
    std::memcpy(&value, inputs[first].data() + i * sizeof(T), sizeof(T));
    return static_cast<A>(value);
  }
  const std::size_t middle = first + std::bit_floor(last - first - 1);
  const A a = reduce_element<T, A>(inputs, i, first, middle, reduction);
  const A b = reduce_element<T, A>(inputs, i, middle, last, reduction);
  return reduction == Reduction::kMax ? (b > a ? b : a) : static_cast<A>(a + b);
}

template <class T, class A>
void reduce_plainly(const std::vector<std::vector<std::byte>>& inputs, std::vector<std::byte>& out,
                    Reduction reduction) {
  const auto count = out.size() / sizeof(T);
  for (std::size_t i = 0; i < count; ++i) {
    A sum = reduce_element<T, A>(inputs, i, 0, inputs.size(), reduction);
    if (reduction == Reduction::kMean) sum = static_cast<A>(sum / static_cast<A>(inputs.size()));
    T result;
    if constexpr (sizeof(A) > sizeof(T) && std::is_integral_v<A>) {
      result = static_cast<T>(static_cast<std::make_unsigned_t<T>>(sum));
    } else {
      result = static_cast<T>(sum);
    }
    std::memcpy(out.data() + i * sizeof(T), &result, sizeof(T));
  }
}

inline std::vector<std::byte> reduce_plainly(DType dtype, const std::vector<std::vector<std::byte>>& inputs,
                                             Reduction reduction) {
  std::vector<std::byte> out(inputs[0].size());
  const bool max = reduction == Reduction::kMax;
  switch (dtype) {
    case DType::kF32:
      reduce_plainly<float, float>(inputs, out, reduction);
      break;
    case DType::kF64:
      reduce_plainly<double, double>(inputs, out, reduction);
      break;
    case DType::kBF16:
      reduce_plainly<BFloat16, float>(inputs, out, reduction);
      break;
    case DType::kF16:
      reduce_plainly<Float16, float>(inputs, out, reduction);
      break;
    case DType::kI32:
      reduce_plainly<std::int32_t, std::int64_t>(inputs, out, reduction);
      break;
    case DType::kI64:  // sums wrap; the maximum compares as signed
      max ? reduce_plainly<std::int64_t, std::int64_t>(inputs, out, reduction)
          : reduce_plainly<std::uint64_t, std::uint64_t>(inputs, out, reduction);
      break;
    default:
      reduce_plainly<std::uint8_t, std::uint32_t>(inputs, out, reduction);
      break;
  }
  return out;
}

// kRanks: the order of comm/communicator.h, which host communicators have. kAny: any order (comm/nccl).
enum class Order { kRanks, kAny };

class Conformance {
 public:
  Conformance(Communicator& comm, Device& device, Stream& stream, Order order = Order::kRanks)
      : comm_(comm), device_(device), stream_(stream), order_(order), n_(comm.size()), rank_(comm.rank()) {}

  // Returns "", or a description of the first failures.
  std::string run(const std::vector<std::int64_t>& counts) {
    for (const DType dtype :
         {DType::kF32, DType::kF64, DType::kBF16, DType::kF16, DType::kI32, DType::kI64, DType::kU8}) {
      for (const std::int64_t count : counts) {
        for (const bool in_place : {false, true}) {
          for (const Reduction reduction : {Reduction::kSum, Reduction::kMax, Reduction::kMean}) {
            const bool floating =
                dtype == DType::kF32 || dtype == DType::kF64 || dtype == DType::kBF16 || dtype == DType::kF16;
            if (reduction == Reduction::kMean && !floating) continue;
            all_reduce(dtype, count, reduction, in_place);
            reduce_scatter(dtype, count, reduction, in_place);
          }
          all_gather(dtype, count, in_place);
          all_to_all(dtype, count, in_place);
        }
        all_to_all_rows(dtype, count);
        broadcast(dtype, count, static_cast<int>(count % n_));
        exchange(dtype, count);
        comm_.barrier(stream_);
        if (wrong_.size() > 2000) return wrong_;
      }
    }
    return wrong_;
  }

 private:
  using Bytes = std::vector<std::byte>;

  Tensor upload(DType dtype, const Bytes& bytes) {
    void* const address = device_.allocate(static_cast<std::int64_t>(bytes.size()));
    stream_.copy_to_device(address, bytes.data(), static_cast<std::int64_t>(bytes.size()));
    stream_.synchronize();
    return {address, dtype, {static_cast<std::int64_t>(bytes.size()) / size_of(dtype)}};
  }
  Bytes download(const Tensor& tensor) {
    Bytes bytes(static_cast<std::size_t>(tensor.bytes()));
    stream_.copy_to_host(bytes.data(), tensor.data, tensor.bytes());
    stream_.synchronize();
    return bytes;
  }
  static Tensor part(const Tensor& whole, std::int64_t begin, std::int64_t count) {
    return {static_cast<char*>(whole.data) + begin * size_of(whole.dtype), whole.dtype, {count}};
  }
  void expect(const Tensor& got, const Bytes& wanted, const std::string& what) {
    const Bytes bytes = download(got);
    if (bytes == wanted) return;
    std::size_t at = 0;
    while (at < bytes.size() && at < wanted.size() && bytes[at] == wanted[at]) ++at;
    wrong_ +=
        fmt::format("rank {} of {}: {}: wrong from byte {} of {}\n", rank_, n_, what, at, wanted.size());
  }
  // Checks one reduction: `got` is part `part` of the reduced inputs. Sums in another order than ours differ
  // by at most 2 n u times the sum of magnitudes, for n roundings per sum. Here u is the unit roundoff. The
  // sum of two fp32 numbers has only one order, so it is compared exactly.
  void expect_reduction(const Tensor& got, const std::vector<Bytes>& inputs, int part, Reduction reduction,
                        const std::string& what) {
    const auto bytes = static_cast<std::ptrdiff_t>(got.bytes());
    const Bytes all = reduce_plainly(got.dtype, inputs, reduction);
    const Bytes wanted(all.begin() + part * bytes, all.begin() + (part + 1) * bytes);
    const bool floating = got.dtype == DType::kF32 || got.dtype == DType::kBF16 || got.dtype == DType::kF16;
    const bool exact = order_ == Order::kRanks || !floating || reduction == Reduction::kMax ||
                       (n_ <= 2 && got.dtype == DType::kF32);
    if (exact) return expect(got, wanted, what);
    const Bytes result = download(got);
    const double unit = std::ldexp(1.0, got.dtype == DType::kF32 ? -24 : got.dtype == DType::kF16 ? -11 : -8);
    // The spacing of fp16 numbers below 2^-14. Sums of such numbers are exact, but means are not.
    const double minimum = got.dtype == DType::kF16 ? 0x1p-24 : 0;
    const auto real = [&](const Bytes& from, std::int64_t at) -> double {
      if (got.dtype == DType::kBF16) {
        BFloat16 value;
        std::memcpy(&value, from.data() + at * 2, 2);
        return static_cast<float>(value);
      }
      if (got.dtype == DType::kF16) {
        Float16 value;
        std::memcpy(&value, from.data() + at * 2, 2);
        return static_cast<float>(value);
      }
      float value = 0;
      std::memcpy(&value, from.data() + at * 4, 4);
      return value;
    };
    for (std::int64_t i = 0; i < got.elements(); ++i) {
      double magnitude = 0;
      for (const Bytes& input : inputs) magnitude += std::abs(real(input, part * got.elements() + i));
      if (reduction == Reduction::kMean) magnitude /= n_;
      const double difference = std::abs(real(result, i) - real(wanted, i));
      if (difference <= 2 * n_ * unit * magnitude + minimum) continue;
      wrong_ += fmt::format("rank {} of {}: {}: element {} is {}, not {}\n", rank_, n_, what, i,
                            real(result, i), real(wanted, i));
      return;
    }
  }
  void release(const Tensor& a, const Tensor& b = {}) {
    device_.release(a.data);
    if (!b.absent() && b.data != a.data) device_.release(b.data);
  }
  std::string label(Kind kind, DType dtype, std::int64_t count, bool in_place, Reduction reduction = {}) {
    return fmt::format("{} {} {} {}{}", name_of(kind), name_of(reduction), count, primus::name_of(dtype),
                       in_place ? " in place" : "");
  }
  Bytes blank(DType dtype, std::int64_t count) {
    return Bytes(static_cast<std::size_t>(count * size_of(dtype)), std::byte{0x5A});
  }

  void all_reduce(DType dtype, std::int64_t count, Reduction reduction, bool in_place) {
    std::vector<Bytes> inputs;
    for (int rank = 0; rank < n_; ++rank) inputs.push_back(make_values(dtype, count, rank, 1));
    const Tensor in = upload(dtype, inputs[static_cast<std::size_t>(rank_)]);
    const Tensor out = in_place ? in : upload(dtype, blank(dtype, count));
    comm_.all_reduce(stream_, in, out, reduction);
    expect_reduction(out, inputs, 0, reduction, label(Kind::kAllReduce, dtype, count, in_place, reduction));
    if (!in_place) expect(in, inputs[static_cast<std::size_t>(rank_)], "the input of all_reduce");
    release(in, out);
  }

  void reduce_scatter(DType dtype, std::int64_t count, Reduction reduction, bool in_place) {
    std::vector<Bytes> inputs;
    for (int rank = 0; rank < n_; ++rank) inputs.push_back(make_values(dtype, count * n_, rank, 2));
    const Tensor in = upload(dtype, inputs[static_cast<std::size_t>(rank_)]);
    const Tensor out = in_place ? part(in, rank_ * count, count) : upload(dtype, blank(dtype, count));
    comm_.reduce_scatter(stream_, in, out, reduction);
    expect_reduction(out, inputs, rank_, reduction,
                     label(Kind::kReduceScatter, dtype, count, in_place, reduction));
    release(in, in_place ? Tensor{} : out);
  }

  void all_gather(DType dtype, std::int64_t count, bool in_place) {
    Bytes wanted;
    for (int rank = 0; rank < n_; ++rank) {
      const Bytes values = make_values(dtype, count, rank, 3);
      wanted.insert(wanted.end(), values.begin(), values.end());
    }
    const Tensor out = upload(dtype, blank(dtype, count * n_));
    const Bytes mine = make_values(dtype, count, rank_, 3);
    const Tensor in = in_place ? part(out, rank_ * count, count) : upload(dtype, mine);
    stream_.copy_to_device(in.data, mine.data(), in.bytes());
    comm_.all_gather(stream_, in, out);
    expect(out, wanted, label(Kind::kAllGather, dtype, count, in_place));
    release(out, in_place ? Tensor{} : in);
  }

  void broadcast(DType dtype, std::int64_t count, int root) {
    const Tensor data = upload(dtype, make_values(dtype, count, rank_, 4));
    comm_.broadcast(stream_, data, root);
    expect(data, make_values(dtype, count, root, 4), label(Kind::kBroadcast, dtype, count, true));
    release(data);
  }

  // Checks all_to_all_rows() with parts of `rows` rows. Each pair of ranks exchanges its own number of rows;
  // rows after these are not checked.
  void all_to_all_rows(DType dtype, std::int64_t rows) {
    constexpr std::int64_t kWidth = 3;
    const auto between = [&](int from, int to) {
      return (from + 2 * to) % 4 == 0 ? 0 : rows / (1 + (from + to) % 3);
    };
    const std::int64_t part = rows * kWidth * size_of(dtype);
    const auto counts = [&](auto of_peer) {
      Bytes bytes;
      for (int peer = 0; peer < n_; ++peer) {
        const auto count = static_cast<std::int32_t>(of_peer(peer));
        const auto* const from = reinterpret_cast<const std::byte*>(&count);
        bytes.insert(bytes.end(), from, from + sizeof(count));
      }
      return upload(DType::kI32, bytes);
    };
    const Tensor sends = counts([&](int peer) { return between(rank_, peer); });
    const Tensor receives = counts([&](int peer) { return between(peer, rank_); });
    const Shape shape{n_ * rows, kWidth};
    const Tensor in = upload(dtype, make_values(dtype, shape.elements(), rank_, 6));
    const Tensor out = upload(dtype, blank(dtype, shape.elements()));
    const double before = comm_.traffic()[Kind::kAllToAll].bytes;
    const std::uint64_t number = comm_.new_row_number();
    comm_.count_rows(stream_, sends, receives, number);
    comm_.all_to_all_rows(stream_, in.reshaped(shape), sends, out.reshaped(shape), receives,
                          {.number = number});
    for (int from = 0; from < n_; ++from) {
      const Bytes values = make_values(dtype, shape.elements(), from, 6);
      const auto first = values.begin() + rank_ * part;
      const std::int64_t count = between(from, rank_) * kWidth;
      const Bytes wanted(first, first + count * size_of(dtype));
      const std::int64_t begin = from * rows * kWidth;
      expect(out.slice(begin, begin + count), wanted,
             label(Kind::kAllToAll, dtype, rows, false) + " of rows");
    }
    double sent = 0;
    for (int to = 0; to < n_; ++to)
      sent += to == rank_ ? 0 : static_cast<double>(between(rank_, to) * kWidth * size_of(dtype));
    const double counted = comm_.traffic()[Kind::kAllToAll].bytes - before;
    if (counted != sent)
      wrong_ +=
          fmt::format("rank {} of {}: all_to_all_rows counts {} bytes, not {}\n", rank_, n_, counted, sent);
    // The rows return, first with known counts, then with counts that have no number.
    for (const RowCounts known : {RowCounts{.number = number, .back = true}, RowCounts{}}) {
      if (dtype != DType::kBF16) break;
      const Bytes mine = make_values(dtype, shape.elements(), rank_, 6);
      const Tensor back = upload(dtype, blank(dtype, shape.elements()));
      comm_.all_to_all_rows(stream_, out.reshaped(shape), receives, back.reshaped(shape), sends, known);
      for (int to = 0; to < n_; ++to) {
        const auto first = mine.begin() + to * part;
        const std::int64_t begin = to * rows * kWidth, count = between(rank_, to) * kWidth;
        expect(back.slice(begin, begin + count), Bytes(first, first + count * size_of(dtype)),
               label(Kind::kAllToAll, dtype, rows, false) + " of returning rows");
      }
      release(back);
    }
    release(in, out);
    release(sends, receives);
  }

  // Unless in place, every pair of ranks has its own count, and some counts are 0.
  void all_to_all(DType dtype, std::int64_t count, bool in_place) {
    const auto between = [&](int from, int to) {
      return in_place ? count / (1 + (from + to) % 3)
                      : ((from * 3 + to) % 4 == 0 ? 0 : count / (1 + to) + from);
    };
    std::vector<std::int64_t> sends, receives;
    for (int peer = 0; peer < n_; ++peer) {
      sends.push_back(between(rank_, peer));
      receives.push_back(between(peer, rank_));
    }
    const auto total = [](const auto& counts) {
      return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
    };
    const auto values_of = [&](int from) {
      std::int64_t all = 0;
      for (int peer = 0; peer < n_; ++peer) all += between(from, peer);
      return make_values(dtype, all, from, 5);
    };
    Bytes wanted;
    for (int from = 0; from < n_; ++from) {
      std::int64_t begin = 0;
      for (int peer = 0; peer < rank_; ++peer) begin += between(from, peer);
      const Bytes values = values_of(from);
      const auto first = values.begin() + begin * size_of(dtype);
      wanted.insert(wanted.end(), first, first + between(from, rank_) * size_of(dtype));
    }
    const Tensor in = upload(dtype, values_of(rank_));
    const Tensor out = in_place ? in : upload(dtype, blank(dtype, total(receives)));
    comm_.all_to_all(stream_, in, sends, out, receives);
    expect(out, wanted, label(Kind::kAllToAll, dtype, count, in_place));
    release(in, out);
  }

  // Every rank sends two tensors to every rank, itself included. Half of the ranks post their receives first.
  void exchange(DType dtype, std::int64_t count) {
    std::vector<Transfer> sends, receives;
    std::vector<Tensor> tensors;
    for (int peer = 0; peer < n_; ++peer) {
      for (int i = 0; i < 2; ++i) {
        tensors.push_back(upload(dtype, make_values(dtype, count + i, rank_, 10 * peer + i)));
        sends.push_back(Transfer::send(tensors.back(), peer));
        tensors.push_back(upload(dtype, blank(dtype, count + i)));
        receives.push_back(Transfer::receive(tensors.back(), peer));
      }
    }
    std::vector<Transfer> all = rank_ % 2 == 0 ? sends : receives;
    const std::vector<Transfer>& rest = rank_ % 2 == 0 ? receives : sends;
    all.insert(all.end(), rest.begin(), rest.end());
    comm_.exchange(stream_, all);
    for (int peer = 0; peer < n_; ++peer) {
      for (int i = 0; i < 2; ++i) {
        expect(receives[static_cast<std::size_t>(2 * peer + i)].data,
               make_values(dtype, count + i, peer, 10 * rank_ + i),
               label(Kind::kExchange, dtype, count, false));
      }
    }
    for (const Tensor& tensor : tensors) release(tensor);
  }

  Communicator& comm_;
  Device& device_;
  Stream& stream_;
  Order order_;
  int n_, rank_;
  std::string wrong_;
};

}  // namespace primus::comm::test
