// Positions at which the settings of an experiment were written, and errors at these positions.
#include "config/experiment.h"
#include "config/validation/missing_data.h"

namespace primus::config {

std::string Provenance::describe() const {
  if (layer == Layer::kDefault) return "default";
  if (layer == Layer::kDerived) {
    if (origin.source) return "derived from " + origin.describe();
    return origin.variable.empty() ? "derived" : "environment " + origin.variable;
  }
  return origin.describe();
}

Provenance Experiment::provenance_of(std::string_view key) const {
  const auto found = provenance.find(key);
  return found == provenance.end() ? Provenance{} : found->second;
}

bool Experiment::sets(std::string_view key) const {
  const Value* const value = settings.find(key);
  return provenance_of(key).layer > Layer::kDerived && value && !value->is_null();
}

std::string Experiment::name_of(std::string_view key) const {
  const std::string name = provenance_of(key).name;
  return name.empty() ? std::string(key) : name;
}

Error Experiment::error_for(std::string_view key, std::string what, std::string hint) const {
  const Provenance provenance_of_key = provenance_of(key);
  const Source* const source = provenance_of_key.origin.source.get();
  if (provenance_of_key.layer <= Layer::kDerived || (source && source->name == kNoExperimentFile)) {
    // The error has no position, because the user did not set the key.
    return invalid(std::move(what), std::move(hint));
  }
  const Value* value = settings.find(key);
  return error_at(provenance_of_key.origin, std::move(what), std::move(hint), value ? value->width() : 1);
}

}  // namespace primus::config
