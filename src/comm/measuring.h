// A communicator without peers and without memory: it only checks and counts calls. One process can use it to
// measure the communication of any rank of any world size (--dry-run).
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>

#include "comm/communicator.h"

namespace primus::comm {

class MeasuringCommunicator final : public Communicator {
 public:
  // Acts as rank `rank` of a group of `size` ranks. `copied_products`: if the group overlaps GEMMs,
  // by_copy_engines() is true for this group and its subgroups.
  MeasuringCommunicator(std::string name, int rank, int size, bool copied_products = false,
                        Overlap overlap = Overlap::kNothing)
      : Communicator(std::move(name), rank, size, overlap), copied_products_(copied_products) {}

  bool by_copy_engines() const override { return copied_products_ && overlap() == Overlap::kProducts; }
  void abort(const std::string&) noexcept override {}
  void set_timeout(std::chrono::milliseconds) override {}

 private:
  void enqueue(Stream&, Call) override {}
  std::unique_ptr<Communicator> make_split(std::span<const int> members, int new_rank,
                                           const std::string& name, Overlap overlap) override {
    return std::make_unique<MeasuringCommunicator>(name, new_rank, static_cast<int>(members.size()),
                                                   copied_products_, overlap);
  }

  bool copied_products_;
};

}  // namespace primus::comm
