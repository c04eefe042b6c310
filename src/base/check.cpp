#include "base/check.h"

#include <stdexcept>
#include <string>

namespace primus {

void check_failed(const char* who, const char* condition) {
  throw std::logic_error(std::string(who) + ": check failed: " + condition);
}

}  // namespace primus
