// A communicator that claims to exchange by copy engines and forwards every call to another one. With it,
// code for copy engines (engine/parallel/tensor_parallel.h) can be tested on any device.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "comm/communicator.h"

namespace primus::comm::test {

class CopyEngines final : public Communicator {
 public:
  explicit CopyEngines(std::unique_ptr<Communicator> below)
      : Communicator(below->name(), below->rank(), below->size(), below->overlap()),
        below_(std::move(below)) {}

  bool by_copy_engines() const override { return true; }
  void abort(const std::string& reason) noexcept override { below_->abort(reason); }
  void set_timeout(std::chrono::milliseconds timeout) override { below_->set_timeout(timeout); }

 private:
  void enqueue(Stream& stream, Call call) override {
    switch (call.kind) {
      case Kind::kAllReduce:
        return below_->all_reduce(stream, call.in, call.out, call.reduction);
      case Kind::kReduceScatter:
        return below_->reduce_scatter(stream, call.in, call.out, call.reduction);
      case Kind::kAllGather:
        return below_->all_gather(stream, call.in, call.out);
      case Kind::kBroadcast:
        return below_->broadcast(stream, call.in, call.root);
      case Kind::kAllToAll:
        if (!call.send_rows.absent())
          return below_->all_to_all_rows(stream, call.in, call.send_rows, call.out, call.receive_rows);
        return below_->all_to_all(stream, call.in, call.send_counts, call.out, call.receive_counts);
      case Kind::kExchange:
        return below_->exchange(stream, call.transfers);
      case Kind::kBarrier:
        return below_->barrier(stream);
      default:
        throw std::logic_error("CopyEngines: an unknown call");
    }
  }
  std::unique_ptr<Communicator> make_split(std::span<const int> members, int, const std::string& name,
                                           Overlap overlap) override {
    return std::make_unique<CopyEngines>(below_->split(members, name, overlap));
  }

  std::unique_ptr<Communicator> below_;
};

}  // namespace primus::comm::test
