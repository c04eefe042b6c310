#include "lm/model/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "base/error.h"
#include "lm/checkpoint/elements.h"
#include "lm/checkpoint/reading_threads.h"
#include "lm/model/four_bit_weights.h"
#include "lm/model/language_model.h"
#include "lm/model/language_tensors.h"
#include "lm/model/moment_codes.h"
#include "lm/model/published_layout.h"
#include "lm/model/saved_model.h"
#include "turbo/block_moments.h"
#include "turbo/master_weights.h"

namespace primus {
namespace {

using engine::CheckpointPart;
using engine::Parameter;
using engine::ParameterStore;

template <class Visit>
void for_each_part(const ParameterStore& store, Visit&& visit) {
  for (const ParameterStore::Group& group : store.groups()) {
    for (Parameter* p : group.parameters) {
      for (const CheckpointPart& part : p->parts) visit(*p, part);
    }
  }
}

// Returns the elements of this rank's parameter that belong to a part.
engine::FlatRange elements_of(const Parameter& p, const CheckpointPart& part) {
  return engine::elements_in_rows(p, part.row, part.rows);
}

// These functions return the subset of elements_of() that this rank stores, and the subset that it writes
// into a checkpoint. Each element is written by exactly one rank.
engine::FlatRange stored_of(const Parameter& p, const CheckpointPart& part) {
  return p.unit ? elements_of(p, part).intersect(engine::stored_range(p)) : engine::FlatRange();
}
engine::FlatRange written_of(const Parameter& p, const CheckpointPart& part) {
  if (!p.unit) return {};
  const engine::FlatRange& slice = p.unit->slice;
  return elements_of(p, part).intersect({slice.begin - p.offset, slice.end - p.offset});
}

// In the published tensor, the elements of `range` form ranges of consecutive elements. Returns these ranges
// in memory order.
HeldRuns runs_of(const engine::FlatRange& range, const Parameter& p, const CheckpointPart& part) {
  const Shape& whole = p.whole_shape();
  const std::int64_t first = part.row * (whole.rank() > 1 ? whole[whole.rank() - 1] : 1);
  HeldRuns runs = engine::whole_elements(p, range);
  for (StridedRun& run : runs) run.begin -= first;
  return runs;
}

// The buffers of a unit (ParameterUnit), with values of the unit's range `elements`. With remainders, the
// full values are fp32, and `values` holds the bf16 numbers that operators read. With scales, `values` holds
// codes, and `scales` holds one scale per block, from element `scaled_from` of the unit on.
struct UnitBuffer {
  Tensor values;
  engine::FlatRange elements;
  Tensor remainders = {};
  Tensor scales = {};
  std::int64_t scaled_from = 0;

