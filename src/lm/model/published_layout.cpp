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

PlacesInMemory places_in_memory(const CheckpointPart& part, std::int64_t i, std::int64_t cols) {
  const engine::PublishedLayout& layout = part.layout;
  if (layout.axes.empty()) return {.first = i, .step = 1, .count = cols - i % cols};
  PlacesInMemory places;
  for (std::size_t axis = layout.axes.size(); axis-- > 0;) {
    const auto of_memory = static_cast<std::size_t>(layout.axes[axis]);
    const std::int64_t size = layout.dims[of_memory];
    std::int64_t stride = 1;
    for (std::size_t inner = of_memory + 1; inner < layout.dims.size(); ++inner) stride *= layout.dims[inner];
    if (axis + 1 == layout.axes.size() && (stride == 1 || stride % cols == 0))
      places.step = stride, places.count = size - i % size;
    places.first += i % size * stride;
    i /= size;
  }
  return places;
}

AxisOrder axis_order(const CheckpointPart& part) {
  return {.dims = part.layout.dims, .axes = part.layout.axes};
}

}  // namespace primus
