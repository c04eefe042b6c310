#include "base/system/process_label.h"

#include <fmt/format.h>
#include <unistd.h>

#include <random>

namespace primus {

std::string process_label() {
  std::random_device random;
  return fmt::format("{}-{:08x}{:08x}", ::getpid(), random(), random());
}

}  // namespace primus
