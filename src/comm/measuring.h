// A communicator without peers and without memory: it checks and counts calls, and does nothing else. With it
// one process measures the communication of any rank of any world (--dry-run).
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>

#include "comm/communicator.h"

namespace primus::comm {

class MeasuringCommunicator final : public Communicator {
 public:
  // Rank `rank` of a group of `size`. `by_copy_engines`: the name of the group, this one or one that is split
  // off, that exchanges so.
  MeasuringCommunicator(std::string name, int rank, int size, std::string by_copy_engines = {})
      : Communicator(std::move(name), rank, size), by_copy_engines_(std::move(by_copy_engines)) {}

  bool by_copy_engines() const override { return name() == by_copy_engines_; }
  void abort(const std::string&) noexcept override {}
  void set_timeout(std::chrono::milliseconds) override {}

 private:
  void enqueue(Stream&, Call) override {}
  std::unique_ptr<Communicator> make_split(std::span<const int> members, int new_rank,
                                           const std::string& name) override {
    return std::make_unique<MeasuringCommunicator>(name, new_rank, static_cast<int>(members.size()),
                                                   by_copy_engines_);
  }

  std::string by_copy_engines_;
};

}  // namespace primus::comm
