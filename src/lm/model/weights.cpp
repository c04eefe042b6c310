#include "lm/model/weights.h"

#include <stdexcept>
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

template <class Visit>
void for_each_part(const ParameterStore& store, Visit&& visit) {
  for (const ParameterStore::Group& group : store.groups()) {
    for (const Parameter* p : group.parameters) {
      for (const CheckpointPart& part : p->parts) visit(*p, part);
    }
  }
}

// The elements of a parameter that a part is.
engine::FlatRange elements_of(const Parameter& p, const CheckpointPart& part) {
  return {part.row * p.row_elements(), (part.row + part.rows) * p.row_elements()};
}

// A part of one of the unit's buffers of the shard, which must hold all of it.
Tensor whole_part(const Tensor& of_shard, const Parameter& p, const CheckpointPart& part) {
  if (engine::stored_range(p).size() != p.shape.elements())
    throw std::logic_error("weights: '" + p.name + "' is sharded");
  return part_of(stored_part(of_shard, p).reshaped(p.shape), p, part);
}

// `dtype`: of the source; elements of another type are converted.
TensorSource source(std::string name, DType dtype, const Tensor& tensor, const Parameter& p,
                    const CheckpointPart& part, DeviceReader& reader) {
  TensorSource s;
  s.name = std::move(name);
  s.dtype = dtype;
  s.shape = published_shape(p, part);
  if (dtype == tensor.dtype) {
    s.fill = [tensor, &reader](std::uint64_t offset, std::span<std::byte> out) {
      reader.read(tensor, offset, out);
    };
  } else {
    s.fill = [tensor, dtype, &reader](std::uint64_t offset, std::span<std::byte> out) {
      const auto size = static_cast<std::uint64_t>(size_of(dtype));
      std::vector<float> values(out.size() / size);
      reader.read(tensor, offset / size * sizeof(float), std::as_writable_bytes(std::span(values)));
      from_float(values, dtype, out);
    };
  }
  s.order = axis_order(part);
  return s;
}

// What of a part this rank stores, into a buffer of the shard. `host` holds the whole part in published order
// and in the type of `of_shard`.
void upload(engine::Rank& rank, const Tensor& of_shard, const Parameter& p, const CheckpointPart& part,
            std::span<const std::byte> host) {
  const engine::FlatRange whole = elements_of(p, part), stored = engine::stored_range(p);
  const engine::FlatRange wanted = whole.intersect(stored);
  if (wanted.empty()) return;
  const auto size = static_cast<std::size_t>(size_of(of_shard.dtype));
  std::vector<std::byte> reordered;
  if (!part.layout.dims.empty()) {
    reordered.resize(host.size());
    to_memory_order(axis_order(part), size, host, reordered);
    host = reordered;
  }
  const Tensor to = stored_part(of_shard, p).slice(wanted.begin - stored.begin, wanted.end - stored.begin);
  host = host.subspan(static_cast<std::size_t>(wanted.begin - whole.begin) * size);
  rank.compute().copy_to_device(to.data, host.data(), to.bytes());
  rank.compute().synchronize();  // the host buffer is used again
}

// Weights as floats to where the rank keeps them: the masters, or without training the values.
void upload_weights(engine::Rank& rank, const Parameter& p, const CheckpointPart& part,
                    std::span<const float> weights) {
  const engine::ParameterUnit& unit = *p.unit;
  const Tensor& to = unit.trained ? unit.master : unit.stored_values;
  if (to.dtype == DType::kF32) {
    upload(rank, to, p, part, std::as_bytes(weights));
    return;
  }
  std::vector<std::byte> narrow(weights.size() * static_cast<std::size_t>(size_of(to.dtype)));
  from_float(weights, to.dtype, narrow);
  upload(rank, to, p, part, narrow);
}

void check_group_is_there(const LanguageTensors& tensors, const ParameterStore::Group& group) {
  if (group.if_missing.empty()) return;
  for (const Parameter* p : group.parameters) {
    for (const CheckpointPart& part : p->parts) {
      if (tensors.find(part.name)) return;
    }
  }
  throw invalid("the weights have nothing of " + group.name, group.if_missing).at(tensors.where());
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
  for (const ParameterStore::Group& group : store.groups()) check_group_is_there(tensors, group);
  for_each_part(store, [&](const Parameter& p, const CheckpointPart& part) { tensor_of(tensors, p, part); });
}

