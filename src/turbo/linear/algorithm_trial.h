// Which of a library's algorithms is the fastest in a training step, found by timing them.
//
// There are two ways. Bursts: every candidate a few times, on a GPU as it comes. Sustained: a step multiplies
// without a pause, and a GPU at its limit of power lowers its clock, so the GPU is kept busy first, until it
// has the state of a step; then candidates run in turn, slot after slot, and the fastest few once more in
// longer slots. What such trials cost is bounded: when the time for all of them is used up, those that follow
// do without warming and longer slots.
//
// Knows no device: whoever runs the products is handed in.
#pragma once

#include <functional>
#include <optional>

namespace primus::turbo {

struct AlgorithmTrial {
  int best = 0;           // which candidate
  double seconds = 0;     // of one product with it
  double next = 0;        // with the best of the others; 0: there is none
  int of = 0;             // how many ran
  bool sustained = true;  // timed in the state of a step
  bool operator==(const AlgorithmTrial&) const = default;
};

// Of one device. Not thread-safe.
class AlgorithmTrials {
 public:
  // Seconds that `products` products in a row take by a candidate, measured by the device; <= 0: it does not
  // run.
  using Run = std::function<double(int candidate, int products)>;
  // Seconds of a steady clock.
  using Clock = std::function<double()>;

  struct Limits {
    double warm = 0.5;    // seconds of products until the clock has settled
    double sift = 0.05;   // of one trial's first round over all candidates
    double slot = 0.010;  // of a finalist
    int in_a_row = 1;     // products of a slot, at least
    int rounds = 3;       // of finalists
    int finalists = 3;
    double all = 3;        // of all trials, after which they are short
    double small = 40e-6;  // products of less time are not bound by power, and do not warm
    // The first candidate, the library's own choice, stays unless another takes this much of its time.
    double clearly = 0.99;
  };
  static Limits bursts() {
    return {.warm = 0, .sift = 1, .slot = 0, .in_a_row = 3, .rounds = 7, .finalists = 8, .clearly = 0.98};
  }

  explicit AlgorithmTrials(Clock clock) : AlgorithmTrials(std::move(clock), Limits{}) {}
  AlgorithmTrials(Clock clock, const Limits& limits) : clock_(std::move(clock)), limits_(limits) {}

  // Of candidates [0, candidates), the most promising first; where time is short the last ones are left out.
  // Empty: none of them runs.
  std::optional<AlgorithmTrial> choose(int candidates, const Run& run);

 private:
  int products_of(double slot, double seconds) const;
  void warm(int candidate, double seconds, const Run& run);

  Clock clock_;
  Limits limits_;
  double spent_ = 0;
  double warmth_ = 0, warm_at_ = 0;  // seconds of work that the device remembers, and when that was
};

}  // namespace primus::turbo
