// Watches a rank's machine while it trains. Training uses this interface; safe/watch implements it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lm/events/iteration.h"

namespace primus {

// The place of a rank on its machine.
struct RankPlace {
  std::string device_kind;    // "cpu", "cuda", "hip"
  int device = 0;             // index of the device within its kind
  std::string bus;            // the device's address on the PCI bus, such as "0000:1B:00.0"; empty: unknown
  bool first_on_host = true;  // this rank also watches what all ranks of the host share
  std::string folder;         // the run's folder
};

class RankHealth {
 public:
  virtual ~RankHealth() = default;
  // Begins to watch, in the background. Call it once.
  virtual void begin(const RankPlace& place) = 0;
  // Returns the present conditions that make the rank slow: bits of Symptom.
  virtual std::uint32_t symptoms() const = 0;
  // Returns the findings since the last call. Their `iteration` and `rank` are not set.
  virtual std::vector<RunWarning> take() = 0;
};

}  // namespace primus
