#include <algorithm>

#include "base/entries.h"
#include "lm/events/detectors/detector.h"

namespace primus {

#include "lm/events/detectors.def"  // generated: kAllDetectorEntry

std::span<const DetectorEntry* const> detectors() {
  static const auto all = sorted_entries(kAllDetectorEntry, &DetectorEntry::name);
  return all;
}

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace primus
