// Common code for experiments with a framework's own settings. Free functions without state.
#pragma once

#include <string>

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

}  // namespace primus::backends
