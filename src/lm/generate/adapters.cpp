#include "lm/generate/adapters.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>
#include <utility>

#include "base/error.h"
#include "engine/runtime/shared_parameters.h"
#include "lm/checkpoint/elements.h"
#include "lm/checkpoint/safetensors.h"
#include "lm/model/language_tensors.h"
#include "lm/model/stated_adapters.h"
#include "tensor/bfloat16.h"

namespace primus {
namespace {

// Returns whether both tensors have the same values. `rounded`: after rounding to bf16.
bool same_values(const TensorView& a, const TensorView& b, bool rounded) {
  if (!std::ranges::equal(a.shape, b.shape)) return false;
  if (a.dtype == b.dtype && a.column_stride == 0 && b.column_stride == 0)
    return a.data.size() == b.data.size() && std::memcmp(a.data.data(), b.data.data(), a.data.size()) == 0;
  require_float(a);
  require_float(b);
  std::int64_t elements = 1;
  for (const std::int64_t extent : a.shape) elements *= extent;
  constexpr std::int64_t kAtOnce = 1 << 18;
  std::vector<std::byte> bytes;
  std::vector<float> of_a, of_b;
  const auto read = [&](const TensorView& from, std::int64_t first, std::int64_t count,
                        std::vector<float>& to) {
    bytes.resize(static_cast<std::size_t>(count * size_of(from.dtype)));
    to.resize(static_cast<std::size_t>(count));
    copy_elements(from, first, bytes);
    to_float(from.dtype, bytes, to);
  };
  for (std::int64_t first = 0; first < elements; first += kAtOnce) {
    const std::int64_t count = std::min(kAtOnce, elements - first);
    read(a, first, count, of_a);
    read(b, first, count, of_b);
    const auto same = [&](float x, float y) {
      return rounded ? BFloat16(x).bits == BFloat16(y).bits : x == y;
    };
    if (!std::ranges::equal(of_a, of_b, same)) return false;
  }
  return true;
}

// Throws if the folder of the adapters has other values of a shared weight than the base model. A PEFT folder
// has copies of a few weights at most; a run has all weights.
void check_shared(const AdaptedModel& model, const LanguageTensors& base,
                  const engine::ParameterStore& store) {
  const SafetensorsFolder folder = open_weights(model.folder);
  const LanguageTensors tensors(folder);
  for (const engine::Parameter& p : store.parameters()) {
    if (!engine::is_shared(store, p)) continue;
    for (const engine::CheckpointPart& part : p.parts) {
      const bool in_peft =
          model.folder.adapters && folder.files().back().find(tensors.full_name(part.name)).has_value();
      if (model.folder.adapters && !in_peft) continue;
      const std::optional<TensorView> own = tensors.find(part.name), of_base = base.find(part.name);
      const bool comparable = own && of_base && own->dtype != DType::kU8;
      // A run may have a narrower type than its base model. If the model computes in bf16, loading rounds
      // both.
      const bool loads_rounded = p.value.dtype == DType::kBF16;
      if (comparable && same_values(*own, *of_base, loads_rounded)) continue;
      const Path& where = model.folder.adapters ? *model.folder.adapters : model.folder.path;
      if (own && own->dtype == DType::kU8) {
        throw invalid(fmt::format("adapters '{}' were trained next to weights in 4 bits, which differ from "
                                  "those of the base model",
                                  model.name),
                      fmt::format("primus model export {} FOLDER --adapters writes only the adapters, and "
                                  "--adapters {}=FOLDER uses them next to the weights of the base model",
                                  where.string(), model.name))
            .at(where.string());
      }
      if (comparable && !loads_rounded && same_values(*own, *of_base, true)) {
        throw invalid(
            fmt::format("'{}' of adapters '{}' equals that of the base model '{}' only after rounding "
                        "to bf16",
                        part.name, model.name, base.where()),
            "compute in bf16 (--dtype bf16), or use these adapters without other ones")
            .at(where.string());
      }
      throw invalid(
          fmt::format("'{}' of adapters '{}' differs from the base model '{}'", part.name, model.name,
                      base.where()),
          "give the model next to which they were trained, or use these adapters without other ones")
          .at(where.string());
    }
  }
}

}  // namespace

ModelFolder find_adapters(const Path& given, const ModelFolder& base, const FamilyRegistry& families) {
  if (base.adapters || load_model_config(base, families).lora) {
    throw invalid(
        fmt::format("'{}' has adapters itself", base.adapters ? base.adapters->string() : base.path.string()),
        "give their base model, and list these adapters with the others");
  }
  ModelFolder found = find_model_or_adapters(given);
  if (found.adapters) {
    found.path = base.path;
    found.iteration = base.iteration;
  } else if (!load_model_config(found, families).lora) {
    throw invalid(fmt::format("'{}' is a model without adapters", given.string()),
                  "give a PEFT folder (adapter_config.json), or a run with lora");
  }
  return found;
}

std::string warn_of_another_base(const AdaptedModel& model, const ModelFolder& base) {
  return model.folder.adapters ? warn_of_another_base(*model.folder.adapters, base.path) : std::string();
}

void load_shared_weights(std::span<const AdaptedModel> models,
                         std::span<engine::ParameterStore* const> stores, engine::Rank& rank) {
  load_model_weights(models.front().folder, *stores.front(), rank);
  if (models.size() == 1) return;
  const SafetensorsFolder folder = open_weights(models.front().folder);
  const LanguageTensors base(folder);
  for (std::size_t i = 1; i < models.size(); ++i) {
    check_shared(models[i], base, *stores[i]);
    load_model_weights(models[i].folder, *stores[i], rank);
  }
}

}  // namespace primus
