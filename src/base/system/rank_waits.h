// The time that a thread has spent waiting for other ranks. The time of a training step without this time is
// the rank's own work, which shows a slow rank: with the waiting, the steps of all ranks take equally long.
//
// Thread-safe: each thread has its own sum.
#pragma once

namespace primus {

// Returns the seconds that the calling thread has waited since it started.
double seconds_waited_for_ranks();

// Adds the time between construction and destruction to the sum of this thread. An object within another one
// adds nothing.
class RankWait {
 public:
  RankWait();
  ~RankWait();
  RankWait(const RankWait&) = delete;
  RankWait& operator=(const RankWait&) = delete;

 private:
  double began_;
};

}  // namespace primus
