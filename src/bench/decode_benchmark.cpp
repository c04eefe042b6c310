#include "bench/decode_benchmark.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "base/files/file.h"
#include "base/text/sizes.h"
#include "bench/benchmark_entry.h"
#include "bench/composed_time.h"
#include "config/lora_settings.h"
#include "lm/decode/adapter_batch.h"
#include "lm/decode/inference_model.h"
#include "lm/decode/pass_tokens.h"
#include "lm/decode/scheduler.h"
#include "lm/generate/model_folder.h"
#include "lm/generate/preset_model.h"
#include "lm/model/batch_invariance.h"
#include "lm/model/language_model.h"
#include "lm/model/layer_kind.h"
#include "turbo/devices/devices.h"
#include "turbo/devices/tracing_device.h"

namespace primus {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kReadings = 3;  // timed readings of prompts, after the first one
constexpr std::uint64_t kSeed = 1234;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Sequences of equal length that are decoded as one batch. The prefixes of the sequences differ,
// because equal prefixes would share cached pages. `set`: number of the set of prompts. Sets have different
// prefixes, if the vocabulary has enough tokens. If the decoder has models with adapters, the texts belong to
// one after another of them.
class Texts {
 public:
  Texts(DecodeScheduler& decoder, std::int64_t batch, std::int64_t context, bool sampled,
        std::int64_t set = 0)
      : decoder_(decoder), sampled_(sampled), prompts_(static_cast<std::size_t>(batch)) {
    const std::int64_t vocab = decoder.reader().config().vocab;
    for (std::int64_t text = 0; text < batch; ++text) {
      for (std::int64_t i = 0; i < context; ++i)
        prompts_[static_cast<std::size_t>(text)].push_back(
            static_cast<std::int32_t>((i * 7919 + set * batch + text) % vocab));
    }
  }
  ~Texts() { cancel(); }
  Texts(const Texts&) = delete;
  Texts& operator=(const Texts&) = delete;

  // Prefills all prompts; the prompts' pages stay in the cache.
  void read() {
    submit(0);
    while (decoder_.step()) continue;
  }
  // Starts decoding `tokens` tokens of each sequence. Each call of write() then decodes one token of each
  // sequence.
  void begin(std::int64_t tokens) { submit(tokens); }
  void write() { decoder_.step(); }

 private:
  void submit(std::int64_t tokens) {
    cancel();
    for (const std::vector<std::int32_t>& prompt : prompts_) {
      const SamplingSettings sampling{.temperature = sampled_ ? 1.0 : 0.0, .seed = kSeed + ids_.size()};
      const std::size_t adapters = decoder_.reader().models() - 1;
      ids_.push_back(
          decoder_.submit({.prompt = prompt,
                           .settings = {.sampling = sampling, .max_tokens = tokens, .log_probs = sampled_},
                           .model = adapters > 0 ? 1 + ids_.size() % adapters : 0}));
    }
  }
  void cancel() {
    for (const DecodeScheduler::Id id : ids_) decoder_.cancel(id);
    ids_.clear();
  }

  DecodeScheduler& decoder_;
  bool sampled_;
  std::vector<std::vector<std::int32_t>> prompts_;
  std::vector<DecodeScheduler::Id> ids_;
};

// The model, and the models with adapters next to its weights, whose texts are in one batch.
struct BenchmarkModels {
  InferenceModels models;
  engine::RowAdapters adapters;

