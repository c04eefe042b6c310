// A residual stream that consists of several parallel streams (hyper-connections, arXiv:2512.24880).
#pragma once

#include <cstdint>

namespace primus {

struct HyperConfig {
  std::int64_t streams = 1;
  std::int64_t iterations = 20;  // number of iterations that normalize the mixing matrix's rows and columns
  double epsilon = 1e-6;

  bool operator==(const HyperConfig&) const = default;
};

}  // namespace primus
