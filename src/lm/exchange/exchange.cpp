#include "lm/exchange/exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/files/partial_folder.h"
#include "base/text/json_reader.h"
#include "base/text/utf8.h"
#include "engine/runtime/parameters.h"
#include "lm/checkpoint/checkpoint.h"
#include "lm/checkpoint/elements.h"
#include "lm/checkpoint/safetensors.h"
#include "lm/exchange/low_rank_product.h"
#include "lm/exchange/published_tensor.h"
#include "lm/generate/generation_config.h"
#include "lm/model/language_model.h"
#include "lm/model/language_tensors.h"
#include "lm/model/peft_config.h"
#include "lm/model/published_layout.h"
#include "lm/tokenizer/tokenizer.h"

namespace primus {
namespace {

using engine::CheckpointPart;
using engine::Parameter;

// Files that are copied together with the weights. All other files in such folders are for other programs.
constexpr std::array<std::string_view, 11> kCompanions = {"generation_config.json",
                                                          "tokenizer.json",
                                                          "tokenizer_config.json",
                                                          "special_tokens_map.json",
                                                          "added_tokens.json",
                                                          "vocab.json",
                                                          "merges.txt",
                                                          "tokenizer.model",
                                                          "chat_template.jinja",
                                                          "chat_template.json",
                                                          "tiktoken.model"};
// A folder of further companions: the named chat templates of a published model.
constexpr std::string_view kTemplates = "additional_chat_templates";
constexpr std::uint64_t kCompanionLimit = 256U << 20;

constexpr const char* kReplace = "get it again from the model's source, or remove it";

// Parses a tokenizer file that is not JSON, as training does. Throws if the file is broken. A file of a kind
// that Primus does not support is copied without a check. In this case, the returned note gives the reason;
// otherwise the note is empty.
std::string note_on_tokenizer(const Path& path) {
  try {
    load_tokenizer({}, path.string());
  } catch (Error& error) {
    if (error.kind() != ErrorKind::kUnsupported) throw error.add_hint(kReplace);
    return fmt::format("{} was copied unchecked: {}", path.filename().string(), error.what());
  }
  return {};
}

// Checks that a file is JSON or text, as its name says: the file may be a link to any other file.
void check_companion(const Path& path, std::string_view content) {
  const std::string file = path.string(), name = path.filename().string();
  if (name.ends_with(".json")) {
    try {
      JsonReader reader(content, file, {.python = true});
      reader.require(JsonReader::Kind::kObject, "the file");
      reader.skip();
      reader.finish();
    } catch (Error& error) {
      throw error.add_hint(kReplace);
    }
  } else if (!name.ends_with(".model") && !unicode::is_valid(content)) {
    throw invalid("the file is not UTF-8", kReplace).at(path.string());
  }
}

bool is_file(const Path& path) {
  const auto status = Env::posix().status(path);
  return status && status->type == FileStatus::Type::kFile;
}

// Returns whether the folder has layers of multi-token prediction. Such layers follow the model's own layers.
bool has_mtp_layers(const LanguageTensors& tensors, const ModelConfig& config) {
  const std::string prefix = tensors.full_name(fmt::format("model.layers.{}.", config.layers));
  const SafetensorsFolder& folder = tensors.folder();
  for (std::size_t i = 0; i < folder.size(); ++i) {
    if (folder[i].name.starts_with(prefix)) return true;
  }
  return false;
}

// Throws if the target must not be replaced: a run, a checkpoint, a folder with other contents, or the source
// itself.
void refuse_no_model(const Path& to, const Path& target, const Path& from, Env& env) {
  const auto status = env.status(target);
  bool model = status && status->type == FileStatus::Type::kFolder && is_file(target / "config.json") &&
               !is_file(target / Manifest::kFileName);
  for (const std::string& name : model ? env.list(target) : std::vector<std::string>()) {
    const auto entry = env.status(target / name);
    const auto type = name == kTemplates ? FileStatus::Type::kFolder : FileStatus::Type::kFile;
    model = model && entry && entry->type == type;
  }
  if (!model) {
    throw invalid(
        fmt::format("'{}' is not a model folder, and --overwrite replaces only model folders", to.string()),
        "name a folder that does not exist, or move this one away");
  }
  std::error_code unresolved;
  if (std::filesystem::weakly_canonical(from, unresolved) == target) {
    throw invalid(fmt::format("'{}' is the input model", to.string()), "name another folder");
  }
}

// Throws if the target looks like a file name, because the user may expect another format.
void refuse_file_name(const Path& to) {
  std::string ending = (to.has_filename() ? to : to.parent_path()).extension().string();
  std::ranges::transform(ending, ending.begin(), [](unsigned char c) { return std::tolower(c); });
  if (ending == ".gguf") {
    throw unsupported(fmt::format("'{}': writing GGUF is not supported", to.string()),
                      "export a folder, and convert it with llama.cpp's convert_hf_to_gguf.py");
  }
  constexpr std::array<std::string_view, 7> kFiles = {".safetensors", ".bin",  ".pt",     ".pth",
                                                      ".ckpt",        ".onnx", ".msgpack"};
  if (std::ranges::find(kFiles, ending) == kFiles.end()) return;
  throw invalid(fmt::format("'{}' is a file name, but a model is written as a folder", to.string()),
                "name a folder: its model.safetensors has the weights");
}

// Returns the final path of the folder `to`, with links resolved, as rename() needs it. Throws for an
// unsuitable target, before anything is written.
Path target_of(const Path& to, const Path& from, Existing existing, Env& env) {
  if (to.empty()) throw invalid("the target has no name", "name a folder that does not exist");
  refuse_file_name(to);
  std::error_code unresolved;
  Path target = std::filesystem::weakly_canonical(to, unresolved);
  if (unresolved) target = to.lexically_normal();
  if (!target.has_filename()) target = target.parent_path();  // the path ends with '/', as in "new/"
  if (const auto status = env.status(target)) {
    if (status->type != FileStatus::Type::kFolder || !env.list(target).empty()) {
      refuse_existing(to, existing, env);
      refuse_no_model(to, target, from, env);
    }
    if (target == std::filesystem::current_path(unresolved)) {
      throw invalid(fmt::format("'{}' is the current folder, which a new one cannot replace", to.string()),
                    "name a folder that does not exist, inside or outside");
    }
    return target;
  }
  const Path parent = target.has_parent_path() ? target.parent_path() : Path(".");
  const auto folder = env.status(parent);
  if (folder && folder->type == FileStatus::Type::kFolder &&
      std::ranges::count(env.list(parent), target.filename().string()) > 0) {
    throw invalid(fmt::format("'{}' is a link to a missing folder", to.string()),
                  "name a folder that does not exist, or remove the link");
  }
  return target;
}

// Returns the smallest magnitude that rounds to infinity.
float overflow_of(DType dtype) {
  return dtype == DType::kF16    ? 65520.0F
         : dtype == DType::kBF16 ? 0x1.ffp127F
                                 : std::numeric_limits<float>::infinity();
}

// Throws if a finite number would become infinite; numbers that are already infinite are allowed.
void refuse_overflow(const std::string& name, DType dtype, std::span<const float> values) {
  const float overflow = overflow_of(dtype);
  for (const float value : values) {
    if (std::abs(value) < overflow || !std::isfinite(value)) continue;
    throw invalid(
        fmt::format("tensor '{}' holds {:g}, which is out of range for {}", name, value, name_of(dtype)),
        dtype == DType::kF16 ? "--dtype bf16 has the range of fp32" : "keep it in fp32");
  }
}

// Returns whether all exponent bits of an element are set, so that it is infinite or NaN.
template <class Bits>
bool any_not_finite(std::span<const std::byte> data, Bits exponent) {
  bool found = false;
  for (std::size_t at = 0; at + sizeof(Bits) <= data.size(); at += sizeof(Bits)) {
    Bits bits;
    std::memcpy(&bits, data.data() + at, sizeof(bits));
    found = found || (bits & exponent) == exponent;
  }
  return found;
}

bool any_not_finite(DType dtype, std::span<const std::byte> data) {
  switch (dtype) {
    case DType::kF32:
      return any_not_finite<std::uint32_t>(data, 0x7F800000U);
    case DType::kBF16:
      return any_not_finite<std::uint16_t>(data, 0x7F80U);
    case DType::kF16:
      return any_not_finite<std::uint16_t>(data, 0x7C00U);
    default:
      return false;  // integers have no infinities
  }
}

// Returns the fp32 master weights of a tensor; empty if the checkpoint has none.
std::optional<PublishedTensor> master_of(const std::optional<CheckpointReader>& checkpoint,
                                         const std::string& name) {
  if (!checkpoint) return std::nullopt;
  const auto master = checkpoint->find(TensorPart::kOptimizer, optimizer_tensor_name("fp32_param", name));
  if (!master || master->dtype != DType::kF32) return std::nullopt;
  return PublishedTensor{.dtype = DType::kF32,
                         .plain = master->data,
                         .read = [master](std::int64_t first, std::span<float> out) {
                           std::memcpy(out.data(), master->data.data() + first * sizeof(float),
                                       out.size_bytes());
                         }};
}

// Returns the folder of a companion. All files of a tokenizer come from the folder with tokenizer.json.
const Path& folder_of(std::string_view companion, const ModelFolder& from) {
  return folder_with(from, companion == "generation_config.json" ? companion.data() : "tokenizer.json");
}

// Throws if a companion is broken. Notes the companions that cannot be checked.
void check_companions(const ModelFolder& from, ExchangeReport& report) {
  for (const std::string_view name : kCompanions) {
    const Path path = folder_of(name, from) / name;
    if (!is_file(path)) continue;
    check_companion(path, read_file(path, kCompanionLimit));
    if (!name.ends_with(".model")) continue;
    if (std::string note = note_on_tokenizer(path); !note.empty()) report.notes.push_back(std::move(note));
  }
}

void copy_templates(const ModelFolder& from, const Path& to, ExchangeReport& report, Env& env) {
  const Path templates = folder_of(kTemplates, from) / kTemplates;
  const auto status = env.status(templates);
  if (!status || status->type != FileStatus::Type::kFolder) return;
  for (const std::string& name : env.list(templates)) {
    const Path path = templates / name;
    if (path.extension() != ".jinja" || !is_file(path)) continue;
    const std::string text = read_file(path, kCompanionLimit);
    check_companion(path, text);
    make_folders(to / kTemplates, env);
    write_file_atomic(to / kTemplates / name, text, env);
    report.copied.push_back((Path(kTemplates) / name).string());
  }
}

void copy_companions(const ModelFolder& from, const ModelConfig& config, const Path& to,
                     ExchangeReport& report, Env& env) {
  for (const std::string_view name : kCompanions) {
    const Path path = folder_of(name, from) / name;
    if (!is_file(path)) continue;
    std::string text = read_file(path, kCompanionLimit);
    // Adds the stop ids that training used. The files of a published model are copied unchanged.
    if (name == "generation_config.json" && from.iteration)
      text = with_stop_ids(text, path.string(), config.eos_ids);
    write_file_atomic(to / name, text, env);
    report.copied.emplace_back(name);
  }
  copy_templates(from, to, report, env);
}

class Copy {
 public:
  Copy(const ModelFolder& from, const ExchangeOptions& options, const FamilyRegistry& families, Env& env,
       Validation validation)
      : from_(from),
        options_(options),
        env_(env),
        config_(load_model_config(from, families, &report_.notes)),
        folder_(open_weights(from)),
        tensors_(folder_) {
    if (from.iteration) checkpoint_.emplace(CheckpointReader::open(from.path, validation));
    std::ranges::copy(folder_.warnings(), std::back_inserter(report_.notes));
    config_.mtp.enabled = config_.mtp.layers > 0 && has_mtp_layers(tensors_, config_);
    if (config_.mtp.layers > 0 && !config_.mtp.enabled) {
      report_.notes.push_back("config.json has multi-token prediction, but the weights do not: left out");
    }
    engine::ParameterStore store;
    const LanguageModel model(config_, families, store);
    find_part_adapters(store);
    add_all(store);
    part_adapters_.clear();  // the adapters are members of `store`, which ends here
    if (narrowed_ > 0)
      report_.notes.push_back(fmt::format("{} tensor(s) are fp64: written as fp32", narrowed_));
    for (std::string& note : tensors_.refuse_foreign(used_, store)) report_.notes.push_back(std::move(note));
    if (config_.lora) report_.notes.push_back("the adapters (lora) are merged into the weights");
    note_four_bit(used_, report_.notes);
    config_.lora = {};
    report_.config = config_;
  }

