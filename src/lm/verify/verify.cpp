#include "lm/verify/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "lm/model/published_layout.h"
#include "lm/model/weights.h"
#include "lm/train/session.h"
#include "tensor/bfloat16.h"

namespace primus {
namespace {

TensorComparison compare(std::string name, const std::vector<float>& ours,
                         const std::vector<float>& reference) {
  TensorComparison result{.name = std::move(name)};
  double error = 0, norm = 0, largest_reference = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const double a = static_cast<double>(ours[i]), b = static_cast<double>(reference[i]);
    const double difference = std::abs(a - b);
    // A NaN on either side must not vanish in a max().
    result.largest = std::isnan(difference) ? difference : std::max(result.largest, difference);
    error += difference * difference;
    norm += b * b;
    largest_reference = std::max(largest_reference, std::abs(b));
  }
  if (error == 0) return result;
  result.normalised = result.largest / largest_reference;
  result.euclidean = std::sqrt(error / norm);
  return result;
}

// Makes rows (tokens) that are beyond `limit`, normalised over all, equal if they are at most `most`, and
// says how many they were.
std::int64_t leave_out_rows(std::vector<float>& ours, const std::vector<float>& reference, std::int64_t width,
                            double limit, std::int64_t most) {
  float largest = 0;
  for (const float v : reference) largest = std::max(largest, std::abs(v));
  std::vector<std::size_t> rows;
  for (std::size_t at = 0; at < ours.size(); at += static_cast<std::size_t>(width)) {
    bool far = false;
    for (std::size_t i = at; i < at + static_cast<std::size_t>(width); ++i) {
      far =
          far || static_cast<double>(std::abs(ours[i] - reference[i])) > limit * static_cast<double>(largest);
    }
    if (far) rows.push_back(at);
  }
  if (static_cast<std::int64_t>(rows.size()) > most) return 0;
  for (const std::size_t at : rows) {
    std::copy_n(reference.begin() + static_cast<std::ptrdiff_t>(at), width,
                ours.begin() + static_cast<std::ptrdiff_t>(at));
  }
  return static_cast<std::int64_t>(rows.size());
}

std::vector<float> download(engine::Rank& rank, const Tensor& tensor) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.bytes()));
  rank.compute().copy_to_host(bytes.data(), tensor.data, tensor.bytes());
  rank.compute().synchronize();
  std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
  if (tensor.dtype == DType::kF32) {
    std::memcpy(values.data(), bytes.data(), bytes.size());
  } else {
    for (std::size_t i = 0; i < values.size(); ++i) {
      BFloat16 element;
      std::memcpy(&element, bytes.data() + 2 * i, 2);
      values[i] = static_cast<float>(element);
    }
  }
  return values;
}

std::vector<float> reference_values(const TensorView& tensor) {
  if (tensor.dtype != DType::kF32) {
    throw unsupported(
        "reference tensor '" + std::string(tensor.name) + "' is " + std::string(name_of(tensor.dtype)),
        "write references as fp32");
  }
  std::vector<float> values(tensor.data.size() / 4);
  std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
  return values;
}

TensorView require(const SafetensorsFile& file, const char* name) {
  const auto tensor = file.find(name);
  if (!tensor) throw invalid("tensor '" + std::string(name) + "' is missing").at(file.name());
  return *tensor;
}

// The reference's inputs as one batch whose labels are the next tokens; the last position has none.
struct ReferenceBatch {
  std::int64_t batch = 0, sequence = 0;
  std::vector<std::int32_t> tokens, labels;
  std::vector<float> mask;

  ReferenceBatch(const TensorView& ids, std::int64_t vocab, const std::string& where) {
    if (ids.dtype != DType::kI64 || ids.shape.size() != 2 || ids.shape[0] < 1 || ids.shape[1] < 2) {
      throw invalid("input_ids must be int64 [batch >= 1, sequence >= 2]").at(where);
    }
    batch = ids.shape[0];
    sequence = ids.shape[1];
    tokens.resize(batch * sequence);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      std::int64_t id;
      std::memcpy(&id, ids.data.data() + 8 * i, 8);
      if (id < 0 || id >= vocab)
        throw invalid(fmt::format("input id {} is outside the vocabulary of {}", id, vocab)).at(where);
      tokens[i] = static_cast<std::int32_t>(id);
    }
    labels.assign(tokens.begin() + 1, tokens.end());
    labels.push_back(0);
    mask.assign(tokens.size(), 1.0F);
    for (std::int64_t row = 1; row <= batch; ++row) mask[row * sequence - 1] = 0;
  }
  HostBatch host() const { return {tokens, labels, mask}; }
};

