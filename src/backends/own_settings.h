// Common code for experiments with a framework's own settings. Free functions without state.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "backends/job.h"

namespace primus::backends {

// Writes a value of the field's type in syntax that is valid in TOML and in YAML's flow style.
std::string inline_text(const config::Value& value, config::KeyType type);
config::Value text_value(const std::string& text);

// Returns the framework's own settings. Settings that AMD Primus adds cause notes in `job`.
config::Value own_settings(const config::Experiment& experiment, const config::BackendFields& fields,
                           ExternalJob& job);
// Throws Error(kUnsupported) for an experiment that uses our keys.
void require_settings(const config::Experiment& experiment, const ExternalJob& job);

// Adds a warning to `job` if the product of the degrees of parallelism is not a divisor of `ranks`. A degree
// is a positive integer of a setting for which `is_degree` returns true. `complete`: whether the product must
// equal `ranks`. Does nothing for a single rank, because a plan without a number of ranks has one.
void warn_of_uneven_mesh(const config::Value& settings, const config::BackendFields& fields,
                         const std::function<bool(std::string_view)>& is_degree, bool complete,
                         std::int64_t ranks, ExternalJob& job);

}  // namespace primus::backends
