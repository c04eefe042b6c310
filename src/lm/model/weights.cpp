#include "lm/model/weights.h"

#include <string_view>

#include "base/error.h"
#include "lm/checkpoint/elements.h"
#include "lm/model/language_model.h"
#include "lm/model/language_tensors.h"
#include "lm/model/published_layout.h"

namespace primus {
namespace {

using engine::CheckpointPart;
using engine::Parameter;
using engine::ParameterStore;

std::vector<float> floats_of(const TensorView& tensor) {
  require_float(tensor);
  std::vector<float> out(tensor.data.size() / static_cast<std::size_t>(size_of(tensor.dtype)));
  to_float(tensor.dtype, tensor.data, out);
  return out;
}

// Where a parameter's elements lie within its unit's flat moment buffers.
Tensor moment(const Tensor& flat, const Parameter& p) {
  return flat.slice(p.offset, p.offset + p.shape.elements()).reshaped(p.shape);
}

template <class Visit>
void for_each_part(const ParameterStore& store, Visit&& visit) {
  for (const engine::ParameterUnit& unit : store.units()) {
    for (const Parameter* p : unit.parameters) {
      for (const CheckpointPart& part : p->parts) visit(unit, *p, part);
    }
  }
}

TensorSource source(std::string name, const Tensor& tensor, const Parameter& p, const CheckpointPart& part,
                    DeviceReader& reader) {
  TensorSource s;
  s.name = std::move(name);
  s.dtype = tensor.dtype;
  s.shape = published_shape(p, part);
  s.fill = [tensor, &reader](std::uint64_t offset, std::span<std::byte> out) {
    reader.read(tensor, offset, out);
  };
  s.order = axis_order(part);
  return s;
}

// `host` holds the part's elements in published order and in the type of `to`.
void upload(engine::Rank& rank, const Tensor& to, const CheckpointPart& part,
            std::span<const std::byte> host) {
  std::vector<std::byte> reordered;
  if (!part.layout.dims.empty()) {
    reordered.resize(host.size());
    to_memory_order(axis_order(part), static_cast<std::size_t>(size_of(to.dtype)), host, reordered);
    host = reordered;
  }
  rank.compute().copy_to_device(to.data, host.data(), to.bytes());
  rank.compute().synchronize();  // the host buffer is used again
}

void check_unit_is_there(const LanguageTensors& tensors, const engine::ParameterUnit& unit) {
  if (unit.if_missing.empty()) return;
  for (const Parameter* p : unit.parameters) {
    for (const CheckpointPart& part : p->parts) {
      if (tensors.find(part.name)) return;
    }
  }
  throw invalid("the weights have nothing of " + unit.name, unit.if_missing).at(tensors.where());
}

// The tensor that a part is read from.
TensorView tensor_of(const LanguageTensors& tensors, const Parameter& p, const CheckpointPart& part) {
  if (tensors.find(part.name + "_blocks") && tensors.find(part.name + "_scales")) {
    throw unsupported("tensor '" + part.name + "' is quantised (mxfp4)",
                      "'primus model import' writes the model in bf16")
        .at(tensors.where());
  }
  return tensors.folder().at(tensors.full_name(part.name), published_shape(p, part));
}

}  // namespace

void check_weight_shapes(const SafetensorsFolder& folder, const ModelConfig& config,
                         const FamilyRegistry& families) {
  ParameterStore store;  // never allocated
  const LanguageModel model(config, families, store);
  const LanguageTensors tensors(folder);
  for (const engine::ParameterUnit& unit : store.units()) check_unit_is_there(tensors, unit);
  for_each_part(store, [&](const engine::ParameterUnit&, const Parameter& p, const CheckpointPart& part) {
    tensor_of(tensors, p, part);
  });
}

void load_weights(const SafetensorsFolder& folder, ParameterStore& store, engine::Rank& rank) {
  const LanguageTensors tensors(folder);
  TensorNames used;
  for (const engine::ParameterUnit& unit : store.units()) check_unit_is_there(tensors, unit);
  for_each_part(store, [&](const engine::ParameterUnit&, const Parameter& p, const CheckpointPart& part) {
    const std::vector<float> staging = floats_of(tensor_of(tensors, p, part));
    tensors.check_copies(part, used);
    if (!rank.measuring()) upload(rank, part_of(p.master, p, part), part, std::as_bytes(std::span(staging)));
  });
  tensors.refuse_foreign(used, store);
  store.refresh_working_copies(rank.context());
}

void DeviceReader::read(const Tensor& from, std::uint64_t offset, std::span<std::byte> out) {
  const std::scoped_lock lock(mutex_);
  rank_.copies().copy_to_host(out.data(), static_cast<const char*>(from.data) + offset,
                              static_cast<std::int64_t>(out.size()));
  rank_.copies().synchronize();
}

std::vector<TensorSource> model_sources(const ParameterStore& store, DeviceReader& reader) {
  std::vector<TensorSource> sources;
  for_each_part(store, [&](const engine::ParameterUnit&, const Parameter& p, const CheckpointPart& part) {
    sources.push_back(source(part.name, part_of(p.value, p, part), p, part, reader));
    for (const std::string& name : part.copies) {
      TensorSource& copy = sources.emplace_back(sources.back());
      copy.name = name;
    }
  });
  return sources;
}

std::vector<TensorSource> optimizer_sources(const ParameterStore& store, DeviceReader& reader) {
  std::vector<TensorSource> sources;
  for_each_part(
      store, [&](const engine::ParameterUnit& unit, const Parameter& p, const CheckpointPart& part) {
        auto add = [&](const char* state, const Tensor& tensor) {
          sources.push_back(
              source(optimizer_tensor_name(state, part.name), part_of(tensor, p, part), p, part, reader));
        };
        if (!unit.working.absent() && !p.full_precision) add("fp32_param", p.master);
        if (!p.trainable) return;
        add("exp_avg", moment(unit.exp_avg, p));
        add("exp_avg_sq", moment(unit.exp_avg_sq, p));
      });
  return sources;
}

void load_checkpoint(const CheckpointReader& checkpoint, ParameterStore& store, engine::Rank& rank,
                     bool optimizer) {
  std::vector<std::byte> staging;
  auto load = [&](TensorPart where, const std::string& name, const Tensor& to, const Parameter& p,
                  const CheckpointPart& part) {
    staging.resize(static_cast<std::size_t>(to.bytes()));
    checkpoint.read(where, name, to.dtype, published_shape(p, part), staging);
    upload(rank, to, part, staging);
  };
  TensorNames used;
  for_each_part(store, [&](const engine::ParameterUnit& unit, const Parameter& p,
                           const CheckpointPart& part) {
    used.insert(part.name);
    used.insert(part.copies.begin(), part.copies.end());
    const Tensor master = part_of(p.master, p, part);
    const std::string master_name = optimizer_tensor_name("fp32_param", part.name);
    const bool has_master = checkpoint.find(TensorPart::kOptimizer, master_name).has_value();
    if (optimizer && has_master) {
      load(TensorPart::kOptimizer, master_name, master, p, part);
    } else {
      const std::optional<TensorView> tensor = checkpoint.find(TensorPart::kModel, part.name);
      if (tensor && tensor->dtype != DType::kF32) {
        const std::vector<std::int64_t> shape = published_shape(p, part);
        staging.resize(tensor->data.size());
        checkpoint.read(TensorPart::kModel, part.name, tensor->dtype, shape, staging);
        const std::vector<float> widened =
            floats_of({.name = part.name, .dtype = tensor->dtype, .shape = shape, .data = staging});
        upload(rank, master, part, std::as_bytes(std::span(widened)));
      } else {
        load(TensorPart::kModel, part.name, master, p, part);
      }
    }
    if (!optimizer || unit.exp_avg.absent() || !p.trainable) return;
    for (const auto& [state, flat] : {std::pair{"exp_avg", unit.exp_avg}, {"exp_avg_sq", unit.exp_avg_sq}}) {
      load(TensorPart::kOptimizer, optimizer_tensor_name(state, part.name), part_of(moment(flat, p), p, part),
           p, part);
    }
  });
  for (const TensorRecord& record : checkpoint.manifest().tensors) {
    if (record.part != TensorPart::kModel || used.contains(record.name) || store.left_out(record.name))
      continue;
    throw invalid("tensor '" + record.name + "' of the checkpoint is not part of this model",
                  "restore the model's settings, or start another run (exp_name)")
        .at(checkpoint.folder().string());
  }
  store.refresh_working_copies(rank.context());
}

}  // namespace primus