std::vector<float> compute_logits(TrainingSession& session, const ReferenceBatch& reference,
                                  const std::vector<std::int32_t>& positions) {
  engine::Rank& rank = session.rank();
  engine::Tape tape(rank.context(), rank.stash());
  tape.begin({.train = false});
  const Shape shape{static_cast<std::int64_t>(reference.tokens.size())};
  ModelInputs in{.batch = reference.batch,
                 .sequence = reference.sequence,
                 .tokens = tape.input(DType::kI32, shape, false),
                 .positions = tape.input(DType::kI32, shape, false)};
  const engine::Value logits = [&] {
    if (!rank.measuring()) {
      rank.compute().copy_to_device(in.tokens.tensor().data, reference.tokens.data(), 4 * shape[0]);
      rank.compute().copy_to_device(in.positions.tensor().data, positions.data(), 4 * shape[0]);
    }
    return session.model().logits(session.model().forward(in));
  }();
  return rank.measuring() ? std::vector<float>{} : download(rank, logits.tensor());
}

struct Golden {
  double loss, gradient_norm;
  AdamSettings adam;
  double learning_rate, weight_decay;
  std::vector<std::pair<double, double>> trajectory;
};

Golden read_golden(const std::filesystem::path& path) {
  const std::string text = read_file(path, 16U << 20);
  try {
    const auto json = nlohmann::json::parse(text);
    const auto& adamw = json.at("adamw");
    Golden golden{.loss = json.at("loss"),
                  .gradient_norm = json.at("grad_norm"),
                  .adam = {.beta1 = adamw.at("betas").at(0),
                           .beta2 = adamw.at("betas").at(1),
                           .epsilon = adamw.at("eps"),
                           .clip_norm = adamw.at("clip"),
                           .decay_all_parameters = adamw.value("decay_all_parameters", false)},
                  .learning_rate = adamw.at("lr"),
                  .weight_decay = adamw.at("weight_decay"),
                  .trajectory = {}};
    for (const auto& point : json.at("trajectory_loss_gradnorm")) {
      golden.trajectory.emplace_back(point.at(0).get<double>(), point.at(1).get<double>());
    }
    return golden;
  } catch (const nlohmann::json::exception& error) {
    throw invalid(std::string("this is not a trajectory: ") + error.what(),
                  "it needs loss, grad_norm, adamw and trajectory_loss_gradnorm")
        .at(path.string());
  }
}

double relative(double value, double reference) { return std::abs(value - reference) / std::abs(reference); }

// True for errors that are too large, and for NaN.
bool beyond(double error, double limit) { return !(error <= limit); }

class Verification {
 public:
  Verification(const VerifyOptions& options, TrainingSession& session, const ReferenceBatch& batch,
               VerifyReport& report)
      : options_(options), session_(session), batch_(batch), report_(report) {}

  void gradients(const SafetensorsFile& reference) {
    StepResult result = forward_backward();
    report_.loss = result.loss;
    double error_sum = 0, norm_sum = 0;
    for (const engine::Parameter& p : session_.store().parameters()) {
      if (!p.trainable) continue;
      for (const engine::CheckpointPart& part : p.parts) {
        const Tensor gradient = part_of(p.gradient, p, part);
        const std::vector<float> expected = reference_values(require(reference, part.name.c_str()));
        if (static_cast<std::int64_t>(expected.size()) != gradient.elements()) {
          throw invalid("gradient '" + part.name + "' has another size than the weight").at(reference.name());
        }
        report_.gradients.push_back(compare(part.name, published(gradient, part), expected));
        const TensorComparison& c = report_.gradients.back();
        const double limit = report_.single_factor * report_.tolerance;
        if (beyond(c.normalised, limit)) {
          fail(fmt::format("gradient of {}: normalised error {:.3g} is above {:.3g}", c.name, c.normalised,
                           limit));
        }
        double norm = 0;
        for (float v : expected) norm += static_cast<double>(v) * static_cast<double>(v);
        error_sum += c.euclidean * c.euclidean * norm;
        norm_sum += norm;
      }
    }
    report_.gradient_error = std::sqrt(error_sum / norm_sum);
    if (report_.rerouted_tokens == 0 && beyond(report_.gradient_error, report_.tolerance)) {
      fail(fmt::format("all gradients together: error {:.3g} is above {:.3g}", report_.gradient_error,
                       report_.tolerance));
    }
  }

  void trajectory(const Golden& golden) {
    for (std::size_t i = 0; i < golden.trajectory.size(); ++i) {
      const StepResult result = forward_backward();
      const auto [loss, norm] = golden.trajectory[i];
      if (i == 0) {
        report_.loss = result.loss;
        report_.reference_loss = golden.loss;
      }
      report_.trajectory.push_back({result.loss, loss, result.gradient_norm, norm});
      check(i + 1, "loss", result.loss, loss, report_.trajectory_tolerance);
      check(i + 1, "gradient norm", result.gradient_norm, norm,
            report_.single_factor * report_.trajectory_tolerance);
      session_.step().update(static_cast<std::int64_t>(i) + 1, golden.learning_rate, golden.weight_decay);
    }
  }

