// Finds the algorithm of a library that is the fastest in a training step, by timing.
//
// There are two methods. The method "bursts" runs every candidate a few times, with the GPU in its current
// state. The method "sustained" first keeps the GPU busy until the GPU has the clock of a training step. (A
// step multiplies without pauses, and a GPU at its power limit lowers its clock.) Then this method times all
// candidates, and times the fastest candidates again for longer. The total time is limited: when the time for
// all trials is used up, later trials skip the warm-up and the second timing.
//
// Device-independent: the caller supplies a function that runs the products.
#pragma once

#include <functional>
#include <optional>

namespace primus::turbo {

struct AlgorithmTrial {
  int best = 0;           // index of the fastest candidate
  double seconds = 0;     // seconds per product
  double next = 0;        // seconds per product of the second-best candidate; 0: there is none
  int of = 0;             // number of candidates that ran
  bool sustained = true;  // true if timed at the clock of a training step
  bool operator==(const AlgorithmTrial&) const = default;
};

// The trials of one device. Not thread-safe.
class AlgorithmTrials {
 public:
  // Returns the seconds that the device needs for `products` consecutive products with a candidate. The
  // result is not positive if the candidate does not run.
  using Run = std::function<double(int candidate, int products)>;
  // Returns the seconds of a steady clock.
  using Clock = std::function<double()>;

  struct Limits {
    double warm = 0.5;    // seconds of products until the clock has settled
    double sift = 0.05;   // seconds of the first round over all candidates of a trial
    double slot = 0.010;  // seconds of products per slot of a finalist
    int in_a_row = 1;     // min. number of products per slot
    int rounds = 3;       // number of slots per finalist
    int finalists = 3;
    double all = 3;        // seconds that all trials may take; after this time, trials are short
    double small = 40e-6;  // shorter products are not power-bound and skip the warm-up
    // A candidate replaces candidate 0, the library's own choice, only if its time is below this fraction of
    // candidate 0's time.
    double clearly = 0.99;
  };
  static Limits bursts() {
    return {.warm = 0, .sift = 1, .slot = 0, .in_a_row = 3, .rounds = 7, .finalists = 8, .clearly = 0.98};
  }

  explicit AlgorithmTrials(Clock clock) : AlgorithmTrials(std::move(clock), Limits{}) {}
  AlgorithmTrials(Clock clock, const Limits& limits) : clock_(std::move(clock)), limits_(limits) {}

  // Chooses among candidates [0, candidates). The caller orders the candidates, with the most promising
  // candidate first. If time is short, skips the last candidates. Returns nothing if no candidate runs.
  std::optional<AlgorithmTrial> choose(int candidates, const Run& run);

 private:
  int products_of(double slot, double seconds) const;
  void warm(int candidate, double seconds, const Run& run);

  Clock clock_;
  Limits limits_;
  double spent_ = 0;
  double warmth_ = 0, warm_at_ = 0;  // effective seconds of warm-up at time warm_at_
};

}  // namespace primus::turbo