  // `config`: the architecture with adapters, if there are any.
  BenchmarkModels(engine::Rank& rank, const ModelConfig& config, const FamilyRegistry& families,
                  const DecodeBenchmarkOptions& options, std::int64_t positions) {
    const std::int64_t adapted = options.adapters > 1 ? options.adapters : 0;
    ModelConfig base = config;
    if (adapted > 0) base.lora = {};
    for (std::int64_t i = 0; i <= adapted; ++i) {
      models.push_back(std::make_unique<InferenceModel>(rank, i == 0 ? base : config, families, options.dtype,
                                                        positions, i == 0 ? nullptr : models.front().get()));
      if (i == 0) {
        models.back()->store.initialize(rank.context(), kSeed);
      } else {
        models.back()->store.initialize_new(rank.context(), kSeed);
      }
      adapters.add(models.front()->store, models.back()->store);
    }
  }
  const LanguageModel& base() const { return models.front()->model; }
  const engine::RowAdapters* batched() const { return models.size() > 1 ? &adapters : nullptr; }
};

void check_adapters(const ModelConfig& config, const FamilyRegistry& families,
                    const DecodeBenchmarkOptions& options) {
  constexpr std::int64_t kMaxAdapters = 1024;
  if (options.adapters < 1 || options.adapters > kMaxAdapters)
    throw invalid(
        fmt::format("the number of adapters is {}; it must be from 1 to {}", options.adapters, kMaxAdapters));
  if (options.adapters == 1) return;
  if (!config.lora) throw invalid("--adapters needs adapters", "set their rank with --lora-rank");
  ModelConfig base = config;
  base.lora = {};
  if (const std::optional<std::string> why = needs_own_batch(base, config, families))
    throw unsupported("the texts of several adapters cannot be in one batch: " + *why, "remove --adapters");
}

void check(const DecodeBenchmarkOptions& o) {
  constexpr std::int64_t kMaxTexts = 4096, kMaxTokens = kMaxDecodedTokens;
  if (o.batches.empty()) throw invalid("no batch size is given");
  for (const std::int64_t batch : o.batches) {
    if (batch < 1 || batch > kMaxTexts)
      throw invalid(fmt::format("the batch size is {}; it must be from 1 to {}", batch, kMaxTexts));
  }
  if (o.context < 1 || o.context > kMaxTokens)
    throw invalid(
        fmt::format("the prompt length is {}; it must be from 1 to {} tokens", o.context, kMaxTokens));
  if (o.tokens < 1 || o.tokens > kMaxTokens)
    throw invalid(
        fmt::format("the number of timed tokens is {}; it must be from 1 to {}", o.tokens, kMaxTokens));
  if (o.pass_tokens && (*o.pass_tokens < 1 || *o.pass_tokens > kMaxTokens))
    throw invalid(fmt::format("the number of tokens of a pass is {}; it must be from 1 to {}", *o.pass_tokens,
                              kMaxTokens));
  if (o.warmup < 0 || o.warmup > kMaxTokens)
    throw invalid(
        fmt::format("the number of warm-up steps is {}; it must be from 0 to {}", o.warmup, kMaxTokens));
}

// Seconds of the steps of a batch, and of each reading of its prompts. The first reading includes what
// happens only once, such as the choice of kernels.
struct BatchTimes {
  std::vector<double> steps, readings;
};

BatchTimes time_batch(DecodeScheduler& decoder, std::int64_t batch, const DecodeBenchmarkOptions& options) {
  const std::string what = fmt::format("batch {}", batch);
  const auto say = [&](const std::string& phase, std::int64_t done = 0, std::int64_t total = 0) {
    if (options.progress) options.progress(phase, done, total);
  };
  const auto seconds_of = [](const auto& work) {
    const auto before = Clock::now();
    work();
    return std::max(seconds_since(before), 1e-9);
  };
  BatchTimes times;
  say(what + ": reading the prompts");
  // Other prompts are read first, because reading them may evict the pages of the prompts that are continued.
  for (std::int64_t set = options.ceiling_seconds > 0 ? kReadings : 0; set > 0; --set) {
    Texts others(decoder, batch, options.context, options.sampled, set);
    times.readings.push_back(seconds_of([&] { others.read(); }));
  }
  if (options.trace) {
    Texts others(decoder, batch, options.context, options.sampled, kReadings + 1);
    options.trace->start();
    others.read();
    options.trace->stop();
  }
  Texts texts(decoder, batch, options.context, options.sampled);
  times.readings.push_back(seconds_of([&] { texts.read(); }));
  const std::int64_t all = options.warmup + options.tokens;
  texts.begin(all);
  for (std::int64_t i = 0; i < all; ++i) {
    say(what, i, all);
    const double seconds = seconds_of([&] { texts.write(); });
    if (i >= options.warmup) times.steps.push_back(seconds);
  }
  return times;
}

// Returns a note that compares a reading of the prompts with its products and attention.
std::string reading_note(std::int64_t batch, double tokens, double seconds, const ComposedTime& alone) {
  return fmt::format(
      "batch {}: prompts read again at {:.0f} tokens/s, {:.1f} % of {:.0f} tokens/s, the rate of only their "
      "products ({:.2f} ms), attention ({:.2f} ms) and delta rules ({:.2f} ms)",
      batch, tokens / seconds, 100 * alone.all() / seconds, tokens / alone.all(), 1e3 * alone.product_seconds,
      1e3 * alone.attention_seconds, 1e3 * alone.delta_rule_seconds);
}

// Returns the times of the products and the attention of each batch's prompts; none if they are not measured.
std::vector<ComposedTime> time_parts_alone(Device& device, const ModelConfig& config,
                                           const DecodeBenchmarkOptions& options) {
  std::vector<ComposedTime> times;
  if (options.ceiling_seconds <= 0) return times;
  for (const std::int64_t batch : options.batches) {
    times.push_back(time_reading_alone(device, config, batch, options.context,
                                       {.dtype = options.dtype,
                                        .seconds = options.ceiling_seconds,
                                        .rotated_bytes = options.rotated_bytes}));
  }
  return times;
}

}  // namespace

