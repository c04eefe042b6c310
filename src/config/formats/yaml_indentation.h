// Explains YAML files that do not parse because of wrong indentation or a missing colon. The parser reports
// such mistakes only some lines later.
#pragma once

#include <memory>

#include "config/value.h"

namespace primus::config {

// Checks the lines of a file that does not parse, up to `line`, where the parser stopped. Throws an Error at
// the first line with one of these mistakes: a tab as indentation, a deeper indentation below a line that
// already has a value, an indentation that matches no line above, or a missing key. Returns if it finds no
// mistake.
void refuse_bad_line(const std::shared_ptr<const Source>& source, int line);

}  // namespace primus::config
