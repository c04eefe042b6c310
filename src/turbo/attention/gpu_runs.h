// Runs of keys of batch-invariant devices, on GPUs. The keys of a document are divided into runs, from the
// document's first key. The sums over a run do not depend on the other runs, so that several blocks can
// compute the runs of one query in decoding. The results of the runs are added in their order: in decoding by
// a separate kernel, in training and in prompts between two tiles of keys.
#pragma once

#include "turbo/attention/gpu_scores.h"
#include "turbo/gpu/values.h"

namespace primus::turbo::PRIMUS_GPU {

// Keys per run. Shorter runs need more additions in training, longer runs have fewer blocks in decoding. The
// emulator has short runs, so that small tests have several.
#if defined(PRIMUS_GPU_VENDOR)
inline constexpr int kRunKeys = 512;
#else
inline constexpr int kRunKeys = 128;
#endif

// The runs that were added so far, for one query: their largest score (in base 2) and the sum of
// exponentials.
struct MergedRuns {
  float maximum = -infinity(), total = 0;

  // The factors by which earlier sums and the sums of the added run are multiplied.
  struct Factors {
    float before, added;
    PRIMUS_DEVICE float sum(float sum_before, float of_run) const {
      return multiply_add(sum_before, before, of_run * added);
    }
  };
  // A run without keys that the query sees changes nothing.
  PRIMUS_DEVICE Factors add(float run_maximum, float run_total) {
    const float next = ::fmaxf(maximum, run_maximum), base = next == -infinity() ? 0.0F : next;
    const Factors factors{exp2_flushed(maximum - base), exp2_flushed(run_maximum - base)};
    total = factors.sum(total, run_total);
    maximum = next;
    return factors;
  }
};

// A row's maximum and sum over all keys and the sink.
struct JoinedSink {
  float maximum, total;
  float share;   // factor by which the weighted sum of values is multiplied
  bool nothing;  // the query sees no key, so its result is zero

  // `sink` is in base 2. If has_sink is false, `sink` must be -infinity.
  PRIMUS_DEVICE JoinedSink(float of_keys, float sum, float sink, bool has_sink)
      : maximum(::fmaxf(of_keys, sink)), nothing(maximum == -infinity()) {
    const float less = nothing ? 0.0F : ::exp2f(of_keys - maximum);
    total = sum * less + (has_sink ? ::exp2f(sink - maximum) : 0.0F);
    share = nothing ? 0.0F : less / total;
  }
  PRIMUS_DEVICE float log_sum() const { return nothing ? -infinity() : (maximum + ::log2f(total)) * kLn2; }
};

}  // namespace primus::turbo::PRIMUS_GPU
