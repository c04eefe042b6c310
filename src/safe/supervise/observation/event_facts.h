// Reads single values from the facts of events (docs/formats/events.md). Facts of another form give 0 or an
// empty text. Free functions without state.
#pragma once

#include <string>
#include <string_view>

namespace primus::supervise {

double seconds_of_step(std::string_view facts);     // duration of the step of a `step` event
std::string phase_in(std::string_view facts);       // the work of a `phase` event
std::string text_in(std::string_view facts);        // the text of a `fault` event
std::string state_in(std::string_view facts);       // the state of a `checkpoint` event
std::string state_from_in(std::string_view facts);  // where the state of a `begin` event came from

}  // namespace primus::supervise
