// Fuzzes experiments in YAML.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "config_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  primus::config::fuzz_experiment({reinterpret_cast<const char*>(data), size}, "fuzz.yaml");
  return 0;
}