  const std::vector<TensorSource>& sources() const { return sources_; }

  ExchangeReport write(const Path& to, const FamilyRegistry& families,
                       const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
    const SafetensorsLayout layout =
        plan_safetensors(sources_, {.max_shard_bytes = options_.max_shard_bytes});
    check_companions(from_, report_);
    const Path target = target_of(to, from_.path, options_.existing, env_);
    const Path replaced = target.string() + ".replaced";
    refuse_existing(replaced, Existing::kRefuse, env_);
    PartialFolder unfinished(target, env_);
    unfinished.clear();  // removes what an earlier, killed copy left
    const bool replaces = env_.status(target) && !env_.list(target).empty();
    if (env_.status(target) && !replaces) env_.remove_folder(target);
    std::uint64_t done = 0;
    write_safetensors(unfinished.path(), sources_, layout, env_, [&](std::uint64_t bytes) {
      done += bytes;
      if (progress) progress(done, layout.bytes);
    });
    note_damage();
    write_file_atomic(unfinished.path() / "config.json", write_model_config(config_, most_common_, families),
                      env_);
    copy_companions(from_, config_, unfinished.path(), report_, env_);
    if (replaces) env_.rename(target, replaced);
    unfinished.publish();
    remove_tree(replaced, env_);
    report_.bytes = layout.bytes;
    report_.files = layout.shards.size();
    return std::move(report_);
  }

