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

// Those of them that this rank stores, and that it writes into a checkpoint: each element is written once.
engine::FlatRange stored_of(const Parameter& p, const CheckpointPart& part) {
  return elements_of(p, part).intersect(engine::stored_range(p));
}
engine::FlatRange written_of(const Parameter& p, const CheckpointPart& part) {
  const engine::FlatRange& slice = p.unit->slice;
  return elements_of(p, part).intersect({slice.begin - p.offset, slice.end - p.offset});
}

// Elements of a part as a run of the published tensor, in the order of memory.
ElementRun run_of(const engine::FlatRange& range, const Parameter& p, const CheckpointPart& part) {
  const std::int64_t first = elements_of(p, part).begin;
  return {range.begin - first, range.end - first};
}

// Elements of a parameter in one of its unit's buffers of the shard.
Tensor elements_in(const Tensor& of_shard, const Parameter& p, const engine::FlatRange& range) {
  const std::int64_t first = p.unit->shard.begin - p.offset;
  return range.empty() ? Tensor() : of_shard.slice(range.begin - first, range.end - first);
}

// `dtype`: of the source; elements of another type are converted.
TensorSource source(std::string name, DType dtype, const Tensor& of_shard, const Parameter& p,
                    const CheckpointPart& part, DeviceReader& reader) {
  const engine::FlatRange range = written_of(p, part);
  const Tensor tensor = elements_in(of_shard, p, range);
  TensorSource s;
  s.name = std::move(name);
  s.dtype = dtype;
  s.shape = published_shape(p, part);
  s.run = range.empty() ? ElementRun{} : run_of(range, p, part);
  s.order = axis_order(part);
  if (dtype == of_shard.dtype) {
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
  return s;
}

// `host`: what this rank stores of a part, in the order of memory and in the type of `of_shard`.
void upload(engine::Rank& rank, const Tensor& of_shard, const Parameter& p, const CheckpointPart& part,
            std::span<const std::byte> host) {
  const Tensor to = elements_in(of_shard, p, stored_of(p, part));
  rank.compute().copy_to_device(to.data, host.data(), to.bytes());
  rank.compute().synchronize();  // the host buffer is used again
}

// The same from elements of any floating type, to where the rank keeps weights: the masters, or without
// training the values.
void upload_weights(engine::Rank& rank, const Parameter& p, const CheckpointPart& part, DType dtype,
                    std::span<const std::byte> host) {
  const engine::ParameterUnit& unit = *p.unit;
  const Tensor& to = unit.trained ? unit.master : unit.stored_values;
  std::vector<float> wide(host.size() / static_cast<std::size_t>(size_of(dtype)));
  to_float(dtype, host, wide);
  if (to.dtype == DType::kF32) {
    upload(rank, to, p, part, std::as_bytes(std::span(wide)));
    return;
  }
  std::vector<std::byte> narrow(wide.size() * static_cast<std::size_t>(size_of(to.dtype)));
  from_float(wide, to.dtype, narrow);
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
  std::vector<std::byte> staging;
  for (const ParameterStore::Group& group : store.groups()) check_group_is_there(tensors, group);
  for_each_part(store, [&](const Parameter& p, const CheckpointPart& part) {
    const TensorView tensor = tensor_of(tensors, p, part);
    require_float(tensor);
    tensors.check_copies(part, used);
    if (rank.measuring()) return;
    const engine::FlatRange range = stored_of(p, part);
    if (range.empty()) return;
    const auto size = static_cast<std::size_t>(size_of(tensor.dtype));
    staging.resize(static_cast<std::size_t>(range.size()) * size);
    copy_run(axis_order(part), size, tensor.data, run_of(range, p, part), staging);
    upload_weights(rank, p, part, tensor.dtype, staging);
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
    sources.push_back(source(part.name, dtype, p.unit->stored_values, p, part, reader));
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
      sources.push_back(
          source(optimizer_tensor_name(state, part.name), of_shard.dtype, of_shard, p, part, reader));
    };
    if (store.layout().compute != DType::kF32 && !p.full_precision) add("fp32_param", unit.master);
    for (std::size_t i = 0; i < unit.states.size(); ++i) add(store.layout().states[i].name, unit.states[i]);
  });
  return sources;
}

void load_checkpoint(const CheckpointReader& checkpoint, ParameterStore& store, engine::Rank& rank,
                     bool optimizer) {
  std::vector<std::byte> staging;
  // What this rank stores of a part, in the type that is asked for.
  const auto read = [&](TensorPart where, const std::string& name, DType dtype, const Parameter& p,
                        const CheckpointPart& part) {
    const engine::FlatRange range = stored_of(p, part);
    staging.resize(static_cast<std::size_t>(range.size() * size_of(dtype)));
    checkpoint.read_run(where, name, dtype, published_shape(p, part), axis_order(part),
                        run_of(range, p, part), staging);
  };
  TensorNames used;
  for_each_part(store, [&](const Parameter& p, const CheckpointPart& part) {
    const engine::ParameterUnit& unit = *p.unit;
    used.insert(part.name);
    used.insert(part.copies.begin(), part.copies.end());
    if (stored_of(p, part).empty()) return;
    const std::string master_name = optimizer_tensor_name("fp32_param", part.name);
    const bool has_master = checkpoint.find(TensorPart::kOptimizer, master_name).has_value();
    if (optimizer && has_master && unit.trained) {
      read(TensorPart::kOptimizer, master_name, DType::kF32, p, part);
      upload(rank, unit.master, p, part, staging);
    } else {
      const std::optional<TensorView> tensor = checkpoint.find(TensorPart::kModel, part.name);
      const DType dtype = tensor ? tensor->dtype : DType::kF32;
      if (tensor) require_float(*tensor);
      read(TensorPart::kModel, part.name, dtype, p, part);
      upload_weights(rank, p, part, dtype, staging);
    }
    if (!optimizer || !unit.trained) return;
    for (std::size_t i = 0; i < unit.states.size(); ++i) {
      read(TensorPart::kOptimizer, optimizer_tensor_name(store.layout().states[i].name, part.name),
           unit.states[i].dtype, p, part);
      upload(rank, unit.states[i], p, part, staging);
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
