// Finds the algorithm of a library that is the fastest in a training step, by timing.
//
// There are two methods. Bursts: runs every candidate a few times, with the GPU in its current state.
// Sustained: first keeps the GPU busy until it has the clock of a training step (a step multiplies without
// pauses, and a GPU at its power limit lowers its clock). Then it times the candidates slot after slot, and
// the fastest few again in longer slots. The total cost is bounded: when the time for all trials is used up,
// later trials skip the warm-up and the longer slots.
//
// Device-independent: the caller supplies a function that runs the products.
#pragma once

#include <functional>
#include <optional>

namespace primus::turbo {

struct AlgorithmTrial {
  int best = 0;           // index of the candidate
  double seconds = 0;     // seconds per product
  double next = 0;        // time of the second best; 0: there is none
  int of = 0;             // number of candidates that ran
  bool sustained = true;  // timed in the clock state of a training step
  bool operator==(const AlgorithmTrial&) const = default;
};

// The trials of one device. Not thread-safe.
class AlgorithmTrials {
 public:
  // Returns the seconds that the device needs for `products` consecutive products with a candidate; <= 0: it
  // does not run.
  using Run = std::function<double(int candidate, int products)>;
  // Returns the seconds of a steady clock.
  using Clock = std::function<double()>;

  struct Limits {
    double warm = 0.5;    // seconds of products until the clock has settled
    double sift = 0.05;   // seconds of the first round over all candidates of a trial
    double slot = 0.010;  // seconds of products per slot of a finalist
    int in_a_row = 1;     // min products per slot
    int rounds = 3;       // slots per finalist
    int finalists = 3;
    double all = 3;        // seconds of all trials; later trials are short
    double small = 40e-6;  // shorter products are not power-bound and skip the warm-up
    // Another candidate replaces the first one, the library's own choice, only below this fraction of its
    // time.
    double clearly = 0.99;
  };
  static Limits bursts() {
    return {.warm = 0, .sift = 1, .slot = 0, .in_a_row = 3, .rounds = 7, .finalists = 8, .clearly = 0.98};
  }

  explicit AlgorithmTrials(Clock clock) : AlgorithmTrials(std::move(clock), Limits{}) {}
  AlgorithmTrials(Clock clock, const Limits& limits) : clock_(std::move(clock)), limits_(limits) {}

  // Chooses among candidates [0, candidates), which are ordered from the most promising one; skips the last
  // candidates if time is short. Empty: no candidate runs.
  std::optional<AlgorithmTrial> choose(int candidates, const Run& run);

 private:
  int products_of(double slot, double seconds) const;
  void warm(int candidate, double seconds, const Run& run);

  Clock clock_;
  Limits limits_;
  double spent_ = 0;
  double warmth_ = 0, warm_at_ = 0;  // seconds of warm-up that still counted at time warm_at_
};

}  // namespace primus::turbo