 private:
  void add_all(const engine::ParameterStore& store) {
    std::array<std::int64_t, 3> elements_of{};
    constexpr std::array kTypes = {DType::kF32, DType::kBF16, DType::kF16};
    for (const engine::ParameterStore::Group& group : store.groups()) {
      for (const Parameter* p : group.parameters) {
        if (p->is_low_rank) continue;  // adapters are merged into their weights
        for (const CheckpointPart& part : p->parts) {
          const TensorSource& source = add(*p, part);
          tensors_.check_copies(part, used_);
          std::int64_t elements = 1;
          for (const std::int64_t extent : source.shape) elements *= extent;
          report_.tensors += 1;
          report_.parameters += elements;
          for (std::size_t i = 0; i < kTypes.size(); ++i) {
            if (kTypes[i] == source.dtype) elements_of[i] += elements;
          }
          for (const std::string& name : part.copies) {
            sources_.push_back(sources_.back());
            sources_.back().name = name;
          }
        }
      }
    }
    most_common_ =
        kTypes[static_cast<std::size_t>(std::ranges::max_element(elements_of) - elements_of.begin())];
  }

  const TensorSource& add(const Parameter& p, const CheckpointPart& part) {
    const std::vector<std::int64_t> shape = published_shape(p, part);
    PublishedTensor tensor = find_published(tensors_, part.name, shape, used_, p.whole_numbers);
    const bool stored_as_it_is = !options_.dtype || tensor.dtype == *options_.dtype || p.whole_numbers;
    if (options_.dtype == DType::kF32) {
      if (const auto master = master_of(checkpoint_, part.name)) tensor = *master;
    }
    if (p.low_rank) tensor = folded(std::move(tensor), p, part);
    if (!part_adapters_.empty()) tensor = with_part_adapter(std::move(tensor), p, part);
    TensorSource& source = sources_.emplace_back();
    source.name = part.name;
    source.shape = shape;
    source.dtype = stored_as_it_is ? tensor.dtype : p.full_precision ? DType::kF32 : *options_.dtype;
    // fp64 is written as fp32, because no published model and no computation in Primus uses fp64.
    if (source.dtype == DType::kF64) {
      source.dtype = DType::kF32;
      ++narrowed_;
    }
    if (tensor.dtype == source.dtype && !tensor.plain.empty()) {
      source.fill = [this, plain = tensor.plain, name = source.name, dtype = source.dtype](
                        std::uint64_t offset, std::span<std::byte> out) {
        std::memcpy(out.data(), plain.data() + offset, out.size());
        look_for_damage(name, dtype, out);
      };
      return source;
    }
    source.fill = [this, read = std::move(tensor.read), name = source.name, dtype = source.dtype](
                      std::uint64_t offset, std::span<std::byte> out) {
      const auto size = static_cast<std::uint64_t>(size_of(dtype));
      std::vector<float> values(out.size() / size);
      read(static_cast<std::int64_t>(offset / size), values);
      refuse_overflow(name, dtype, values);
      from_float(values, dtype, out);
      look_for_damage(name, dtype, out);
    };
    return source;
  }

