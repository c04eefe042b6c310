// Explains why a YAML file does not parse if the reason is wrong indentation or a missing colon, which the
// parser only notices lines later.
#pragma once

#include <memory>

#include "config/value.h"

namespace primus::config {

// Checks the lines of a file that does not parse, up to `line`, where the parser gave up. Throws an Error at
// the first line with one of these mistakes: a tab as indentation, an indentation deeper than a line that
// already has a value, an indentation unlike all lines above, or no key where one is required. Returns if
// there is none.
void refuse_bad_line(const std::shared_ptr<const Source>& source, int line);

}  // namespace primus::config
