#include "lm/template/template.h"

#include <stdexcept>

namespace primus::jinja {

Template::Template(std::string_view source) : source_(source) {
  try {
    parsed_ =
        std::make_shared<const Parsed>(parse_template(source, {.is_filter = is_filter, .is_test = is_test}));
  } catch (const std::length_error& error) {
    throw Failure("ValueError", error.what());
  }
}

Rendered Template::render(Variables variables, const std::tm& now, const Limits& limits) const {
  Interpreter interpreter(limits, now);
  Rendered rendered;
  try {
    rendered.text = interpreter.render(parsed_->body, std::move(variables), rendered.generated);
  } catch (const std::length_error& error) {
    throw Failure("ValueError", error.what());
  }
  return rendered;
}

std::tm local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return local;
}

}  // namespace primus::jinja