  DType dtype() const { return remainders.absent() ? values.dtype : DType::kF32; }
  bool plain() const { return remainders.absent() && scales.absent(); }
};
UnitBuffer of_shard(const Parameter& p, const Tensor& values) { return {values, p.unit->shard}; }
UnitBuffer of_state(const engine::UnitState& state) {
  return {.values = state.values,
          .elements = state.elements,
          .scales = state.scales,
          .scaled_from = state.elements.begin};
}
UnitBuffer masters_of(const Parameter& p) {
  const engine::ParameterUnit& unit = *p.unit;
  return {unit.split() ? unit.stored.values : unit.stored.master, unit.shard, unit.stored.remainder};
}

// Returns the elements of `buffer` that belong to `range` of the parameter.
UnitBuffer elements_in(const UnitBuffer& buffer, const Parameter& p, const engine::FlatRange& range) {
  if (range.empty()) return {};
  const std::int64_t first = buffer.elements.begin - p.offset;
  const auto part = [&](const Tensor& tensor) {
    return tensor.absent() ? Tensor() : tensor.slice(range.begin - first, range.end - first);
  };
  return {part(buffer.values),
          {range.begin + p.offset, range.end + p.offset},
          part(buffer.remainders),
          buffer.scales,
          buffer.scaled_from};
}

// Reads `out.size()` elements of split masters, beginning at index `first`.
void read_split(const UnitBuffer& buffer, std::uint64_t first, DeviceReader& reader, std::span<float> out) {
  std::vector<BFloat16> values(out.size());
  std::vector<std::int16_t> remainders(out.size());
  reader.read(buffer.values, first * sizeof(BFloat16), std::as_writable_bytes(std::span(values)));
  reader.read(buffer.remainders, first * sizeof(std::int16_t), std::as_writable_bytes(std::span(remainders)));
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = turbo::joined_master(values[i], remainders[i]);
}

// Reads `out.size()` elements of scaled codes, beginning at index `first`.
void read_codes(const UnitBuffer& buffer, std::uint64_t first, DeviceReader& reader, std::span<float> out) {
  if (out.empty()) return;
  const std::int64_t block = turbo::kMomentBlock;
  const std::int64_t begin = buffer.elements.begin - buffer.scaled_from + static_cast<std::int64_t>(first);
  const std::int64_t end = begin + static_cast<std::int64_t>(out.size());
  std::vector<std::uint8_t> codes(out.size());
  std::vector<BFloat16> scales(static_cast<std::size_t>((end - 1) / block - begin / block + 1));
  reader.read(buffer.values, first, std::as_writable_bytes(std::span(codes)));
  reader.read(buffer.scales, static_cast<std::uint64_t>(begin / block) * sizeof(BFloat16),
              std::as_writable_bytes(std::span(scales)));
  decode_moments(buffer.values.dtype, codes, scales, begin, out);
}

// Returns a source that reads a part of a parameter. `dtype`: element type of the source; elements of another
// type are converted.
TensorSource source(std::string name, DType dtype, const UnitBuffer& buffer, const Parameter& p,
                    const CheckpointPart& part, DeviceReader& reader) {
  const engine::FlatRange range = written_of(p, part);
  const UnitBuffer held = elements_in(buffer, p, range);
  TensorSource s;
  s.name = std::move(name);
  s.dtype = dtype;
  s.shape = published_shape(p, part);
  s.runs = runs_of(range, p, part);
  s.order = axis_order(part);
  if (range.empty()) {
    s.fill = [](std::uint64_t, std::span<std::byte>) {};
  } else if (dtype == held.values.dtype && held.plain()) {
    s.fill = [tensor = held.values, &reader](std::uint64_t offset, std::span<std::byte> out) {
      reader.read(tensor, offset, out);
    };
  } else {
    s.fill = [held, dtype, &reader](std::uint64_t offset, std::span<std::byte> out) {
      const auto size = static_cast<std::uint64_t>(size_of(dtype));
      std::vector<float> values(out.size() / size);
      if (held.plain()) {
        reader.read(held.values, offset / size * sizeof(float), std::as_writable_bytes(std::span(values)));
      } else if (held.scales.absent()) {
        read_split(held, offset / size, reader, values);
      } else {
        read_codes(held, offset / size, reader, values);
      }
      from_float(values, dtype, out);
    };
  }
  return s;
}

void upload(engine::Rank& rank, const Tensor& to, const void* host) {
  rank.compute().copy_to_device(to.data, host, to.bytes());
  rank.compute().synchronize();  // waits, because the host buffer is reused
}

// Uploads codes of complete blocks, beginning at element `first` of the state.
void upload_codes(engine::Rank& rank, const engine::UnitState& state, std::int64_t first,
                  std::span<const float> values) {
  const MomentCodes encoded = encode_moments(state.spec.dtype, values);
  const auto count = static_cast<std::int64_t>(values.size()), first_block = first / turbo::kMomentBlock;
  upload(rank, state.values.slice(first, first + count), encoded.codes.data());
  upload(rank, state.scales.slice(first_block, first_block + count / turbo::kMomentBlock),
         encoded.scales.data());
}

// Uploads parts of parameters, in the types in which the model stores them. Keeps its buffers, because the
// system clears new memory, which takes longer than the conversion.
class Uploader {
 public:
  // The threads of `pool` convert elements; null: only the caller's.
  Uploader(engine::Rank& rank, ThreadPool* pool) : rank_(rank), pool_(pool) {}

