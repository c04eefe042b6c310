// The highest rate at which a device has multiplied matrices: the denominator of MFU.
//
// A peak measured while other programs use the machine is too low, which makes MFU too high. So only
// undisturbed measurements count. The best measurement per device is kept in a small file in the user's
// cache. A run that is faster than the stored peak raises the peak, so MFU never exceeds 100 %. Without an
// undisturbed measurement, peak and MFU are unknown.
//
// The cache is optional: a file that is damaged or cannot be written is ignored. One thread.
#pragma once

#include <optional>
#include <string>

#include "base/files/file.h"

namespace primus {

class DevicePeak {
 public:
  // `device`: the device's name, including the compute type. `file`: default_file(); empty for no cache.
  DevicePeak(std::string device, Path file, Env& env = Env::posix());

  // FLOP/s; empty if unknown.
  std::optional<double> value() const { return value_; }
  // Reports a rate that a run has reached. Stores the rate if it is the best so far.
  void seen(double flops_per_second);
  // Reports the rate of an undisturbed measurement of matrix products. Stores the rate if it is the best so
  // far, or if the stored peak is more than kMistaken times as high. Noise cannot explain such a peak, but a
  // wrong FLOP count in an earlier program can.
  void measured(double flops_per_second);
  static constexpr double kMistaken = 4;

  // Returns primus/peaks.json in XDG_CACHE_HOME or ~/.cache; empty if both are unknown.
  static Path default_file();

 private:
  void keep();

  std::string device_;
  Path file_;
  Env& env_;
  std::optional<double> value_;
};

}  // namespace primus
