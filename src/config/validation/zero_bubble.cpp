#include "config/validation/zero_bubble.h"

#include <fmt/format.h>

#include <string>

#include "config/keys.h"
#include "config/trainer_config.h"

namespace primus::config {
namespace {

bool is_on(const Experiment& e, std::string_view key, bool otherwise = false) {
  const Value* const value = e.settings.find(key);
  return value && value->kind == Value::Kind::kBool ? value->boolean : otherwise;
}

// Returns whether the keys allow more pending weight gradients than ZB-H1.
bool asks_for_more_memory(const Experiment& e) {
  const Value* const pending = e.settings.find("zero_bubble_max_pending_backward");
  const Value number = pending && pending->is_scalar() ? plain_scalar(pending->text, {}) : Value{};
  return number.kind == Value::Kind::kInt && number.integer > e.trainer->pipeline_model_parallel_size;
}

std::string v_schedule(const Experiment& e) {
  const Value* const setup = e.settings.find("zero_bubble_v_schedule_mem_setup");
  if (setup && setup->text == "min") return "v-min";
  if (setup && setup->text == "zb") return "zbv-formatted";
  return "v-half";
}

}  // namespace

void take_zero_bubble(Experiment& e, Problems& problems) {
  const auto refuse = [&](std::string_view key, std::string what, std::string hint) {
    const Value& value = *e.settings.find(key);
    problems.add(unsupported(std::move(what), std::move(hint))
                     .at(value.origin.location(), value.origin.snippet(value.width())));
  };
  if (!is_on(e, "patch_zero_bubble")) return;
  if (is_on(e, "enable_1f1b_v")) {
    return refuse("enable_1f1b_v", "enable_1f1b_v: the native engine has no 1F1B-V schedule",
                  "zero_bubble_v_schedule: true places layers in the same way and has a smaller bubble");
  }
  const bool v = is_on(e, "zero_bubble_v_schedule");
  if (!v && !is_on(e, "enable_zero_bubble", true)) return;
  if (!v && asks_for_more_memory(e)) {
    return refuse("zero_bubble_max_pending_backward",
                  "zero_bubble_max_pending_backward allows more pending backward passes than stages (ZB-H2), "
                  "but the native engine only has ZB-H1",
                  "set it to auto or to pipeline_model_parallel_size, or zero_bubble_v_schedule: true");
  }
  const std::string schedule = v ? v_schedule(e) : "zero-bubble";
  if (e.trainer->patch_primus_pipeline && e.trainer->pp_algorithm != schedule) {
    return refuse("patch_zero_bubble",
                  fmt::format("patch_zero_bubble selects the schedule {}, but pp_algorithm is {}", schedule,
                              e.trainer->pp_algorithm),
                  "set patch_zero_bubble: false, or leave patch_primus_pipeline out");
  }
  e.trainer->patch_primus_pipeline = true;
  e.trainer->pp_algorithm = schedule;
  const Origin origin = e.provenance_of("patch_zero_bubble").origin;
  for (const char* const key : {"patch_primus_pipeline", "pp_algorithm"})
    e.provenance.insert_or_assign(key, Provenance{Layer::kDerived, origin});
  if (e.provenance_of("patch_zero_bubble").layer >= Layer::kOverrides)
    e.replaced.emplace("patch_zero_bubble", "the schedule is pp_algorithm: " + schedule);
}

}  // namespace primus::config
