#include "config/hardware.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/text/suggest.h"
#include "config/keys.h"
#include "config/readers.h"
#include "config/value.h"

namespace primus::config {
namespace {

struct NumberKey {
  const char* name;
  double Hardware::*value;
};

constexpr NumberKey kNumbers[] = {
    {"memory_gib", &Hardware::memory_gib},
    {"peak_bf16_tflops", &Hardware::peak_tflops},
    {"peak_fp8_tflops", &Hardware::peak_fp8_tflops},
    {"peak_fp32_tflops", &Hardware::peak_fp32_tflops},
    {"step_share", &Hardware::step_share},
    {"fp8_step_share", &Hardware::fp8_step_share},
    {"min_bf16_tflops", &Hardware::min_tflops},
    {"min_fp32_tflops_per_thread", &Hardware::min_tflops},
    {"peak_memory_gbs", &Hardware::peak_memory},
    {"min_memory_gbs", &Hardware::min_memory},
    {"min_all_reduce_gbs", &Hardware::min_all_reduce},
    {"link_gbs", &Hardware::link},
    {"network_gbs", &Hardware::network},
    {"gpus_per_host", &Hardware::gpus_per_host},
};

void read_number(const Member& member, double& target) {
  const Value& value = member.value;
  const bool number = value.kind == Value::Kind::kInt || value.kind == Value::Kind::kFloat;
  if (!number || !(value.real > 0))
    throw error_at(value.origin, "'" + member.key + "' must be a number above 0");
  if (member.key.ends_with("step_share") && value.real > 1)
    throw error_at(value.origin, "'" + member.key + "' must be a share of the peak: at most 1");
  target = value.real;
}

void read_text(const Member& member, Hardware& hardware) {
  const Value& value = member.value;
  if (value.kind != Value::Kind::kString) throw error_at(value.origin, "'" + member.key + "' must be text");
  if (member.key == "device" && value.text != "cuda" && value.text != "hip" && value.text != "cpu")
    throw error_at(value.origin, "'device' must be cuda, hip or cpu");
  (member.key == "name"     ? hardware.name
   : member.key == "device" ? hardware.device
                            : hardware.source) = value.text;
}

void read_match(const Member& member, Hardware& hardware) {
  for (const Value& item : member.value.items) {
    if (item.kind != Value::Kind::kString) throw error_at(item.origin, "'match' must be a list of strings");
    hardware.match.push_back(item.text);
  }
}

Hardware read_one(const Path& path) {
  const Value document = read_document(path);
  Hardware hardware{.file = "presets/hardware/" + path.filename().string(),
                    .short_name = path.stem().string()};
  for (const std::string_view vendor : {"amd_", "nvidia_"}) {
    if (hardware.short_name.starts_with(vendor)) hardware.short_name.erase(0, vendor.size());
  }
  for (const Member& member : document.members) {
    const auto* const key =
        std::ranges::find_if(kNumbers, [&](const NumberKey& k) { return member.key == k.name; });
    if (key != std::end(kNumbers)) {
      read_number(member, hardware.*key->value);
    } else if (member.key == "name" || member.key == "source" || member.key == "device") {
      read_text(member, hardware);
    } else if (member.key == "match") {
      read_match(member, hardware);
    } else {
      throw error_at(member.origin, "unknown key '" + member.key + "' in a hardware file",
                     "docs/parallelism.md lists the keys", member.key.size());
    }
  }
  if (hardware.name.empty() || hardware.match.empty() || hardware.source.empty())
    throw invalid(path.string() + " lacks name, match or source",
                  "add the hardware's name, the devices that it matches, and the source of its numbers");
  return hardware;
}

bool is_called(const Hardware& hardware, std::string_view name) {
  return same_ignoring_case(hardware.short_name, name) ||
         std::ranges::any_of(hardware.match,
                             [&](const std::string& match) { return same_ignoring_case(match, name); });
}

}  // namespace

std::vector<Hardware> read_hardware(const std::vector<Path>& preset_folders) {
  std::vector<Hardware> table;
  // The installed program and its source tree may both have the same profile. The first profile that is found
  // is used, as for presets.
  std::set<std::string> read;
  for (const Path& folder : preset_folders) {
    const Path hardware = folder / "hardware";
    if (!Env::posix().status(hardware)) continue;
    for (const std::string& name : Env::posix().list(hardware))
      if (name.ends_with(".yaml") && read.insert(name).second) table.push_back(read_one(hardware / name));
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

Hardware hardware_named(const std::vector<Hardware>& table, const std::string& name) {
  if (name.ends_with(".yaml") || name.ends_with(".yml") || name.find('/') != std::string::npos) {
    if (!Env::posix().status(name)) {
      throw invalid(
          fmt::format("there is no hardware file '{}'", name),
          "presets/hardware has examples; name one of those without its ending, such as mi300x or h100");
    }
    Hardware own = read_one(name);
    own.file = name;
    return own;
  }
  std::vector<std::string_view> names;
  for (const Hardware& hardware : table) {
    if (is_called(hardware, name) || same_ignoring_case(Path(hardware.file).stem().string(), name))
      return hardware;
    names.emplace_back(hardware.short_name);
  }
  std::ranges::sort(names);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  const std::string near = did_you_mean(name, names);
  throw invalid(fmt::format("no hardware is called '{}'", name),
                fmt::format("{}{}choose one of {}, or a file of your own: PATH.yaml (docs/parallelism.md)",
                            near, near.empty() ? "" : " ", fmt::join(names, ", ")));
}

std::optional<Hardware> hardware_of_path(const std::vector<Hardware>& table, const Path& path) {
  for (const Path& folder : path.parent_path()) {
    for (const Hardware& hardware : table) {
      if (hardware.device != "cpu" && is_called(hardware, folder.string())) return hardware;
    }
  }
  return std::nullopt;
}

}  // namespace primus::config