double bytes_of_decoding(const ModelConfig& c, const FamilyRegistry& families, DType dtype,
                         std::int64_t batch, std::int64_t length) {
  engine::ParameterStore store;
  const LanguageModel model(c, families, store);
  const double size = static_cast<double>(size_of(dtype)), texts = static_cast<double>(batch);
  double bytes = 0;
  for (const engine::Parameter& p : store.parameters()) {
    if (p.name.starts_with("mtp")) continue;
    double elements = static_cast<double>(p.shape.elements());
    if (p.name == "embedding" && !c.tied_embeddings) {
      elements = texts * static_cast<double>(c.hidden);  // one row per sequence
    } else if (c.moe.experts > 0 && p.shape.rank() == 3 && p.shape[0] == c.moe.experts) {
      const double met =
          std::min(static_cast<double>(c.moe.experts), texts * static_cast<double>(c.moe.router.top_k));
      elements *= met / static_cast<double>(c.moe.experts);
    }
    bytes += elements * (p.full_precision || p.reads_full_precision ? 4.0 : size);
  }
  for (std::int64_t layer = 0; layer < c.layers; ++layer) {
    const LayerKind& kind = *c.spec(layer).attention;
    if (kind.bytes_read) bytes += texts * kind.bytes_read(c, layer, length, dtype);
  }
  return bytes;
}

namespace {

// Returns the bytes of a step whose texts belong to one after another of several adapters.
double bytes_of_batch(const ModelConfig& config, const FamilyRegistry& families,
                      const DecodeBenchmarkOptions& options, std::int64_t batch, std::int64_t length) {
  ModelConfig base = config;
  base.lora = {};
  const double with = bytes_of_decoding(config, families, options.dtype, batch, length),
               without = bytes_of_decoding(base, families, options.dtype, batch, length);
  return without + static_cast<double>(std::min(batch, options.adapters)) * (with - without);
}

}  // namespace

