// Why a YAML file does not parse, where the reason is a line's indentation or a colon that is missing: the
// parser only notices lines later.
#pragma once

#include <memory>

#include "config/value.h"

namespace primus::config {

// Looks at the lines of a file that does not parse, up to `line`, at which the parser gave up. Throws an
// Error at the first line that is indented with a tab, deeper than a line that has its value already, or as
// no line above it, or that stands where a key must and has none; returns where there is none.
void refuse_bad_line(const std::shared_ptr<const Source>& source, int line);

}  // namespace primus::config