  void look_for_damage(const std::string& name, DType dtype, std::span<const std::byte> written) {
    if (any_not_finite(dtype, written)) not_finite_.insert(name);
  }

  void note_damage() {
    if (not_finite_.empty()) return;
    const std::size_t others = not_finite_.size() - 1;
    report_.notes.push_back(fmt::format(
        "the weights are damaged: '{}'{} numbers that are not finite (nan or inf), so it cannot be trained "
        "or generate text; get the model again, or use a checkpoint from before its loss became nan",
        *not_finite_.begin(),
        others == 0 ? " has" : fmt::format(" and {} other tensor{} have", others, others == 1 ? "" : "s")));
  }

  // Returns rows [row, row + rows) of an adapter, in the best precision that the checkpoint has.
  std::vector<float> adapter(const Parameter& p, std::int64_t row, std::int64_t rows) {
    std::vector<float> values;
    for (const CheckpointPart& part : p.parts) {
      if (part.row < row || part.row + part.rows > row + rows) continue;
      PublishedTensor tensor = find_published(tensors_, part.name, published_shape(p, part), used_);
      tensors_.check_copies(part, used_);
      if (const auto master = master_of(checkpoint_, part.name)) tensor = *master;
      const std::size_t before = values.size();
      values.resize(before + static_cast<std::size_t>(part.rows * p.row_elements()));
      tensor.read(0, std::span(values).subspan(before));
    }
    return values;
  }

