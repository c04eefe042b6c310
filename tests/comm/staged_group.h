// Communicators for ranks that are threads of one process, with devices of any kind. Several ranks may share
// one GPU. All data pass through host memory, and every call waits for its result.
//
// Sums have the order of a ring, as in a GPU's collectives library: rank r receives a part of the tensor
// whose sum begins with rank r + 1, ends with rank r, and is rounded at every addition. In tensors of more
// than kSmall bytes, the sum begins at the next rank, as if the library chose another algorithm. So the order
// depends on the position of an element and on the size of the tensor.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"
#include "comm/accumulate.h"
#include "comm/communicator.h"
#include "comm/split_id.h"

namespace primus::comm::test {

using StagedBytes = std::vector<std::byte>;

// The messages between the ranks of a job.
class StagedMail {
 public:
  // Identifies the messages from one rank of a group to another.
  using Lane = std::tuple<std::string, int, int>;

  void send(const Lane& lane, StagedBytes message) {
    const std::lock_guard lock(mutex_);
    boxes_[lane].push_back(std::move(message));
    changed_.notify_all();
  }
  StagedBytes receive(const Lane& lane) {
    std::unique_lock lock(mutex_);
    std::deque<StagedBytes>& box = boxes_[lane];
    const bool in_time =
        changed_.wait_for(lock, std::chrono::seconds(60), [&] { return !reason_.empty() || !box.empty(); });
    if (!reason_.empty() || !in_time)
      throw Error(ErrorKind::kIo, in_time ? reason_ : "a rank waited too long for " + std::get<0>(lane));
    StagedBytes message = std::move(box.front());
    box.pop_front();
    return message;
  }
  void abort(const std::string& reason) {
    const std::lock_guard lock(mutex_);
    if (reason_.empty()) reason_ = reason;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Lane, std::deque<StagedBytes>> boxes_;
  std::string reason_;
};

class StagedCommunicator final : public Communicator {
 public:
  static constexpr std::int64_t kSmall = std::int64_t{32} << 10;

  StagedCommunicator(std::string name, std::string id, int rank, int size, std::shared_ptr<StagedMail> mail,
                     Overlap overlap = Overlap::kNothing)
      : Communicator(std::move(name), rank, size, overlap), id_(std::move(id)), mail_(std::move(mail)) {}

  void abort(const std::string& reason) noexcept override { mail_->abort(reason); }
  void set_timeout(std::chrono::milliseconds) override {}

 private:
  void enqueue(Stream& stream, Call call) override {
    switch (call.kind) {
      case Kind::kExchange:
        return exchange_all(stream, call.transfers);
      case Kind::kAllToAll:
        return all_to_all(stream, call);
      case Kind::kBarrier:
        meet({});
        return;
      case Kind::kBroadcast: {
        const std::vector<StagedBytes> inputs =
            meet(rank() == call.root ? read(stream, call.in) : StagedBytes());
        return write(stream, call.out, inputs[static_cast<std::size_t>(call.root)]);
      }
      case Kind::kAllGather: {
        StagedBytes all;
        for (const StagedBytes& part : meet(read(stream, call.in)))
          all.insert(all.end(), part.begin(), part.end());
        return write(stream, call.out, all);
      }
      default:
        break;
    }
    const std::vector<StagedBytes> inputs = meet(read(stream, call.in));
    const std::int64_t count = call.in.elements(), element = size_of(call.in.dtype);
    StagedBytes result(static_cast<std::size_t>(call.out.bytes()));
    for (int part = 0; part < size(); ++part) {
      const std::int64_t begin = count * part / size(), end = count * (part + 1) / size();
      if (call.kind == Kind::kAllReduce) {
        add_in_ring(inputs, part, begin, end, call, result.data() + begin * element);
      } else if (part == rank()) {
        add_in_ring(inputs, part, begin, end, call, result.data());
      }
    }
    write(stream, call.out, result);
  }

  std::unique_ptr<Communicator> make_split(std::span<const int> members, int new_rank,
                                           const std::string& name, Overlap overlap) override {
    return std::make_unique<StagedCommunicator>(name, split_id(id_, name, members, splits_), new_rank,
                                                static_cast<int>(members.size()), mail_, overlap);
  }

