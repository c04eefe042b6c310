#include <algorithm>
#include <array>

#include "lm/events/detectors/detector.h"

namespace primus {

#define ENTRY(entry) extern const DetectorEntry entry;
#include "lm/events/detectors.def"
#undef ENTRY

std::span<const DetectorEntry* const> detectors() {
  static const auto all = [] {
    std::array list{
#define ENTRY(entry) &entry,
#include "lm/events/detectors.def"
#undef ENTRY
    };
    std::sort(list.begin(), list.end(),
              [](const DetectorEntry* a, const DetectorEntry* b) { return a->name < b->name; });
    return list;
  }();
  return all;
}

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace primus
