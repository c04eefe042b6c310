// When weight gradients run, and in which order they are summed.
//
// Floating-point sums depend on their order. Here the order is fixed, whatever schedule is run: contributions
// to a parameter are summed by microbatch, and within one microbatch in backward order of the uses. Work that
// comes before its turn is parked (its activations stay alive) and runs as soon as its turn comes. So any
// legal schedule gives the same bits, and a schedule that keeps microbatches in order never parks anything.
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
    kInline,    // as soon as the input gradient of the same operator is done
    kDeferred,  // when run() is called for the tape: the W of zero-bubble schedules
  };
  explicit WeightGradientQueue(Policy policy = Policy::kInline) : policy_(policy) {}

  Policy policy() const { return policy_; }
  // Runs all weight gradients of a tape whose backward() is over, those out of turn excepted (they follow by
  // themselves). With Policy::kInline there is nothing left for it to do.
  void run(Tape& tape);
  // Drops what waits for a tape that is abandoned, and the turns that only pass. Before any other microbatch
  // a step must begin anew.
  void forget(const Tape& tape);
  // Work that waits: for run(), or for its turn.
  std::size_t pending() const { return items_.size(); }

 private:
  friend class Tape;
  friend class OperatorCall;
  struct Item {
    Tape* tape;  // null: nothing to compute, only the turn passes
    int entry;
    DataParallel* parallel;  // hears of every turn; may be null
    Parameter* parameter;
    std::int64_t turn;
    bool released;  // may run when its turn comes
  };
  // An entry's input gradient is done. `nothing_to_do`: no weight gradient, or it was contributed already.
  void push(Tape& tape, int entry, bool nothing_to_do);
  bool in_turn_now(const Tape& tape, int entry) const;
  void drain();

  Policy policy_;
  std::vector<Item> items_;  // in the order pushed
};

}  // namespace primus::engine