  // Uploads a part of a parameter. `host`: the elements of the part that this rank stores, in memory order
  // and in any floating-point type.
  void upload(const UnitBuffer& buffer, const Parameter& p, const CheckpointPart& part, DType dtype,
              std::span<const std::byte> host) {
    constexpr std::int64_t kPiece = 4 << 20;  // elements
    const UnitBuffer to = elements_in(buffer, p, stored_of(p, part));
    if (to.dtype() == dtype && to.remainders.absent()) return primus::upload(rank_, to.values, host.data());
    const auto size = static_cast<std::size_t>(size_of(dtype));
    const auto all = static_cast<std::int64_t>(host.size() / size);
    for (std::int64_t at = 0; at < all; at += kPiece) {
      const std::int64_t end = std::min(at + kPiece, all);
      convert(dtype,
              host.subspan(static_cast<std::size_t>(at) * size, static_cast<std::size_t>(end - at) * size),
              to);
      primus::upload(rank_, to.values.slice(at, end), values_.data());
      if (!to.remainders.absent()) primus::upload(rank_, to.remainders.slice(at, end), remainders_.data());
    }
  }

 private:
  void convert(DType dtype, std::span<const std::byte> host, const UnitBuffer& to) {
    const auto from_size = static_cast<std::size_t>(size_of(dtype));
    const auto to_size = static_cast<std::size_t>(size_of(to.values.dtype));
    const std::size_t all = host.size() / from_size;
    if (wide_.size() < all) wide_.resize(all);
    if (values_.size() < all * to_size) values_.resize(all * to_size);
    if (!to.remainders.absent() && remainders_.size() < all) remainders_.resize(all);
    const auto work = [&](std::int64_t begin, std::int64_t end, int) {
      const auto first = static_cast<std::size_t>(begin), count = static_cast<std::size_t>(end - begin);
      const std::span<float> wide = std::span(wide_).subspan(first, count);
      const std::span<std::byte> values = std::span(values_).subspan(first * to_size, count * to_size);
      to_float(dtype, host.subspan(first * from_size, count * from_size), wide);
      if (to.remainders.absent()) return from_float(wide, to.values.dtype, values);
      auto* const rounded = reinterpret_cast<BFloat16*>(values.data());
      std::transform(wide.begin(), wide.end(), rounded, turbo::working_value);
      std::transform(wide.begin(), wide.end(), remainders_.begin() + begin, turbo::param_remainder);
    };
    constexpr std::int64_t kGrain = 128 << 10;
    if (pool_) return pool_->parallel_for(static_cast<std::int64_t>(all), kGrain, work);
    work(0, static_cast<std::int64_t>(all), 0);
  }