void load_weights(const SafetensorsFolder& folder, ParameterStore& store, engine::Rank& rank) {
  const LanguageTensors tensors(folder);
  TensorNames used;
  for (const ParameterStore::Group& group : store.groups()) check_group_is_there(tensors, group);
  for_each_part(store, [&](const Parameter& p, const CheckpointPart& part) {
    const std::vector<float> staging = floats_of(tensor_of(tensors, p, part));
    tensors.check_copies(part, used);
    if (!rank.measuring()) upload_weights(rank, p, part, staging);
  });
  tensors.refuse_foreign(used, store);
  store.refresh_values(rank.context());
}

void DeviceReader::read(const Tensor& from, std::uint64_t offset, std::span<std::byte> out) {
  const std::scoped_lock lock(mutex_);
  rank_.copies().copy_to_host(out.data(), static_cast<const char*>(from.data) + offset,
                              static_cast<std::int64_t>(out.size()));
  rank_.copies().synchronize();
}

std::vector<TensorSource> model_sources(const ParameterStore& store, DeviceReader& reader) {
  std::vector<TensorSource> sources;
  for_each_part(store, [&](const Parameter& p, const CheckpointPart& part) {
    const DType dtype = p.full_precision ? DType::kF32 : store.layout().compute;
    sources.push_back(source(part.name, dtype, part_of(p.value, p, part), p, part, reader));
    for (const std::string& name : part.copies) {
      TensorSource& copy = sources.emplace_back(sources.back());
      copy.name = name;
    }
  });
  return sources;
}

std::vector<TensorSource> optimizer_sources(const ParameterStore& store, DeviceReader& reader) {
  std::vector<TensorSource> sources;
  for_each_part(store, [&](const Parameter& p, const CheckpointPart& part) {
    const engine::ParameterUnit& unit = *p.unit;
    if (!unit.trained) return;
    const auto add = [&](const std::string& state, const Tensor& of_shard) {
      sources.push_back(source(optimizer_tensor_name(state, part.name), of_shard.dtype,
                               whole_part(of_shard, p, part), p, part, reader));
    };
    if (store.layout().compute != DType::kF32 && !p.full_precision) add("fp32_param", unit.master);
    for (std::size_t i = 0; i < unit.states.size(); ++i) add(store.layout().states[i].name, unit.states[i]);
  });
  return sources;
}

void load_checkpoint(const CheckpointReader& checkpoint, ParameterStore& store, engine::Rank& rank,
                     bool optimizer) {
  std::vector<std::byte> staging;
  const auto load = [&](TensorPart where, const std::string& name, const Tensor& of_shard, const Parameter& p,
                        const CheckpointPart& part) {
    staging.resize(static_cast<std::size_t>(elements_of(p, part).size() * size_of(of_shard.dtype)));
    checkpoint.read(where, name, of_shard.dtype, published_shape(p, part), staging);
    upload(rank, of_shard, p, part, staging);
  };
  TensorNames used;
  for_each_part(store, [&](const Parameter& p, const CheckpointPart& part) {
    const engine::ParameterUnit& unit = *p.unit;
    used.insert(part.name);
    used.insert(part.copies.begin(), part.copies.end());
    const std::string master_name = optimizer_tensor_name("fp32_param", part.name);
    const bool has_master = checkpoint.find(TensorPart::kOptimizer, master_name).has_value();
    if (optimizer && has_master && unit.trained) {
      load(TensorPart::kOptimizer, master_name, unit.master, p, part);
    } else {
      const std::optional<TensorView> tensor = checkpoint.find(TensorPart::kModel, part.name);
      const std::vector<std::int64_t> shape = published_shape(p, part);
      const DType dtype = tensor ? tensor->dtype : DType::kF32;
      staging.resize(static_cast<std::size_t>(elements_of(p, part).size() * size_of(dtype)));
      checkpoint.read(TensorPart::kModel, part.name, dtype, shape, staging);
      upload_weights(rank, p, part,
                     floats_of({.name = part.name, .dtype = dtype, .shape = shape, .data = staging}));
    }
    if (!optimizer || !unit.trained) return;
    for (std::size_t i = 0; i < unit.states.size(); ++i) {
      load(TensorPart::kOptimizer, optimizer_tensor_name(store.layout().states[i].name, part.name),
           unit.states[i], p, part);
    }
  });
  for (const TensorRecord& record : checkpoint.manifest().tensors) {
    if (record.part != TensorPart::kModel || used.contains(record.name) || store.left_out(record.name))
      continue;
    throw invalid("tensor '" + record.name + "' of the checkpoint is not part of this model",
                  "restore the model's settings, or start another run (exp_name)")
        .at(checkpoint.folder().string());
  }
  store.refresh_values(rank.context());
}

}  // namespace primus