  // Adds the elements [begin, end) of all inputs, which are a part of the tensor.
  void add_in_ring(const std::vector<StagedBytes>& inputs, int part, std::int64_t begin, std::int64_t end,
                   const Call& call, std::byte* out) const {
    const Accumulate functions = accumulate_for(call.in.dtype, call.reduction);
    const std::int64_t element = size_of(call.in.dtype);
    std::array<std::int64_t, kAccumulatorElements> sum{};
    const int before = part + (call.in.bytes() > kSmall ? 1 : 0);
    for (std::int64_t at = begin; at < end; at += kAccumulatorElements) {
      const std::int64_t count = std::min(kAccumulatorElements, end - at);
      std::byte* const to = out + (at - begin) * element;
      for (int i = 1; i <= size(); ++i) {
        const std::byte* const in =
            inputs[static_cast<std::size_t>((before + i) % size())].data() + at * element;
        if (i == 1) {
          functions.assign(sum.data(), in, count);
        } else {
          functions.assign(sum.data(), to, count);
          functions.add(sum.data(), in, count);
        }
        functions.store(to, sum.data(), count, i == size() ? size() : 1);
      }
    }
  }

  StagedMail::Lane lane(int from, int to) const { return {id_, from, to}; }

  // Exchanges one message with every rank of the group. Returns all messages in rank order.
  std::vector<StagedBytes> meet(StagedBytes own) {
    for (int peer = 0; peer < size(); ++peer) {
      if (peer != rank()) mail_->send(lane(rank(), peer), own);
    }
    std::vector<StagedBytes> all(static_cast<std::size_t>(size()));
    for (int peer = 0; peer < size(); ++peer) {
      if (peer != rank()) all[static_cast<std::size_t>(peer)] = mail_->receive(lane(peer, rank()));
    }
    all[static_cast<std::size_t>(rank())] = std::move(own);
    return all;
  }

  void exchange_all(Stream& stream, const std::vector<Transfer>& transfers) {
    for (const Transfer& transfer : transfers) {
      if (transfer.sends) mail_->send(lane(rank(), transfer.peer), read(stream, transfer.data));
    }
    for (const Transfer& transfer : transfers) {
      if (!transfer.sends) write(stream, transfer.data, mail_->receive(lane(transfer.peer, rank())));
    }
  }

  void all_to_all(Stream& stream, const Call& call) {
    // Returns the number of elements of each part that are sent or received.
    const auto used = [&](const Tensor& rows, const std::vector<std::int64_t>& parts) {
      if (rows.absent()) return parts;
      const StagedBytes bytes = read(stream, rows);
      std::vector<std::int64_t> elements;
      for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::int32_t)) {
        std::int32_t count = 0;
        std::memcpy(&count, bytes.data() + at, sizeof(count));
        elements.push_back(count * call.in.cols());
      }
      return elements;
    };
    const std::vector<std::int64_t> sends = used(call.send_rows, call.send_counts),
                                    receives = used(call.receive_rows, call.receive_counts);
    const Tensor in = call.in.reshaped({call.in.elements()}), out = call.out.reshaped({call.out.elements()});
    std::vector<Transfer> transfers;
    std::int64_t from = 0, to = 0;
    for (int peer = 0; peer < size(); ++peer) {
      const auto p = static_cast<std::size_t>(peer);
      transfers.push_back(Transfer::send(in.slice(from, from + sends[p]), peer));
      transfers.push_back(Transfer::receive(out.slice(to, to + receives[p]), peer));
      from += call.send_counts[p], to += call.receive_counts[p];
    }
    exchange_all(stream, transfers);
  }

  static StagedBytes read(Stream& stream, const Tensor& tensor) {
    StagedBytes bytes(static_cast<std::size_t>(tensor.bytes()));
    if (!bytes.empty()) stream.copy_to_host(bytes.data(), tensor.data, tensor.bytes());
    stream.synchronize();
    return bytes;
  }
  static void write(Stream& stream, const Tensor& tensor, const StagedBytes& bytes) {
    if (std::ssize(bytes) != tensor.bytes()) throw Error(ErrorKind::kIo, "a message has another size");
    if (!bytes.empty()) stream.copy_to_device(tensor.data, bytes.data(), tensor.bytes());
    stream.synchronize();
  }

  std::string id_;
  std::shared_ptr<StagedMail> mail_;
  std::map<std::string, int> splits_;
};

// Returns the communicator of each rank.
inline std::vector<std::unique_ptr<Communicator>> make_staged_group(int ranks) {
  const auto mail = std::make_shared<StagedMail>();
  std::vector<std::unique_ptr<Communicator>> group;
  for (int rank = 0; rank < ranks; ++rank)
    group.push_back(std::make_unique<StagedCommunicator>("world", "world", rank, ranks, mail));
  return group;
}

}  // namespace primus::comm::test
