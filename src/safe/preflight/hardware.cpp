#include "safe/preflight/hardware.h"

#include <algorithm>

#include "base/error.h"
#include "config/readers.h"
#include "config/value.h"

namespace primus::preflight {
namespace {

Hardware read_one(const Path& path) {
  using config::Value;
  const Value document = config::read_document(path);
  Hardware hardware{.file = "presets/hardware/" + path.filename().string()};
  struct Key {
    const char* name;
    double* value;
  };
  const Key keys[] = {
      {"memory_gib", &hardware.memory_gib},
      {"peak_bf16_tflops", &hardware.peak_tflops},
      {"least_bf16_tflops", &hardware.least_tflops},
      {"least_fp32_tflops_per_thread", &hardware.least_tflops},
      {"peak_memory_gbs", &hardware.peak_memory},
      {"least_memory_gbs", &hardware.least_memory},
      {"least_all_reduce_gbs", &hardware.least_all_reduce},
  };
  for (const config::Member& member : document.members) {
    const Value& value = member.value;
    const auto key =
        std::find_if(std::begin(keys), std::end(keys), [&](const Key& k) { return member.key == k.name; });
    if (key != std::end(keys)) {
      const bool number = value.kind == Value::Kind::kInt || value.kind == Value::Kind::kFloat;
      if (!number || !(value.real > 0))
        throw config::error_at(value.origin, "'" + member.key + "' must be a number above 0");
      *key->value = value.real;
    } else if (member.key == "name" || member.key == "source") {
      if (value.kind != Value::Kind::kString)
        throw config::error_at(value.origin, "'" + member.key + "' must be a text");
      (member.key == "name" ? hardware.name : hardware.source) = value.text;
    } else if (member.key == "match") {
      for (const Value& item : value.items) {
        if (item.kind != Value::Kind::kString)
          throw config::error_at(item.origin, "'match' must be a list of texts");
        hardware.match.push_back(item.text);
      }
    } else {
      throw config::error_at(member.origin, "unknown key '" + member.key + "' of hardware",
                             "src/safe/preflight/hardware.h lists the keys", member.key.size());
    }
  }
  if (hardware.name.empty() || hardware.match.empty() || hardware.source.empty())
    throw invalid(path.string() + " lacks name, match or source",
                  "say what it is, which devices it means, and where its numbers come from");
  return hardware;
}

}  // namespace

std::vector<Hardware> read_hardware(const std::vector<Path>& preset_folders) {
  std::vector<Hardware> table;
  for (const Path& folder : preset_folders) {
    const Path hardware = folder / "hardware";
    if (!Env::posix().status(hardware)) continue;
    for (const std::string& name : Env::posix().list(hardware))
      if (name.ends_with(".yaml")) table.push_back(read_one(hardware / name));
  }
  return table;
}

std::optional<Hardware> find_hardware(const std::vector<Hardware>& table, std::string_view device_name) {
  const Hardware* best = nullptr;
  std::size_t length = 0;
  for (const Hardware& hardware : table) {
    for (const std::string& match : hardware.match) {
      if (match.size() <= length || device_name.find(match) == std::string_view::npos) continue;
      best = &hardware;
      length = match.size();
    }
  }
  return best ? std::optional(*best) : std::nullopt;
}

}  // namespace primus::preflight
