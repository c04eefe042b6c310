#include "safe/watch/rank_watch.h"

#include <fmt/format.h>
#include <time.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "base/system/threads.h"
#include "base/terminal/terminal.h"
#include "safe/watch/probe.h"

namespace primus::watch {

struct RankWatch::State {
  // A run that does not take the findings keeps the newest ones.
  static constexpr std::size_t kMost = 100;

  std::mutex mutex;
  std::condition_variable changed;
  bool stop = false, running = false;
  std::vector<RunWarning> warnings;
  std::atomic<std::uint32_t> symptoms{0};
  std::atomic<int> looks{0};
  std::atomic<double> cpu_seconds{0};

  void run(const ProbeContext& context, std::chrono::milliseconds interval);
  void look(std::vector<std::unique_ptr<Probe>>& active);
};

void RankWatch::State::look(std::vector<std::unique_ptr<Probe>>& active) {
  Findings found;
  const double now = steady_seconds();
  for (std::unique_ptr<Probe>& probe : active) {
    try {
      probe->look(now, found);
    } catch (const std::exception&) {
      probe = nullptr;  // the machine lacks what the probe reads
    }
  }
  std::erase(active, nullptr);
  symptoms = found.symptoms;
  const std::lock_guard lock(mutex);
  for (RunWarning& warning : found.warnings) warnings.push_back(std::move(warning));
  if (warnings.size() > kMost)
    warnings.erase(warnings.begin(), warnings.end() - static_cast<std::ptrdiff_t>(kMost));
}

void RankWatch::State::run(const ProbeContext& context, std::chrono::milliseconds interval) {
  std::vector<std::unique_ptr<Probe>> active;
  for (const ProbeEntry* entry : probes()) {
    if (!entry->every_rank && !context.place.first_on_host) continue;
    if (auto probe = entry->make(context)) active.push_back(std::move(probe));
  }
  std::unique_lock lock(mutex);
  while (!stop) {
    lock.unlock();
    look(active);
    timespec cpu{};
    if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu) == 0)
      cpu_seconds = static_cast<double>(cpu.tv_sec) + 1e-9 * static_cast<double>(cpu.tv_nsec);
    ++looks;
    lock.lock();
    changed.wait_for(lock, interval, [&] { return stop; });
  }
}

RankWatch::RankWatch(RankWatchOptions options)
    : options_(std::move(options)), state_(std::make_shared<State>()) {
  if (!options_.machine) options_.machine = std::make_shared<preflight::Machine>();
}

RankWatch::~RankWatch() {
  constexpr auto kPatience = std::chrono::seconds(1);
  std::unique_lock lock(state_->mutex);
  state_->stop = true;
  state_->changed.notify_all();
  state_->changed.wait_for(lock, kPatience, [&] { return !state_->running; });
}

void RankWatch::begin(const RankPlace& place) {
  const ProbeContext context{.machine = options_.machine, .place = place, .nvml = options_.nvml};
  state_->running = true;
  const auto body = [state = state_, context, interval = options_.interval] {
    try {
      state->run(context, interval);
    } catch (const std::exception&) {
      // Without memory or files, the run continues without being watched.
    }
    const std::lock_guard lock(state->mutex);
    state->running = false;
    state->changed.notify_all();
  };
  try {
    start_thread(body, "watches the machine").detach();
  } catch (const Error& error) {
    state_->running = false;
    state_->warnings.push_back({.detector = "not_watched",
                                .text = fmt::format("the machine is not watched: {}", error.what()),
                                .advice = error.hint()});
  }
}

std::uint32_t RankWatch::symptoms() const { return state_->symptoms; }

std::vector<RunWarning> RankWatch::take() {
  const std::lock_guard lock(state_->mutex);
  return std::exchange(state_->warnings, {});
}

double RankWatch::cpu_seconds() const { return state_->cpu_seconds; }

int RankWatch::looks() const { return state_->looks; }

}  // namespace primus::watch
