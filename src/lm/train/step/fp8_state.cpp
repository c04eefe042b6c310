#include "lm/train/step/fp8_state.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace primus {
namespace {

using engine::DelayedScales;

constexpr const char *kHistory = "fp8_amax_history", *kScales = "fp8_scales";
constexpr std::int64_t kTensors = turbo::UpdateFp8Scales::kTensors, kPlace = turbo::UpdateFp8Scales::kPlace;

std::vector<std::int64_t> extents(const Tensor& tensor) { return {tensor.shape[0], tensor.shape[1]}; }

// Returns the scales that UpdateFp8Scales would compute from the history of a tensor. `before`: the saved
// scale.
turbo::Fp8Scales scales_by(const engine::PrecisionRecipe& recipe, std::span<const float> history,
                           bool gradient, float before) {
  std::uint32_t decides = std::bit_cast<std::uint32_t>(history[0]);
  if (!recipe.delayed.most_recent) {
    for (const float magnitude : history)
      decides = std::max(decides, std::bit_cast<std::uint32_t>(magnitude));
  }
  const DType type = gradient ? recipe.gradients : DType::kF8E4M3;
  const float top = type == DType::kF8E5M2 ? turbo::Fp8E5M2::largest() : turbo::Fp8E4M3::largest();
  return turbo::delayed_fp8_scales(decides, std::ldexp(top, -recipe.delayed.margin), before);
}

}  // namespace

std::vector<TensorSource> scale_sources(const DelayedScales& scales, engine::Rank& rank,
                                        DeviceReader& reader) {
  std::vector<TensorSource> sources;
  const auto add = [&](const char* state, const DelayedScales::Layer& layer, const Tensor& tensor) {
    TensorSource& source = sources.emplace_back();
    source.name = optimizer_tensor_name(state, layer.parameter->name);
    source.dtype = tensor.dtype;
    source.shape = extents(tensor);
    source.fill = [&reader, tensor](std::uint64_t offset, std::span<std::byte> out) {
      reader.read(tensor, offset, out);
    };
    if (rank.mesh().rank() != 0) source.runs = HeldRuns();
  };
  for (const DelayedScales::Layer& layer : scales.layers()) {
    add(kHistory, layer, layer.history);
    add(kScales, layer, layer.scales);
  }
  return sources;
}

LoadedScales load_scales(const CheckpointReader& checkpoint, const DelayedScales& scales,
                         engine::Rank& rank) {
  LoadedScales count;
  for (const DelayedScales::Layer& layer : scales.layers()) {
    const std::string history_name = optimizer_tensor_name(kHistory, layer.parameter->name),
                      scales_name = optimizer_tensor_name(kScales, layer.parameter->name);
    const std::optional<TensorView> saved = checkpoint.find(TensorPart::kOptimizer, history_name);
    if (!saved || !checkpoint.find(TensorPart::kOptimizer, scales_name)) {
      ++count.missing;
      continue;
    }
    const auto steps = static_cast<std::int64_t>(saved->data.size() / sizeof(float)) / kTensors;
    std::vector<float> history(static_cast<std::size_t>(kTensors * steps));
    std::array<float, kPlace * kTensors> places{};
    checkpoint.read(TensorPart::kOptimizer, history_name, DType::kF32, std::array{kTensors, steps},
                    std::as_writable_bytes(std::span(history)));
    checkpoint.read(TensorPart::kOptimizer, scales_name, DType::kF32, std::array{kTensors, kPlace},
                    std::as_writable_bytes(std::span(places)));
    const std::int64_t now = layer.history.cols();
    std::vector<float> kept(static_cast<std::size_t>(kTensors * now));
    for (std::int64_t t = 0; t < kTensors; ++t) {
      const auto own =
          std::span(kept).subspan(static_cast<std::size_t>(t * now), static_cast<std::size_t>(now));
      std::copy_n(history.begin() + t * steps, std::min(steps, now), own.begin());
      const turbo::Fp8Scales next = scales_by(scales.recipe(), own, t == kTensors - 1,
                                              places[static_cast<std::size_t>(kPlace * t + 1)]);
      places[static_cast<std::size_t>(kPlace * t)] = next.inverse;
      places[static_cast<std::size_t>(kPlace * t + 1)] = next.scale;
    }
    rank.compute().copy_to_device(layer.history.data, kept.data(), layer.history.bytes());
    rank.compute().copy_to_device(layer.scales.data, places.data(), layer.scales.bytes());
    rank.compute().synchronize();  // waits, because the host buffers are about to be freed
    ++count.loaded;
  }
  return count;
}

}  // namespace primus