  // Returns W + scale B A. For experts, each expert has its own adapter.
  PublishedTensor folded(PublishedTensor base, const Parameter& p, const CheckpointPart& part) {
    const Parameter &down = *p.low_rank.down, &up = *p.low_rank.up;
    const std::int64_t out_rows = p.shape[p.shape.rank() - 2], rank = down.shape[down.shape.rank() - 2];
    const std::int64_t expert = part.row / out_rows,
                       experts = std::max<std::int64_t>(part.rows / out_rows, 1);
    return with_product(std::move(base), {.a = adapter(down, expert * rank, experts * rank),
                                          .b = adapter(up, part.row, part.rows),
                                          .part = part,
                                          .out_rows = out_rows,
                                          .rank = rank,
                                          .cols = p.row_elements(),
                                          .scale = config_.lora.scale()});
  }

  // Finds the adapters of single matrices. Throws for an adapter that cannot be merged.
  void find_part_adapters(const engine::ParameterStore& store) {
    std::set<std::string, std::less<>> biases;
    for (const Parameter& p : store.parameters()) {
      for (const engine::LowRank& adapter : p.low_rank.parts) {
        const std::string& name = adapter.down->parts.front().name;
        part_adapters_.emplace(name.substr(0, name.find(".lora_")), &adapter);
      }
      for (const CheckpointPart& part : p.parts) biases.insert(part.name);
    }
    for (const auto& [module, adapter] : part_adapters_) {
      if (!adapter->bias || biases.contains(module + ".bias")) continue;
      throw unsupported(
          fmt::format(
              "the adapter of '{}' has a bias (lora_bias), which cannot be merged because the matrix has "
              "no bias",
              module),
          "keep the adapters separate: primus model export --adapters");
    }
  }

  // Merges the adapter of a single matrix, or the bias of such an adapter.
  PublishedTensor with_part_adapter(PublishedTensor base, const Parameter& p, const CheckpointPart& part) {
    const std::size_t dot = part.name.rfind('.');
    const auto found = part_adapters_.find(part.name.substr(0, dot));
    if (found == part_adapters_.end()) return base;
    const engine::LowRank& low = *found->second;
    const auto scale = static_cast<double>(low.scale);
    if (part.name.substr(dot) == ".bias") {
      if (!low.bias) return base;
      const auto bias = std::make_shared<const std::vector<float>>(adapter(*low.bias, 0, part.rows));
      base.plain = {};
      base.read = [bias, scale, read = std::move(base.read)](std::int64_t first, std::span<float> out) {
        read(first, out);
        for (float& value : out)
          value +=
              static_cast<float>(scale * static_cast<double>((*bias)[static_cast<std::size_t>(first++)]));
      };
      return base;
    }
    const std::int64_t cols = p.row_elements();
    LowRankProduct product{.part = part, .out_rows = part.rows, .cols = cols, .scale = scale};
    if (p.vocabulary) {  // the table is [vocabulary, hidden], so its change is (B A) transposed
      product.rank = low.down->shape[1];
      product.a = transposed(adapter(*low.up, 0, cols), cols);
      product.b = transposed(adapter(*low.down, 0, part.rows), product.rank);
    } else {
      product.rank = low.down->shape[0];
      product.a = adapter(*low.down, 0, product.rank);
      product.b = adapter(*low.up, 0, part.rows);
    }
    base = with_product(std::move(base), std::move(product));
    return low.magnitude ? to_magnitudes(std::move(base), adapter(*low.magnitude, 0, part.rows), cols)
                         : std::move(base);
  }

