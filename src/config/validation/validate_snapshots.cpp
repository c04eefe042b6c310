#include "config/validation/validate_snapshots.h"

#include <string_view>

#include "base/error.h"
#include "config/lora_settings.h"

namespace primus::config {
namespace {

bool stores_four_bits(const Experiment& e) {
  const Value* const map = e.settings.find("lora");
  if (!map || !map->is_map()) return false;
  try {
    const LoraSettings lora = read_lora(*map);
    return lora.enabled && lora.base_weights != "none";
  } catch (const Error&) {
    return false;  // another check reports the error
  }
}

}  // namespace

void validate_snapshots(const Experiment& e, bool generates_answers, Problems& problems) {
  constexpr std::string_view kKey = "snapshot_interval";
  if (generates_answers) {
    problems.add(
        e.error_for(kKey,
                    "this stage has answers and reward models as a part of its state, which snapshots in "
                    "memory do not contain",
                    "remove snapshot_interval, and set a smaller save_interval"));
  }
  if (stores_four_bits(e)) {
    problems.add(
        e.error_for(kKey, "snapshots in memory do not support frozen weights in 4 bits (lora.base_weights)",
                    "remove snapshot_interval or lora.base_weights"));
  }
}

}  // namespace primus::config
