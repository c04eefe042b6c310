#include "lm/model/saved_model.h"

#include <fmt/format.h>

#include <algorithm>

#include "lm/checkpoint/reading_threads.h"
#include "lm/model/published_layout.h"

namespace primus {
namespace {

std::uint64_t bytes_of(const Manifest& manifest) {
  std::uint64_t sum = 0;
  for (const FileRecord& file : manifest.files) sum += file.bytes;
  return sum;
}

}  // namespace

bool names_adapter(std::string_view name) { return name.find(".lora_") != std::string_view::npos; }

bool SavedModel::has_adapters() const {
  return std::ranges::any_of(checkpoint_.manifest().tensors, [](const TensorRecord& record) {
    return record.part == TensorPart::kModel && names_adapter(record.name);
  });
}

SavedModel::SavedModel(const CheckpointReader& checkpoint, std::string_view second)
    : checkpoint_(checkpoint),
      prefix_(second.empty() ? "" : fmt::format("{}.", second)),
      threads_(reading_threads(bytes_of(checkpoint.manifest()))) {}

SavedModel::~SavedModel() = default;

std::optional<TensorView> SavedModel::find(TensorPart where, const std::string& name) const {
  return checkpoint_.find(in(where), prefix_ + name);
}

std::optional<StoredFourBit> SavedModel::find_four_bit(const engine::Parameter& p,
                                                       const engine::CheckpointPart& part,
                                                       TensorNames& used) const {
  return find_stored_four_bit([&](const std::string& name) { return find(TensorPart::kModel, name); },
                              part.name, published_shape(p, part), used, checkpoint_.folder().string());
}

TensorView SavedModel::at(const std::string& name, const std::vector<std::int64_t>& shape) const {
  const std::optional<TensorView> tensor = find(TensorPart::kModel, name);
  if (tensor && std::ranges::equal(tensor->shape, shape)) return *tensor;
  throw invalid(fmt::format("tensor '{}' {}, but the model needs {}", name,
                            tensor ? fmt::format("has shape {}", shape_text(tensor->shape)) : "is missing",
                            shape_text(shape)),
                "the checkpoint belongs to another model")
      .at(checkpoint_.folder().string());
}

void SavedModel::read_runs(TensorPart where, const std::string& name, DType dtype, const engine::Parameter& p,
                           const engine::CheckpointPart& part, const HeldRuns& runs,
                           std::span<std::byte> to) const {
  checkpoint_.read_runs(in(where), prefix_ + name, dtype, published_shape(p, part), axis_order(part), runs,
                        to, threads_.get());
}

}  // namespace primus
