// Experiments with a framework's own settings: what jobs of such frameworks have in common. Free functions
// without state.
#pragma once

#include <string>

#include "backends/job.h"

namespace primus::backends {

// A value as TOML and as YAML's flow style, of the field's type.
std::string inline_text(const config::Value& value, config::KeyType type);
config::Value text_value(const std::string& text);

// The settings that the framework itself has; what Primus adds to them is noted in `job`.
config::Value own_settings(const config::Experiment& experiment, const config::BackendFields& fields,
                           ExternalJob& job);
// Throws Error(kUnsupported) for an experiment that is written with our keys.
void require_settings(const config::Experiment& experiment, const ExternalJob& job);

}  // namespace primus::backends