  void loss_only() { report_.loss = forward_backward().loss; }

 private:
  std::vector<float> published(const Tensor& gradient, const engine::CheckpointPart& part) {
    std::vector<float> values = download(session_.rank(), gradient);
    if (part.layout.dims.empty()) return values;
    std::vector<float> reordered(values.size());
    to_published_order(part.layout, sizeof(float), std::as_bytes(std::span(values)),
                       std::as_writable_bytes(std::span(reordered)));
    return reordered;
  }
  StepResult forward_backward() {
    TrainingStep& step = session_.step();
    step.begin();
    step.microbatch(0, batch_.host());
    step.finish_gradients();
    return step.result();
  }
  void check(std::size_t step, const char* what, double value, double reference, double limit) {
    if (beyond(relative(value, reference), limit)) {
      fail(fmt::format("AdamW step {}: {} {:.7g} differs from {:.7g} by more than {:.3g} relative", step,
                       what, value, reference, limit));
    }
  }
  void fail(std::string text) { report_.failures.push_back(std::move(text)); }

  const VerifyOptions& options_;
  TrainingSession& session_;
  const ReferenceBatch& batch_;
  VerifyReport& report_;
};

}  // namespace

VerifyReport verify_model(const VerifyOptions& options, const FamilyRegistry& families,
                          std::unique_ptr<Device> device) {
  const std::filesystem::path config_path = options.model / "config.json";
  const ModelConfig config =
      read_model_config(read_file(config_path, 16U << 20), config_path.string(), families);
  const SafetensorsFolder weights = SafetensorsFolder::open(options.model);
  const SafetensorsFile inputs = SafetensorsFile::open(options.inputs);
  const ReferenceBatch batch(require(inputs, "input_ids"), config.vocab, inputs.name());
  const TensorView reference_logits = require(inputs, "logits");
  if (reference_logits.data.size() != batch.tokens.size() * static_cast<std::size_t>(config.vocab) * 4) {
    throw invalid("logits must be fp32 [batch, sequence, vocab]").at(inputs.name());
  }
  std::optional<SafetensorsFile> gradients;
  if (options.gradients) gradients = SafetensorsFile::open(*options.gradients);
  std::optional<Golden> golden;
  if (options.trajectory) golden = read_golden(*options.trajectory);

  SessionSettings settings{
      .model = config,
      .compute = options.compute,
      .step = {.micro_batch = batch.batch, .sequence = batch.sequence, .microbatches = 1},
      .adam = golden ? golden->adam : AdamSettings{}};
  std::vector<std::int32_t> positions(batch.tokens.size());
  for (std::size_t t = 0; t < positions.size(); ++t) {
    positions[t] = static_cast<std::int32_t>(static_cast<std::int64_t>(t) % batch.sequence);
  }
  engine::Rank rank(std::move(device));
  engine::MemoryPlan plan = measure_session(rank, settings, families).memory;
  {
    TrainingSession measuring(rank, settings, families);
    compute_logits(measuring, batch, positions);
    const engine::MemoryPlan with_logits = rank.high_water();
    plan.stash = std::max(plan.stash, with_logits.stash);
    plan.scratch = std::max(plan.scratch, with_logits.scratch);
  }
  rank.reserve(plan);
  TrainingSession session(rank, settings, families);
  load_weights(weights, session.store(), rank);

  const bool exact = options.compute == DType::kF32;
  VerifyReport report;
  report.single_factor = exact ? 1 : 2;
  report.tolerance = options.tolerance >= 0 ? options.tolerance : exact ? 2e-5 : 2e-2;
  report.trajectory_tolerance = options.trajectory_tolerance >= 0 ? options.trajectory_tolerance
                                : exact                           ? 1e-4
                                                                  : 2e-2;

  std::vector<float> logits = compute_logits(session, batch, positions);
  const std::vector<float> expected = reference_values(reference_logits);
  if (!exact && config.moe.experts > 0) {
    const auto tokens = static_cast<std::int64_t>(batch.tokens.size());
    report.rerouted_tokens = leave_out_rows(logits, expected, config.vocab, report.tolerance, tokens / 16);
    if (report.rerouted_tokens > 0) report.single_factor = std::numeric_limits<double>::infinity();
  }
  report.logits = compare("logits", logits, expected);
  if (beyond(report.logits.normalised, report.tolerance)) {
    report.failures.push_back(fmt::format("logits: normalised error {:.3g} is above {:.3g}",
                                          report.logits.normalised, report.tolerance));
  }
  Verification verification(options, session, batch, report);
  if (gradients) verification.gradients(*gradients);
  if (golden) verification.trajectory(*golden);
  if (!gradients && !golden) verification.loss_only();
  return report;
}

}  // namespace primus
