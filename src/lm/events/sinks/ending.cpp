// Writes ending.json (run_ending.h).
#include "lm/events/run_listener.h"

namespace primus {
namespace {

class EndingSink final : public RunListener {
 public:
  explicit EndingSink(const ListenerContext& c) : folder_(c.run.root()), env_(c.env) {}

  bool wants(EventKind kind) const override { return kind == EventKind::kBegin || kind == EventKind::kEnd; }
  void on(const RunEvent& event) override {
    if (const auto* ending = event.as<RunEnding>()) {
      write_ending(folder_, *ending, env_);
    } else if (event.as<RunFacts>()->trains) {
      write_ending(folder_, {.state = RunEnding::State::kRunning, .iteration = event.step}, env_);
    }
  }

 private:
  Path folder_;
  Env& env_;
};

}  // namespace

extern const ListenerEntry kEnding{
    "ending.json", false,
    [](const ListenerContext& c) -> std::unique_ptr<RunListener> { return std::make_unique<EndingSink>(c); }};

}  // namespace primus
