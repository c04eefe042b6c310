// Watches the machine of a rank in a thread: calls all probes every few seconds.
//
// Thread-safe. The destructor does not wait for a probe that hangs in the system; its thread then ends with
// the process.
#pragma once

#include <chrono>
#include <memory>

#include "lm/events/rank_health.h"
#include "safe/preflight/machine.h"
#include "safe/watch/gpu_reading.h"

namespace primus::watch {

struct RankWatchOptions {
  std::shared_ptr<const preflight::Machine> machine = {};  // null: this machine
  std::string nvml = kNvml;
  std::chrono::milliseconds interval = std::chrono::seconds(5);
};

class RankWatch final : public RankHealth {
 public:
  explicit RankWatch(RankWatchOptions options = {});
  ~RankWatch() override;
  RankWatch(const RankWatch&) = delete;
  RankWatch& operator=(const RankWatch&) = delete;

  // If the system refuses a thread, the machine is not watched, and take() returns a warning that says so.
  void begin(const RankPlace& place) override;
  std::uint32_t symptoms() const override;
  std::vector<RunWarning> take() override;
  // Returns the CPU time of the thread, in seconds, and the number of looks.
  double cpu_seconds() const;
  int looks() const;

 private:
  struct State;
  RankWatchOptions options_;
  std::shared_ptr<State> state_;
};

}  // namespace primus::watch
