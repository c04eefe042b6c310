// The record of all events, on every rank (docs/formats/events.md).
#include "lm/events/event_log.h"

#include "lm/events/run_listener.h"

namespace primus {
namespace {

class EventLogSink final : public RunListener {
 public:
  EventLogSink(Path file, Env& env) : log_(std::move(file), env) {}
  bool wants(EventKind) const override { return true; }
  void on(const RunEvent& event) override { log_.write(event); }
  void sync() override { log_.sync(); }
  std::uint64_t dropped() const override { return log_.dropped(); }

 private:
  EventLog log_;
};

}  // namespace

extern const ListenerEntry kEventLog{
    "the event log", true, [](const ListenerContext& c) -> std::unique_ptr<RunListener> {
      return std::make_unique<EventLogSink>(event_file(c.run.root(), c.options.rank), c.env);
    }};

}  // namespace primus
