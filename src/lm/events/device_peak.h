// The peak of a device: the highest measured rate of its matrix products. MFU is relative to this peak.
//
// A peak measured while other programs use the machine is too low, which makes MFU too high. Therefore only
// undisturbed measurements count. The best measurement per device is kept in a small file in the user's
// cache. A run that is faster than the stored peak raises the peak. MFU therefore never exceeds 100 %.
// Without an undisturbed measurement, peak and MFU are unknown.
//
// The cache is optional: a damaged file is ignored, and so is a file that cannot be written. Not thread-safe.
#pragma once

#include <optional>
#include <string>

#include "base/files/file.h"

namespace primus {

class DevicePeak {
 public:
  // `device`: name of the device and compute type. `file`: usually default_file(); an empty path means no
  // cache.
  DevicePeak(std::string device, Path file, Env& env = Env::posix());

  // Returns the peak in FLOP/s; empty if unknown.
  std::optional<double> value() const { return value_; }
  // Reports a rate that a run has reached. Stores the rate if it is the best so far.
  void seen(double flops_per_second);
  // Reports the rate of an undisturbed measurement of matrix products. Stores the rate if the rate is the
  // best so far, or if the stored peak is more than kMistaken times the rate. Noise cannot explain so high a
  // stored peak; an earlier version of the program may have counted FLOPs wrongly.
  void measured(double flops_per_second);
  static constexpr double kMistaken = 4;

  // Returns the path primus/peaks.json in XDG_CACHE_HOME or ~/.cache; empty if neither folder is known.
  static Path default_file();

 private:
  void keep();

  std::string device_;
  Path file_;
  Env& env_;
  std::optional<double> value_;
};

}  // namespace primus