BenchmarkReport benchmark_decoding(std::unique_ptr<Device> device, const ModelConfig& config,
                                   const FamilyRegistry& families, const DecodeBenchmarkOptions& options) {
  check(options);
  check_adapters(config, families, options);
  const auto say = [&](const std::string& what, std::int64_t done = 0, std::int64_t total = 0) {
    if (options.progress) options.progress(what, done, total);
  };
  const std::int64_t room = options.context + options.warmup + options.tokens;
  if (room > config.max_positions)
    throw invalid(fmt::format("a prompt of {} tokens and {} new ones exceed the model's {} positions",
                              options.context, options.warmup + options.tokens, config.max_positions),
                  "choose a smaller --context or fewer --tokens");
  BenchmarkReport report{
      .suite = "decode", .device = device->description(), .dtype = std::string(name_of(options.dtype))};
  say("the memory's rate");
  report.copy_ceiling = DeviceTimer(*device, options.copy_seconds, options.rotated_bytes).copy_rate();
  if (options.ceiling_seconds > 0) say("products and attention of the prompts");
  const std::vector<ComposedTime> alone = time_parts_alone(*device, config, options);

  engine::Rank rank(std::move(device));
  const std::int64_t maximum = *std::max_element(options.batches.begin(), options.batches.end());
  ReaderSettings reader{.compute = options.dtype,
                        .capacity = room,
                        .sequences = maximum,
                        .replay = true,
                        .keep_logits = options.sampled};
  limit_passes(reader, rank.device().properties(), maximum * options.context);
  if (options.pass_tokens) reader.pass_tokens = std::min(*options.pass_tokens, maximum * options.context);
  const std::int64_t available = options.pass_tokens ? 0 : memory_for_reading(rank.device());
  engine::MemoryPlan plan;
  {
    const BenchmarkModels measured(rank, config, families, options, room);
    const PlannedReader planned{&measured.base(), &reader, measured.batched()};
    plan = measure_readers(rank, {&planned, 1}, available);
  }
  rank.reserve(plan);
  {
    // The weights are created once. Each case creates its own decoder in the memory of the previous case's
    // decoder.
    say("weights");
    const BenchmarkModels models(rank, config, families, options, room);
    rank.compute().synchronize();
    DecodeScheduler decoder(rank, models.base(), reader, {}, models.batched());
    for (std::size_t i = 0; i < options.batches.size(); ++i) {
      const std::int64_t batch = options.batches[i];
      BatchTimes times = time_batch(decoder, batch, options);
      const std::int64_t length = options.context + options.warmup + (options.tokens + 1) / 2;
      const double prompt_tokens = static_cast<double>(options.context * batch);
      const std::string of =
          options.adapters > 1 ? fmt::format(" of {} adapters", std::min(batch, options.adapters)) : "";
      report.results.push_back({.name = fmt::format("batch {}{}, context {}", batch, of, options.context),
                                .timing = summarize(std::move(times.steps)),
                                .bytes = bytes_of_batch(config, families, options, batch, length),
                                .tokens = static_cast<double>(batch)});
      report.notes.push_back(fmt::format("batch {}: prompts read at {:.0f} tokens/s", batch,
                                         prompt_tokens / times.readings.front()));
      if (alone.empty()) continue;
      times.readings.erase(times.readings.begin());
      const Timing reading = summarize(std::move(times.readings));
      report.notes.push_back(reading_note(batch, prompt_tokens, reading.median, alone[i]));
      report.results.push_back({.name = fmt::format("batch {}, reading {}", batch, options.context),
                                .timing = reading,
                                .tokens = prompt_tokens,
                                .composed_seconds = alone[i].all()});
    }
  }
  for (const KernelChoice& choice : rank.device().choices())
    report.notes.push_back(fmt::format("{} ({} calls)", choice.what, choice.calls));
  return report;
}

namespace {

class DecodeBenchmark final : public Benchmark {
  std::vector<BenchmarkOption> options() override {
    constexpr std::pair<double, double> kCounts{1, kMaxDecodedTokens}, kFromNone{0, kMaxDecodedTokens};
    return {{.names = "--model",
             .value = "MODEL",
             .help = "a preset (llama3.1_8B), a Hugging Face folder, or the folder of a run; only the "
                     "model's shape is used",
             .target = &model_,
             .reads = folders_among},
            {.names = "--vocab-size",
             .value = "N",
             .help = "vocabulary size, for a preset that has none",
             .target = &vocabulary_,
             .range = kCounts},
            {"--batch", "LIST", "texts that are generated together", &batches_},
            {.names = "--context",
             .value = "N",
             .help = fmt::format(
                 "tokens in the prompt of each text (default: {}, or as many as the model supports)",
                 options_.context),
             .target = &context_,
             .range = kCounts},
            {.names = "--tokens,-n",
             .value = "N",
             .help = "timed tokens of each text",
             .target = &options_.tokens,
             .range = kCounts},
            {.names = "--warmup",
             .value = "N",
             .help = "untimed tokens before the timed tokens",
             .target = &options_.warmup,
             .range = kFromNone},
            {.names = "--sampled",
             .help = "draw tokens at temperature 1 and compute their log probabilities, as reinforcement "
                     "learning does, instead of choosing the most probable token",
             .target = &options_.sampled},
            {.names = "--lora-rank",
             .value = "N",
             .help = "rank of low-rank adapters (LoRA) at every product of the layers; for a model without "
                     "adapters",
             .target = &lora_rank_,
             .range = std::pair<double, double>{1, config::kMaxLoraDim}},
            {.names = "--adapters",
             .value = "N",
             .help = "number of adapters next to the model: the texts of a batch belong to one after another "
                     "of them; needs --lora-rank",
             .target = &options_.adapters,
             .range = kCounts},
            {.names = "--pass-tokens",
             .value = "N",
             .help = "maximum number of tokens of a pass that reads prompts",
             .target = &options_.pass_tokens,
             .shown_default = "as in generate",
             .range = kCounts},
            {"--ceiling",
             {},
             "also read other prompts of the same length again, and compare this reading with the matrix "
             "products, attention and delta rules of the prompts, each timed separately",
             &ceiling_},
            {"--trace", "FILE",
             "record a reading of the prompts as a Chrome trace (open it in ui.perfetto.dev)", &trace_},
            {.names = "--batch-invariant",
             .help = "use the kernels of batch_invariant, to measure their cost",
             .target = &batch_invariant_}};
  }

