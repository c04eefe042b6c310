#include "backends/own_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "config/foreign.h"

namespace primus::backends {

using config::KeyType;
using config::Value;

namespace {

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

std::string inline_text(const Value& value, KeyType type) {
  using Kind = Value::Kind;
  if (value.is_null()) return "null";
  if (value.is_list()) {
    std::string text = "[";
    for (const Value& item : value.items)
      text += (text.size() > 1 ? ", " : "") + inline_text(item, KeyType::kAny);
    return text + "]";
  }
  if (value.is_map()) {
    std::string text = "{";
    for (const config::Member& member : value.members)
      text += (text.size() > 1 ? ", " : "") + quoted(member.key) + ": " +
              inline_text(member.value, KeyType::kAny);
    return text + "}";
  }
  const bool is_number = value.kind == Kind::kInt || value.kind == Kind::kFloat;
  if (type == KeyType::kString) return quoted(value.text);
  if (type == KeyType::kBool && is_number) return value.real != 0 ? "true" : "false";
  if (type == KeyType::kList && value.kind == Kind::kString) return "[" + quoted(value.text) + "]";
  if (is_number && (type == KeyType::kFloat || value.kind == Kind::kFloat)) {
    std::string text = fmt::format("{}", value.real);
    if (std::isfinite(value.real) && text.find_first_of(".e") == std::string::npos) text += ".0";
    // Adds ".0" before the exponent, because YAML 1.1 reads 1e-08 as text.
    if (const std::size_t e = text.find('e'); e != std::string::npos && text.find('.') == std::string::npos)
      text.insert(e, ".0");
    return text;
  }
  if (value.kind == Kind::kInt) return fmt::format("{}", value.integer);
  if (value.kind == Kind::kBool) return value.boolean ? "true" : "false";
  return quoted(value.text);
}

Value own_settings(const config::Experiment& experiment, const config::BackendFields& fields,
                   ExternalJob& job) {
  Value result;
  result.kind = Value::Kind::kMap;
  config::for_each_setting(
      fields, experiment.settings, [&](const std::string& path, const config::Member& member) {
        if (fields.find(path)) {
          config::set_path(result, path, member.value);
        } else if (const Value* extra = config::find_extra(fields, path); extra && !member.value.is_null()) {
          const Value* because = extra->find("because");
          job.dropped[because ? because->text : "AMD Primus adds it"].push_back(path);
        }
      });
  return result;
}

Value text_value(const std::string& text) {
  Value value;
  value.kind = Value::Kind::kString;
  value.text = text;
  return value;
}

void require_settings(const config::Experiment& experiment, const ExternalJob& job) {
  if (config::has_foreign_settings(experiment)) return;
  throw unsupported(
      fmt::format(
          "the experiment's settings are not those of {0}, and Primus cannot translate them for {0} yet",
          job.title),
      fmt::format("write its overrides with the settings of {} (docs/backends.md), or choose framework: "
                  "native or megatron",
                  job.title))
      .at(experiment.provenance_of("framework").origin.location());
}

void warn_of_uneven_mesh(const Value& settings, const config::BackendFields& fields,
                         const std::function<bool(std::string_view)>& is_degree, bool complete,
                         std::int64_t ranks, ExternalJob& job) {
  if (ranks == 1) return;
  std::int64_t product = 1;
  std::string names;
  config::for_each_setting(fields, settings, [&](const std::string& path, const config::Member& member) {
    const std::int64_t degree = member.value.kind == Value::Kind::kInt ? member.value.integer : 1;
    if (degree <= 1 || !is_degree(path)) return;
    product = product > ranks ? product : product * std::min(degree, ranks + 1);
    names += fmt::format("{}{}={}", names.empty() ? "" : ", ", path, degree);
  });
  if (complete ? ranks == product : ranks % product == 0) return;
  job.warnings.push_back(fmt::format("{} ranks are not {} the product of {}: {} will refuse this", ranks,
                                     complete ? "equal to" : "a multiple of",
                                     names.empty() ? "the degrees of parallelism, which are 1" : names,
                                     job.title));
}

}  // namespace primus::backends
