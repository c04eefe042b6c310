#include "safe/supervise/observation/event_facts.h"

#include "base/error.h"
#include "base/text/json_reader.h"

namespace primus::supervise {
namespace {

using Kind = JsonReader::Kind;

// Calls use(json) at the value of `key`, if the value has this kind.
template <class Use>
void at_key(std::string_view facts, std::string_view key, Kind kind, Use use) {
  try {
    JsonReader json(facts, "event");
    json.object([&](std::string_view found) {
      if (found == key && json.peek() == kind) {
        use(json);
      } else {
        json.skip();
      }
    });
  } catch (const Error&) {
    // Another program wrote this line.
  }
}

std::string string_at(std::string_view facts, std::string_view key) {
  std::string text;
  at_key(facts, key, Kind::kString, [&](JsonReader& json) { text = json.read_string(); });
  return text;
}

}  // namespace

double seconds_of_step(std::string_view facts) {
  double milliseconds = 0;
  at_key(facts, "elapsed_time_per_iteration_ms", Kind::kNumber,
         [&](JsonReader& json) { milliseconds = json.read_double(); });
  return 1e-3 * milliseconds;
}

std::string phase_in(std::string_view facts) { return string_at(facts, "what"); }

std::string state_in(std::string_view facts) { return string_at(facts, "state"); }

std::string state_from_in(std::string_view facts) { return string_at(facts, "state_from"); }

std::string text_in(std::string_view facts) { return string_at(facts, "text"); }

}  // namespace primus::supervise
