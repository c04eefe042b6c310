// Records all events, on every rank (docs/formats/events.md).
#include "lm/events/event_log.h"

#include <span>
#include <string>

#include "lm/events/run_listener.h"

namespace primus {
namespace {

class EventLogSink final : public RunListener {
 public:
  EventLogSink(const Path& file, Env& env)
      : log_(file, env), reserve_(file.string() + ".reserve"), env_(env) {}
  bool wants(EventKind) const override { return true; }
  void on(const RunEvent& event) override {
    if (event.kind() == EventKind::kEnd) free_reserve();
    log_.write(event);
    if (event.kind() == EventKind::kBegin) reserve_space();
  }
  void sync() override { log_.sync(); }
  std::uint64_t dropped() const override { return log_.dropped(); }

 private:
  // Space reserved for the last event. A run that ends because of a full disk can therefore record the
  // reason.
  static constexpr std::size_t kReserve = std::size_t{16} << 10;

  // Does not sync: only this process uses the space, and a crash of the machine ends this process.
  void reserve_space() {
    const std::string room(kReserve, '\n');
    const auto file = env_.open(reserve_, OpenMode::kWrite);
    file->append(std::as_bytes(std::span(room)));
    file->close();
  }
  void free_reserve() {
    if (env_.status(reserve_)) env_.remove_file(reserve_);
  }

  EventLog log_;
  Path reserve_;
  Env& env_;
};

}  // namespace

extern const ListenerEntry kEventLog{
    "the event log", true, [](const ListenerContext& c) -> std::unique_ptr<RunListener> {
      return std::make_unique<EventLogSink>(event_file(c.run.root(), c.options.rank), c.env);
    }};

}  // namespace primus
