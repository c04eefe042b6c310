// The fastest that a device was ever seen to multiply matrices: what MFU is a share of.
//
// A peak measured while others use the machine is too low, and MFU too high. So only undisturbed measurements
// count, the best is kept per device in a small file of the user's cache, and a run that goes faster raises
// it. MFU is then never above 100 %. Without any good measurement there is no peak, and no MFU.
//
// The cache helps and is never needed: a file that is damaged or cannot be written is passed over. One
// thread.
#pragma once

#include <optional>
#include <string>

#include "base/files/file.h"

namespace primus {

class DevicePeak {
 public:
  // `device` names it, with the type it computes in; `file`: default_file(), empty for none.
  DevicePeak(std::string device, Path file, Env& env = Env::posix());

  // FLOP/s; empty: not known.
  std::optional<double> value() const { return value_; }
  // Something was done at this rate. Keeps it where it is the best so far.
  void seen(double flops_per_second);
  // Matrix products alone were timed at this rate, undisturbed. Keeps it where it is the best so far, and
  // also where the best so far is more than kMistaken times as much: noise does not explain that, a program
  // that counted wrongly does.
  void measured(double flops_per_second);
  static constexpr double kMistaken = 4;

  // peaks.json in the folder primus of XDG_CACHE_HOME or ~/.cache; empty where there is neither.
  static Path default_file();

 private:
  void keep();

  std::string device_;
  Path file_;
  Env& env_;
  std::optional<double> value_;
};

}  // namespace primus