  const ModelFolder& from_;
  const ExchangeOptions& options_;
  Env& env_;
  ExchangeReport report_;
  ModelConfig config_;
  SafetensorsFolder folder_;
  LanguageTensors tensors_;
  std::optional<CheckpointReader> checkpoint_;
  std::map<std::string, const engine::LowRank*, std::less<>> part_adapters_;  // by module
  TensorNames used_;
  std::vector<TensorSource> sources_;
  DType most_common_ = DType::kF32;
  std::int64_t narrowed_ = 0;         // number of tensors that were narrowed
  std::set<std::string> not_finite_;  // names of written tensors that contain NaN or infinity
};

// Refuses a target that is not a new or empty folder.
Path new_folder(const Path& to, const Path& from, Env& env) {
  Path target = target_of(to, from, Existing::kRefuse, env);
  if (env.status(target)) env.remove_folder(target);
  return target;
}

}  // namespace

ExchangeReport write_adapters(const ModelFolder& from, const Path& to, const std::string& base,
                              const FamilyRegistry& families) {
  ExchangeReport report;
  report.config = load_model_config(from, families, &report.notes);
  if (!report.config.lora) {
    throw invalid(fmt::format("'{}' has no adapters", from.path.string()),
                  "'primus model export' without --adapters writes the model");
  }
  const std::string settings = write_peft_config(report.config, families, base);
  engine::ParameterStore store;
  const LanguageModel model(report.config, families, store);
  const SafetensorsFolder folder = open_weights(from);
  const LanguageTensors tensors(folder);
  std::optional<CheckpointReader> checkpoint;
  if (from.iteration) checkpoint.emplace(CheckpointReader::open(from.path, Validation::kFull));
  TensorNames used;
  std::vector<TensorSource> sources;
  for (const Parameter& p : store.parameters()) {
    if (!p.trainable) continue;
    for (const CheckpointPart& part : p.parts) {
      const std::vector<std::int64_t> shape = published_shape(p, part);
      PublishedTensor tensor = find_published(tensors, part.name, shape, used);
      if (const auto master = master_of(checkpoint, part.name)) tensor = *master;
      TensorSource& source = sources.emplace_back();
      source.name = "base_model.model." + part.name;
      source.dtype = DType::kF32;
      source.shape = shape;
      source.fill = [read = std::move(tensor.read)](std::uint64_t offset, std::span<std::byte> out) {
        std::vector<float> values(out.size() / sizeof(float));
        read(static_cast<std::int64_t>(offset / sizeof(float)), values);
        std::memcpy(out.data(), values.data(), out.size());
      };
      for (const std::string& name : part.copies) {
        sources.push_back(sources.back());
        sources.back().name = "base_model.model." + name;
      }
    }
  }
  report.tensors = std::ssize(sources);
  for (const TensorSource& s : sources)
    report.parameters += static_cast<std::int64_t>(s.bytes() / sizeof(float));
  check_companions(from, report);
  const SafetensorsLayout layout = plan_safetensors(
      sources, {.stem = "adapter_model", .max_shard_bytes = std::numeric_limits<std::uint64_t>::max()});
  PartialFolder unfinished(new_folder(to, from.path, Env::posix()), Env::posix());
  unfinished.clear();
  write_safetensors(unfinished.path(), sources, layout);
  copy_companions(from, report.config, unfinished.path(), report, Env::posix());
  write_file_atomic(unfinished.path() / "adapter_config.json", settings, Env::posix());
  unfinished.publish();
  report.bytes = layout.bytes;
  report.files = layout.shards.size();
  return report;
}

void check_model(const ModelFolder& from, const FamilyRegistry& families) {
  const ExchangeOptions as_it_is;
  const Copy checked(from, as_it_is, families, Env::posix(), Validation::kStructure);
}

void read_model(const ModelFolder& from, const FamilyRegistry& families,
                const std::function<void(const TensorSource& tensor)>& visit) {
  const ExchangeOptions as_it_is;
  const Copy read(from, as_it_is, families, Env::posix(), Validation::kStructure);
  for (const TensorSource& tensor : read.sources()) visit(tensor);
}

ExchangeReport copy_model(const ModelFolder& from, const Path& to, const ExchangeOptions& options,
                          const FamilyRegistry& families,
                          const std::function<void(std::uint64_t, std::uint64_t)>& progress, Env& env) {
  return Copy(from, options, families, env, Validation::kFull).write(to, families, progress);
}

}  // namespace primus
