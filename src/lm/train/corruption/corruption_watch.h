// Searches for silent corruption while a run trains: results that are wrong although no device reports an
// error. Three checks exist, each with an interval in steps; without an interval, a check costs nothing:
//
//   copies     weights and optimizer states of which several ranks have copies must have equal bits
//              (replica_check.h)
//   replay     a step is computed twice before its update; losses and gradients must have equal bits
//   products   fixed matrix products must have the bits of the start (golden_products.h)
//
// Copies and products are also checked before each save and snapshot, so that the damage that they find is
// not saved. A finding becomes a warning; with corruption_action=stop, the checkpoints since the last good
// check of the same kind are moved aside, and all ranks throw a CorruptionError. Internal to lm/train. Not
// thread-safe.
//
// All ranks must make the same calls.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lm/train/checkpointer.h"
#include "lm/train/corruption/corruption.h"
#include "lm/train/corruption/device_hash.h"
#include "lm/train/corruption/golden_products.h"
#include "lm/train/run_plan.h"
#include "lm/train/step/session.h"

namespace primus {

// The run's settings for the checks (config/keys.def). Intervals in steps; 0: never.
struct CorruptionSettings {
  std::int64_t copies = 0, replay = 0, products = 0;
  bool stop = true;           // corruption_action
  bool deterministic = true;  // deterministic_mode
};

class CorruptionWatch {
 public:
  // All arguments must outlive this object. Call it between steps, after the weights were loaded. Throws
  // Error if a setting has no effect or cannot work, and CorruptionError if copies differ already.
  CorruptionWatch(const CorruptionSettings& settings, RunPlan& plan, RunProgress& progress,
                  TrainingSession& session, Checkpointer& checkpointer);

  // Checks copies and products if they are due after the step RunProgress::iteration, or with `saves`, which
  // means that the state will be saved. The step's result must have been read.
  bool is_due(bool saves) const;
  void check();
  // Call it after each update was enqueued, with the number of updates: damages a weight for a test
  // (kFlipBit).
  void updated(std::int64_t iteration);

  // Returns whether step `iteration` is to be computed twice. Call the functions below in this order.
  bool replays(std::int64_t iteration) const;
  // Call it before the last microbatch of the first and of the second computation of the step.
  void begin_last_microbatch(std::int64_t iteration);
  // Call it after finish_gradients() of the first computation, when the result of the step before was read.
  // Reads and keeps the bits of the step.
  void keep_bits();
  // Call it after finish_gradients() of the second computation. Compares the bits.
  void compare_bits(std::int64_t iteration);

 private:
  enum Kind : std::uint8_t { kCopies, kReplay, kProducts, kKinds };
  // The bits of a computation of a step.
  struct Bits {
    std::vector<std::uint64_t> own = {};  // hashes of the weight gradients of this rank, in order
    std::uint64_t summed = 0;             // hash of the gradients after the sum over ranks
  };

  void refuse_settings() const;
  // Takes the steps of the last good checks from the loaded state. The process that wrote it may have had no
  // check since.
  void restore_good_steps();
  // Records good_ for the next saves and snapshots, and keeps a checkpoint from before it.
  void record_good_steps();
  Corruption check_copies(bool* copied = nullptr);
  Corruption check_products(std::int64_t iteration);
  std::uint64_t hash_of_gradients();
  // Ends a check of step `iteration`: records that it was good, or reports the finding.
  void conclude(Kind kind, std::int64_t iteration, const Corruption& finding, const std::string& advice);
  [[noreturn]] void stop(Kind kind, const Corruption& finding, const std::string& advice);
  // Returns whether this is the place of the bit flip, and records that it has happened.
  bool flips(BitFlip::Where where, std::int64_t iteration);
  // The file that tells later processes of the run that the bit was flipped.
  Path flip_file() const;
  std::vector<std::string> gather(const std::string& own) const;
  std::string broadcast(const std::string& own) const;

  const CorruptionSettings settings_;
  RunPlan& plan_;
  RunProgress& progress_;
  TrainingSession& session_;
  Checkpointer& checkpointer_;
  std::array<std::int64_t, kKinds> interval_;  // steps; 0: never
  std::array<std::int64_t, kKinds> good_;      // step of the last good check
  std::array<bool, kKinds> bad_{};             // whether the last check found corruption
  std::int64_t checked_ = -1;                  // step of the last check()
  std::optional<BitFlip> flip_;
  std::optional<DeviceHash> hash_;
  std::unique_ptr<GoldenProducts> products_;
  Bits bits_, first_;
};

}  // namespace primus
