// Writes a diagnosis for people and for programs. Pure functions; thread-safe.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/terminal/terminal.h"
#include "safe/postmortem/diagnosis.h"

namespace primus::postmortem {

// Returns the text for a terminal. Times are local.
std::string report_text(const CaseFile& file, const Diagnosis& diagnosis, const Terminal& terminal);
// Returns a self-contained page.
std::string report_page(const CaseFile& file, const Diagnosis& diagnosis, const std::string& generator);
// Returns all of it as JSON. Times are seconds since 1970.
nlohmann::ordered_json report_json(const CaseFile& file, const Diagnosis& diagnosis);

}  // namespace primus::postmortem
