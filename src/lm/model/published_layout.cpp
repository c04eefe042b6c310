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

std::int64_t place_in_memory(const CheckpointPart& part, std::int64_t i) {
  const engine::PublishedLayout& layout = part.layout;
  std::int64_t place = 0;
  for (std::size_t axis = layout.axes.size(); axis-- > 0;) {
    const auto of_memory = static_cast<std::size_t>(layout.axes[axis]);
    std::int64_t stride = 1;
    for (std::size_t inner = of_memory + 1; inner < layout.dims.size(); ++inner) stride *= layout.dims[inner];
    place += i % layout.dims[of_memory] * stride;
    i /= layout.dims[of_memory];
  }
  return layout.axes.empty() ? i : place;
}

AxisOrder axis_order(const CheckpointPart& part) {
  return {.dims = part.layout.dims, .axes = part.layout.axes};
}

}  // namespace primus
