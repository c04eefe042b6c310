// Decides when weight gradients run, and in which order weight gradients are summed.
//
// Floating-point sums depend on their order. The order here is the same for every schedule: contributions to
// a parameter are summed by microbatch, and within one microbatch in backward order of the uses. A weight
// gradient that is ready early waits for its turn, and its activations stay allocated until then. So any
// legal schedule gives the same bits. Schedules that keep microbatches in order have no such waits.
//
// Not thread-safe; one per rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace primus::engine {

class DataParallel;
class Tape;
struct Entry;
struct Parameter;

class WeightGradientQueue {
 public:
  enum class Policy : std::uint8_t {
    kInline,    // run as soon as the input gradient of the same operator is done
    kDeferred,  // run when run() is called for the tape (W in zero-bubble schedules)
  };
  explicit WeightGradientQueue(Policy policy = Policy::kInline) : policy_(policy) {}

  Policy policy() const { return policy_; }
  // Runs all weight gradients of a tape after its backward(). Weight gradients that must wait for their turn
  // run automatically later. Does nothing with Policy::kInline.
  void run(Tape& tape);
  // Drops the pending items of an abandoned tape, including items without work. A new step must begin before
  // the next microbatch.
  void forget(const Tape& tape);
  // Returns the number of items that wait for run() or for their turn.
  std::size_t pending() const { return items_.size(); }

 private:
  friend class Tape;
  friend class OperatorCall;
  struct Item {
    Tape* tape;  // null: no work, the item only takes its turn
    int entry;
    DataParallel* parallel;  // DataParallel::contributed() is called at every turn; may be null
    Parameter* parameter;
    std::int64_t turn;
    bool released;  // may run when its turn comes
  };
  // Queues the weight gradient of an entry whose input gradient is done. `nothing_to_do`: the entry has no
  // weight gradient, or has already contributed it.
  void push(Tape& tape, int entry, bool nothing_to_do);
  bool in_turn_now(const Tape& tape, int entry) const;
  void drain();

  Policy policy_;
  std::vector<Item> items_;  // in the order pushed
};

}  // namespace primus::engine
