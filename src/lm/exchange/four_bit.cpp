#include "lm/exchange/four_bit.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "lm/model/stored_four_bit.h"

namespace primus {

std::optional<PublishedTensor> find_four_bit(const SafetensorsFolder& folder, const std::string& full,
                                             const std::vector<std::int64_t>& shape, TensorNames& used) {
  const auto stored = find_stored_four_bit([&](const std::string& name) { return folder.find(name); }, full,
                                           shape, used, folder.folder().string());
  if (!stored) return std::nullopt;
  const auto factors = std::make_shared<const std::vector<float>>(stored->factors());
  const auto map = std::make_shared<const std::vector<float>>(stored->map);
  PublishedTensor result{.dtype = stored->dtype, .plain = {}, .read = {}};
  result.read = [packed = stored->packed, map, factors, block = stored->format.block](std::int64_t first,
                                                                                      std::span<float> out) {
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::int64_t at = first + static_cast<std::int64_t>(i);
      const auto pair = static_cast<unsigned>(packed.data[static_cast<std::size_t>(at / 2)]);
      const unsigned code = at % 2 == 0 ? pair >> 4U : pair & 0xFU;
      out[i] = (*map)[code] * (*factors)[static_cast<std::size_t>(at / block)];
    }
  };
  return result;
}

void note_four_bit(const TensorNames& used, std::vector<std::string>& notes) {
  const auto found = std::ranges::find_if(used, names_four_bit_state);
  if (found == used.end()) return;
  notes.push_back(fmt::format("weights in 4 bits ({}) are expanded, and written without quantisation",
                              found->ends_with("nf4") ? "nf4" : "fp4"));
}

}  // namespace primus
