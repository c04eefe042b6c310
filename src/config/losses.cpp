#include "config/losses.h"

#include <algorithm>
#include <vector>

namespace primus::config {
namespace {

struct Row {
  std::string_view stage;
  std::vector<std::string_view> losses;
};

const std::vector<Row>& rows() {
  static const std::vector<Row> all = {
#define LOSSES(stage, ...) {stage, {__VA_ARGS__}},
#include "config/keys/losses.def"
#undef LOSSES
  };
  return all;
}

}  // namespace

std::span<const std::string_view> losses_of(std::string_view stage) {
  const auto row = std::ranges::find(rows(), stage, &Row::stage);
  if (row == rows().end()) return {};
  return row->losses;
}

}  // namespace primus::config