  engine::Rank& rank_;
  ThreadPool* const pool_;
  std::vector<float> wide_;
  std::vector<std::byte> values_;
  std::vector<std::int16_t> remainders_;
};

// Checks that the tensor's element type can be read into the parameter.
void require_elements(const Parameter& p, const TensorView& tensor) {
  const bool whole = tensor.dtype == DType::kI64 || tensor.dtype == DType::kI32;
  if (!p.whole_numbers || !whole) require_float(tensor);
}
void check_elements(const Parameter& p, const std::string& name, DType dtype,
                    std::span<const std::byte> host) {
  if (!p.whole_numbers) return;
  std::vector<float> values(host.size() / static_cast<std::size_t>(size_of(dtype)));
  to_float(dtype, host, values);
  const float bound = p.initializer.value;
  for (const float value : values) {
    if (value >= 0 && value < bound && value == std::floor(value)) continue;
    throw invalid(
        fmt::format("tensor '{}' holds {}, which is not an integer from 0 to {}", name, value, bound - 1),
        "the file is damaged or belongs to another model: copy or download it again");
  }
}

// Uploads into the weights that this rank stores: the masters or, if the model is not trained, the values.
void upload_weights(Uploader& to, const Parameter& p, const CheckpointPart& part, DType dtype,
                    std::span<const std::byte> host) {
  to.upload(p.unit->trained ? masters_of(p) : of_shard(p, p.unit->stored.values), p, part, dtype, host);
}

// Matches the names of adapter tensors: .lora_A.weight, .lora_B.weight, .lora_B.bias, .lora_magnitude_vector,
// .lora_embedding_A and .lora_embedding_B.
bool names_magnitudes(std::string_view name) { return name.ends_with(".lora_magnitude_vector"); }

// Returns the name of the matrix to which a tensor of magnitudes belongs.
std::string matrix_of_magnitudes(std::string_view name) {
  return std::string(name.substr(0, name.rfind('.'))).append(".weight");
}

// Sets magnitudes to the norms of the rows of their matrix, so that an adapter whose B is zero has no effect.
void upload_norms(Uploader& to, const Parameter& p, const CheckpointPart& part, const TensorView& matrix) {
  require_float(matrix);
  const std::int64_t cols = matrix.shape[1];
  std::vector<float> row(static_cast<std::size_t>(cols)), norms;
  std::vector<std::byte> bytes(row.size() * static_cast<std::size_t>(size_of(matrix.dtype)));
  for (const StridedRun& run : runs_of(stored_of(p, part), p, part)) {
    for (std::int64_t n = 0; n < run.size(); ++n) {
      copy_elements(matrix, (run.begin + n / run.length * run.stride + n % run.length) * cols, bytes);
      to_float(matrix.dtype, bytes, row);
      double squares = 0;
      for (const float v : row) squares += static_cast<double>(v) * static_cast<double>(v);
      norms.push_back(static_cast<float>(std::sqrt(squares)));
    }
  }
  upload_weights(to, p, part, DType::kF32, std::as_bytes(std::span(norms)));
}

// Reads all elements of a tensor.
void read_floats(const TensorView& tensor, std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * static_cast<std::size_t>(size_of(tensor.dtype)));
  copy_elements(tensor, 0, bytes);
  to_float(tensor.dtype, bytes, values);
}

// Returns whether a parameter that loaded weights may lack (Initializer::if_missing) keeps its initial value.
bool keeps_initial_value(const Parameter& p, Adapters adapters, bool saved) {
  return p.initializer.if_missing && !saved && adapters == Adapters::kMayBeMissing;
}

bool has_adapters(const SafetensorsFolder& folder) {
  for (std::size_t i = 0; i < folder.size(); ++i) {
    if (names_adapter(folder[i].name)) return true;
  }
  return false;
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

// Returns the tensor that a part is read from.
TensorView tensor_of(const LanguageTensors& tensors, const Parameter& p, const CheckpointPart& part) {
  if (tensors.find(part.name + "_blocks") && tensors.find(part.name + "_scales")) {
    throw unsupported("tensor '" + part.name + "' is quantised (mxfp4)",
                      "'primus model import' writes the model in bf16")
        .at(tensors.where());
  }
  for (const char* type : {"nf4", "fp4"}) {
    if (!tensors.find(fmt::format("{}.quant_state.bitsandbytes__{}", part.name, type))) continue;
    throw unsupported(fmt::format("tensor '{}' is quantised ({} of bitsandbytes)", part.name, type),
                      fmt::format("lora.base_weights={} trains adapters next to such weights; 'primus model "
                                  "import' writes the model without quantisation",
                                  type))
        .at(tensors.where());
  }
  return tensors.at(part.name, published_shape(p, part));
}

// Returns the tensor in 4 bits that a part of a parameter in 4 bits is read from; nullopt if the tensor is
// not quantised.
std::optional<StoredFourBit> four_bit_of(const LanguageTensors& tensors, const Parameter& p,
                                         const CheckpointPart& part, TensorNames& used) {
  if (!p.four_bit) return std::nullopt;
  const SafetensorsFolder& folder = tensors.folder();
  return find_stored_four_bit([&](const std::string& name) { return folder.find(name); },
                              tensors.full_name(part.name), published_shape(p, part), used, tensors.where());
}

}  // namespace

void check_weight_shapes(const SafetensorsFolder& folder, const ModelConfig& config,
                         const FamilyRegistry& families, Adapters adapters) {
  ParameterStore store;  // only declared, never allocated
  const LanguageModel model(config, families, store);
  const LanguageTensors tensors(folder);
  for (const ParameterStore::Group& group : store.groups()) check_group_is_there(tensors, group);
  const bool without = adapters == Adapters::kMayBeMissing && !has_adapters(folder);
  const bool saved = Env::posix().status(folder.folder() / Manifest::kFileName).has_value();
  for_each_part(store, [&](const Parameter& p, const CheckpointPart& part) {
    if (keeps_initial_value(p, adapters, tensors.find(part.name).has_value())) return;
    TensorNames used;
    if (without && p.is_low_rank) return;
    // load_checkpoint() expands tensors in 4 bits.
    if (const auto found = tensors.find(part.name); saved && found && found->dtype == DType::kU8) return;
    if (const auto stored = four_bit_of(tensors, p, part, used)) {
      stored->require(p.four_bit.format);
    } else {
      tensor_of(tensors, p, part);
    }
  });
}

void load_weights(const SafetensorsFolder& folder, ParameterStore& store, engine::Rank& rank,
                  Adapters adapters) {
  const LanguageTensors tensors(folder);
  TensorNames used;
  std::vector<std::byte> staging, by_rows;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < folder.size(); ++i) bytes += folder[i].data.size();
  const std::unique_ptr<ThreadPool> threads = reading_threads(bytes);
  Uploader uploader(rank, threads.get());
  const bool without = adapters == Adapters::kMayBeMissing && !has_adapters(folder);
  for (const ParameterStore::Group& group : store.groups()) check_group_is_there(tensors, group);
  for_each_part(store, [&](Parameter& p, const CheckpointPart& part) {
    if (without && p.is_low_rank) {
      const auto matrix = tensors.find(matrix_of_magnitudes(part.name));
      if (names_magnitudes(part.name) && matrix && !rank.measuring() && !stored_of(p, part).empty())
        upload_norms(uploader, p, part, *matrix);
      return;
    }
    if (keeps_initial_value(p, adapters, tensors.find(part.name).has_value())) return;
    const std::optional<StoredFourBit> stored = four_bit_of(tensors, p, part, used);
    const TensorView tensor = stored ? stored->packed : tensor_of(tensors, p, part);
    if (!stored) require_elements(p, tensor);
    tensors.check_copies(part, used);
    if (rank.measuring()) return;
    if (p.four_bit) {
      return load_four_bit(
          p, part, stored, [&](std::vector<float>& values) { read_floats(tensor, values); }, rank);
    }
    const engine::FlatRange range = stored_of(p, part);
    if (range.empty()) return;
    const auto size = static_cast<std::size_t>(size_of(tensor.dtype));
    staging.resize(static_cast<std::size_t>(range.size()) * size);
    std::span<const std::byte> data = tensor.data;
    if (tensor.column_stride > 0) {
      const std::int64_t published_elements = tensor.shape[0] * tensor.shape[1];
      by_rows.resize(static_cast<std::size_t>(published_elements) * size);
      copy_elements(tensor, 0, by_rows);
      data = by_rows;
    }
    copy_runs(axis_order(part), size, data, runs_of(range, p, part), staging, threads.get());
    check_elements(p, part.name, tensor.dtype, staging);
    upload_weights(uploader, p, part, tensor.dtype, staging);
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
    if (p.four_bit) return add_four_bit_sources(p, part, store.layout().compute, reader, sources);
    const DType dtype = p.whole_numbers    ? DType::kI64
                        : p.full_precision ? DType::kF32
                                           : store.layout().compute;
    const UnitBuffer values = p.unit ? of_shard(p, p.unit->stored.values) : UnitBuffer{};
    sources.push_back(source(part.name, dtype, values, p, part, reader));
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
    if (!p.trainable || !store.layout().train) return;
    const auto add = [&](const std::string& state, DType dtype, const UnitBuffer& buffer) {
      sources.push_back(source(optimizer_tensor_name(state, part.name), dtype, buffer, p, part, reader));
    };
    if (store.layout().compute != DType::kF32 && !p.full_precision)
      add("fp32_param", DType::kF32, p.unit ? masters_of(p) : UnitBuffer{});
    const auto& states = store.layout().states;
    if (states.empty()) return;
    for (const engine::StateSpec& spec : states[static_cast<std::size_t>(p.rule)]) {
      UnitBuffer buffer;
      if (p.unit) {
        const auto state = std::ranges::find_if(
            p.unit->states, [&](const engine::UnitState& s) { return s.rule == p.rule && s.spec == spec; });
        buffer = of_state(*state);
      }
      add(spec.name, spec.saved_dtype(), buffer);
    }
  });
  return sources;
}

