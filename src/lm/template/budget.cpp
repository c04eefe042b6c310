#include "lm/template/budget.h"

#include <fmt/format.h>

namespace primus::jinja {

void Budget::refuse_steps() const {
  throw Failure("LimitError", fmt::format("the template needs more than {} steps", limits_.steps));
}
void Budget::refuse_bytes() const {
  throw Failure("LimitError", fmt::format("the template makes more than {} bytes of values", limits_.bytes));
}
void Budget::refuse_depth() {
  throw Failure("RecursionError", fmt::format("values are nested more than {} levels deep", kMaxDepth));
}
void Budget::refuse_nesting() const {
  throw Failure("RecursionError",
                fmt::format("the template is nested more than {} levels deep", limits_.nesting));
}

}  // namespace primus::jinja