  void check() override {
    if (vocabulary_ && !names_a_preset(model_))
      throw invalid(fmt::format("--vocab-size: the folder '{}' already sets the vocabulary size", model_),
                    "remove --vocab-size; it is only for presets without a vocabulary size");
    if (context_) options_.context = *context_;
    options_.batches = parse_sizes("--batch", batches_, 1 << 12);
  }

  std::string input() const override { return names_a_preset(model_) ? "" : model_; }

  void prepare() override {
    config_ = names_a_preset(model_) ? preset() : load_model_config(find_model_folder(model_), families_);
    if (lora_rank_) add_adapters(*lora_rank_);
    const std::int64_t fits = config_.max_positions - options_.warmup - options_.tokens;
    if (context_ || fits < 1 || fits >= options_.context) return;
    shortened_ =
        fmt::format("prompts have {} tokens instead of the default {}, because the model has {} positions",
                    fits, options_.context, config_.max_positions);
    options_.context = fits;
  }

  BenchmarkReport measure(const BenchmarkRun& run) override {
    options_.dtype = run.dtype;
    options_.progress = run.progress;
    DeviceSpec device = run.device;
    device.batch_invariant = batch_invariant_;
    if (batch_invariant_) check_batch_invariant(config_, turbo::choose_device(device).kind, run.dtype);
    constexpr double kCeilingSeconds = 0.2;  // duration of each of about ten measurements
    if (ceiling_) options_.ceiling_seconds = kCeilingSeconds;
    std::unique_ptr<Device> opened = turbo::open_device(device);
    if (!trace_.empty()) {
      options_.trace = std::make_shared<turbo::TraceRecorder>();
      const DeviceTiming* const timing = turbo::timing_of(*opened);
      opened = turbo::make_tracing_device(std::move(opened), timing, options_.trace);
    }
    BenchmarkReport report = benchmark_decoding(std::move(opened), config_, families_, options_);
    if (options_.trace) {
      const std::string file = run.own_file(trace_);
      write_file_atomic(file, options_.trace->chrome_json({.name = report.device}));
      run.note("trace: " + file);
    }
    report.device += " | " + model_;
    if (!shortened_.empty()) report.notes.insert(report.notes.begin(), shortened_);
    return report;
  }

  void add_adapters(std::int64_t rank) {
    if (config_.lora)
      throw invalid(fmt::format("--lora-rank: the model '{}' already has adapters", model_),
                    "remove --lora-rank");
    const auto modules = config::lora_modules();
    config_.lora = {.dim = rank,
                    .alpha = 2 * static_cast<double>(rank),
                    .modules = std::vector<std::string>(modules.begin(), modules.end())};
  }

  ModelConfig preset() const {
    ModelConfig config = preset_model(model_, families_, vocabulary_);
    constexpr std::int64_t kMorePadded = 1 << 16;
    if (vocabulary_ && preset_model(model_, families_, *vocabulary_ + kMorePadded).vocab == config.vocab)
      throw invalid(fmt::format("--vocab-size: the preset '{}' already sets a vocabulary of {} tokens",
                                model_, config.vocab),
                    "remove --vocab-size");
    return config;
  }

  const FamilyRegistry families_ = builtin_families();
  std::string model_ = "llama3.1_8B", batches_ = "1,64", shortened_;
  std::optional<std::int64_t> vocabulary_, context_, lora_rank_;
  bool batch_invariant_ = false, ceiling_ = false;
  std::string trace_;
  DecodeBenchmarkOptions options_;
  ModelConfig config_;
};

}  // namespace

extern const BenchmarkEntry kDecodeEntry{.name = "decode",
                                         .make = make_benchmark<DecodeBenchmark>,
                                         .subject = BenchmarkSubject::kDevice,
                                         .types = MeasuredTypes{},
                                         .dtype = "bf16"};

}  // namespace primus