namespace {

// Loads states with one scale per block. `read_state` reads this rank's elements of a part into `staging`.
template <class ReadState>
void load_scaled_states(const ParameterStore& store, engine::Rank& rank,
                        const std::vector<std::byte>& staging, const ReadState& read_state) {
  // A block may contain elements of several parts. The scale of a block covers all these elements.
  std::vector<float> wide;
  for (const Parameter& p : store.parameters()) {
    if (!p.unit || !p.unit->trained) continue;
    const engine::FlatRange stored = engine::stored_range(p);
    if (stored.empty()) continue;
    for (const engine::UnitState& state : p.unit->states) {
      if (state.rule != p.rule || !state.spec.has_scales()) continue;
      const std::int64_t block = turbo::kMomentBlock;
      wide.assign(static_cast<std::size_t>((stored.size() + block - 1) / block * block), 0);
      for (const CheckpointPart& part : p.parts) {
        const engine::FlatRange range = stored_of(p, part);
        if (range.empty()) continue;
        const DType dtype = read_state(state, p, part);
        to_float(dtype, staging,
                 std::span(wide).subspan(static_cast<std::size_t>(range.begin - stored.begin),
                                         static_cast<std::size_t>(range.size())));
      }
      const std::int64_t first = p.offset + stored.begin - state.elements.begin;
      upload_codes(rank, state, first, wide);
    }
  }
}

void refuse_other_tensors(const CheckpointReader& checkpoint, const ParameterStore& store,
                          const TensorNames& used) {
  for (const TensorRecord& record : checkpoint.manifest().tensors) {
    if (record.part != TensorPart::kModel || used.contains(record.name) || store.left_out(record.name))
      continue;
    throw invalid("tensor '" + record.name + "' of the checkpoint is not part of this model",
                  "restore the model's settings, or start another run (exp_name)")
        .at(checkpoint.folder().string());
  }
}

// Loads the trained model, or the second model with this name, and returns the names of its tensors.
TensorNames load_saved(const CheckpointReader& checkpoint, ParameterStore& store, engine::Rank& rank,
                       bool optimizer, Adapters adapters, std::string_view second = {}) {
  const SavedModel saved_model(checkpoint, second);
  Uploader uploader(rank, saved_model.threads());
  const bool without = adapters == Adapters::kMayBeMissing && !saved_model.has_adapters();
  std::vector<std::byte> staging;
  // Reads the elements of a part that this rank stores, in the requested type.
  const auto read = [&](TensorPart where, const std::string& name, DType dtype, const Parameter& p,
                        const CheckpointPart& part) {
    const engine::FlatRange range = stored_of(p, part);
    staging.resize(static_cast<std::size_t>(range.size() * size_of(dtype)));
    saved_model.read_runs(where, name, dtype, p, part, runs_of(range, p, part), staging);
  };
  // Like `read`, but reads a state, in its saved type.
  const auto read_state = [&](const engine::UnitState& state, const Parameter& p,
                              const CheckpointPart& part) {
    const std::string name = optimizer_tensor_name(state.spec.name, part.name);
    const std::optional<TensorView> saved = saved_model.find(TensorPart::kOptimizer, name);
    if (saved) require_float(*saved);
    const DType dtype = saved ? saved->dtype : state.spec.saved_dtype();
    read(TensorPart::kOptimizer, name, dtype, p, part);
    return dtype;
  };
  TensorNames used = shared_names(store);
  for_each_part(store, [&](Parameter& p, const CheckpointPart& part) {
    used.insert(part.name);
    used.insert(part.copies.begin(), part.copies.end());
    const std::optional<StoredFourBit> stored = saved_model.find_four_bit(p, part, used);
    if (p.four_bit) {
      return load_four_bit(
          p, part, stored,
          [&](std::vector<float>& values) {
            const TensorView tensor = saved_model.at(part.name, published_shape(p, part));
            require_elements(p, tensor);
            read_floats(tensor, values);
          },
          rank);
    }
    if (stored_of(p, part).empty()) return;
    if (stored) {
      // The run that saved the checkpoint held these weights in 4 bits.
      const std::vector<float> whole = expanded(*stored);
      const engine::FlatRange range = stored_of(p, part);
      staging.resize(static_cast<std::size_t>(range.size()) * sizeof(float));
      copy_runs(axis_order(part), sizeof(float), std::as_bytes(std::span(whole)), runs_of(range, p, part),
                staging);
      return upload_weights(uploader, p, part, DType::kF32, staging);
    }
    if (keeps_initial_value(p, adapters, saved_model.find(TensorPart::kModel, part.name).has_value())) return;
    if (without && p.is_low_rank) {
      const auto matrix = saved_model.find(TensorPart::kModel, matrix_of_magnitudes(part.name));
      if (names_magnitudes(part.name) && matrix) upload_norms(uploader, p, part, *matrix);
      return;
    }
    const engine::ParameterUnit& unit = *p.unit;
    const std::string master_name = optimizer_tensor_name("fp32_param", part.name);
    const bool has_master = saved_model.find(TensorPart::kOptimizer, master_name).has_value();
    if (optimizer && has_master && unit.trained) {
      read(TensorPart::kOptimizer, master_name, DType::kF32, p, part);
      uploader.upload(masters_of(p), p, part, DType::kF32, staging);
    } else {
      const std::optional<TensorView> tensor = saved_model.find(TensorPart::kModel, part.name);
      const DType dtype = tensor ? tensor->dtype : DType::kF32;
      if (tensor) require_elements(p, *tensor);
      read(TensorPart::kModel, part.name, dtype, p, part);
      check_elements(p, part.name, dtype, staging);
      upload_weights(uploader, p, part, dtype, staging);
    }
    if (!optimizer || !unit.trained) return;
    for (const engine::UnitState& state : unit.states) {
      if (state.rule != p.rule || state.spec.has_scales()) continue;
      const DType dtype = read_state(state, p, part);
      uploader.upload(of_state(state), p, part, dtype, staging);
    }
  });
  if (optimizer) load_scaled_states(store, rank, staging, read_state);
  return used;
}

}  // namespace

void load_checkpoint(const CheckpointReader& checkpoint, ParameterStore& store, engine::Rank& rank,
                     bool optimizer, Adapters adapters) {
  refuse_other_tensors(checkpoint, store, load_saved(checkpoint, store, rank, optimizer, adapters));
  store.refresh_values(rank.context());
}

void load_second_model(const CheckpointReader& checkpoint, ParameterStore& store, engine::Rank& rank,
                       std::string_view name) {
  load_saved(checkpoint, store, rank, true, Adapters::kRequired, name);
  store.refresh_values(rank.context());
}

}  // namespace primus
