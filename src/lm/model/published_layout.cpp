#include "lm/model/published_layout.h"

namespace primus {

using engine::CheckpointPart;
using engine::Parameter;

std::vector<std::int64_t> published_shape(const Parameter& p, const CheckpointPart& part) {
  if (!part.layout.shape.empty()) return part.layout.shape;
  std::vector<std::int64_t> shape{part.rows};
  const Shape& whole = p.whole_shape();
  if (whole.rank() > 1) shape.push_back(whole[whole.rank() - 1]);
  return shape;
}

Tensor part_of(const Tensor& whole, const Parameter& p, const CheckpointPart& part) {
  const std::int64_t row = p.row_elements();
  return whole.reshaped({whole.elements()}).slice(part.row * row, (part.row + part.rows) * row);
}

AxisOrder axis_order(const CheckpointPart& part) {
  return {.dims = part.layout.dims, .axes = part.layout.axes};
}

}  // namespace primus
