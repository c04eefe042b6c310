// primus model verify
#include "lm/verify/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "base/text/json_text.h"
#include "cli/command.h"
#include "cli/options/device.h"
#include "lm/generate/model_folder.h"

namespace primus::cli {
namespace {

// Writes null for NaN and infinity, which JSON does not have. A report with such a number has failed anyway.
nlohmann::json number(double value) {
  return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(nullptr);
}

nlohmann::json json_of(const TensorComparison& c) {
  return {{"name", c.name},
          {"largest_error", number(c.largest)},
          {"normalised_error", number(c.normalised)},
          {"euclidean_error", number(c.euclidean)},
          {"limit", c.limit}};
}

nlohmann::json json_of(const VerifyReport& report) {
  nlohmann::json json{{"passed", report.passed()},
                      {"loss", number(report.loss)},
                      {"tolerance", report.tolerance},
                      {"trajectory_tolerance", report.trajectory_tolerance},
                      {"single_factor", report.single_factor},
                      {"gradient_error", number(report.gradient_error)},
                      {"rerouted_tokens", report.rerouted_tokens},
                      {"logits", json_of(report.logits)},
                      {"gradients", nlohmann::json::array()},
                      {"adamw_steps", nlohmann::json::array()},
                      {"failures", report.failures}};
  if (report.reference_loss) json["reference_loss"] = *report.reference_loss;
  for (const TensorComparison& gradient : report.gradients) json["gradients"].push_back(json_of(gradient));
  for (const VerifyReport::Point& point : report.trajectory) {
    json["adamw_steps"].push_back({{"loss", number(point.loss)},
                                   {"reference_loss", point.reference_loss},
                                   {"grad_norm", number(point.gradient_norm)},
                                   {"reference_grad_norm", point.reference_gradient_norm}});
  }
  return json;
}

// Rejects limits that are infinite, NaN or negative. No difference would exceed an infinite or NaN limit, and
// every difference would exceed a negative limit.
std::optional<double> limit(std::string_view option, const std::optional<double>& value) {
  if (value && (!std::isfinite(*value) || *value < 0)) {
    throw invalid(fmt::format("{} must be a number from 0 up, not {}", option, *value),
                  "remove the option to use the default limit");
  }
  return value;
}

class ModelVerify final : public Command {
 public:
  void declare(Arguments& args) override {
    args.positional("DIR", &model_, "a Hugging Face folder, a checkpoint, or the folder of a run").reads =
        all_of_them;
    Argument& inputs =
        args.option("--inputs", "FILE", &inputs_, "safetensors with input_ids and the reference's logits");
    inputs.required = true;
    inputs.reads = all_of_them;
    args.option("--grads", "FILE", &gradients_, "safetensors with the reference's gradient of every weight")
        .reads = all_of_them;
    args.option("--trajectory", "FILE", &trajectory_, "JSON with the reference's loss and its AdamW steps")
        .reads = all_of_them;
    args.option("--tolerance", "X", &tolerance_,
                "limit of the normalised error (default: fp32 2e-5, bf16 2e-2)");
    args.option("--trajectory-tolerance", "X", &trajectory_tolerance_,
                "limit of the relative error along the AdamW steps (default: fp32 1e-4, bf16 2e-2)");
    device_.declare(args);
    args.flag("--all", all_, "show every gradient, not only the worst");
    args.flag("--json", json_, "print the report as JSON");
  }

  int run(Console& console) override {
    VerifyOptions options{.model = find_model_folder(model_).path,
                          .inputs = inputs_,
                          .gradients = {},
                          .trajectory = {},
                          .compute = device_.compute()};
    if (gradients_) options.gradients = *gradients_;
    if (trajectory_) options.trajectory = *trajectory_;
    if (trajectory_tolerance_ && !trajectory_)
      throw invalid("--trajectory-tolerance needs --trajectory", "add --trajectory FILE, or remove it");
    if (all_ && !gradients_) throw invalid("--all needs --grads", "add --grads FILE, or remove --all");
    options.tolerance = limit("--tolerance", tolerance_);
    options.trajectory_tolerance = limit("--trajectory-tolerance", trajectory_tolerance_);
    const VerifyReport report =
        verify_model(options, builtin_families(), [&] { return device_.make(console); });
    console.notes(report.notes);
    json_ ? console.write(json_text(json_of(report)) + "\n") : print_table(report, console);
    constexpr int kNotVerified = 3;
    return report.passed() ? 0 : kNotVerified;
  }

 private:
  void print_table(const VerifyReport& report, const Console& console) const {
    console.print(fmt::format("{:<52}{:>14}{:>14}{:>10}\n", "", "largest error", "normalised", "limit"));
    auto line = [&](const TensorComparison& c) {
      const bool good = c.normalised <= c.limit;
      console.print(
          fmt::format("{:<52}{:>14.2e}{:>14.2e}{:>10.0e}  ", c.name, c.largest, c.normalised, c.limit));
      console.print(good ? Color::kGreen : Color::kRed, good ? "ok" : "FAILED");
      console.print("\n");
    };
    line(report.logits);
    std::vector<TensorComparison> gradients = report.gradients;
    // Sorts NaN before all numbers. NaN needs a separate rule, because comparisons with NaN are false.
    auto badness = [](const TensorComparison& c) {
      return std::isnan(c.normalised) ? std::numeric_limits<double>::infinity() : c.normalised;
    };
    if (!all_) {
      std::stable_sort(gradients.begin(), gradients.end(),
                       [&](const auto& a, const auto& b) { return badness(a) > badness(b); });
    }
    constexpr std::size_t kWorst = 5;
    const std::size_t shown = all_ ? gradients.size() : std::min(gradients.size(), kWorst);
    for (std::size_t i = 0; i < shown; ++i) line(gradients[i]);
    std::string text;
    if (shown < gradients.size()) {
      text += fmt::format("  ... and {} gradients with smaller errors\n", gradients.size() - shown);
    }
    if (!gradients.empty())
      text += fmt::format("all gradients together, Euclidean {:>41.2e}\n", report.gradient_error);
    for (std::size_t i = 0; i < report.trajectory.size(); ++i) {
      const VerifyReport::Point& p = report.trajectory[i];
      if (i == 0) {
        text += fmt::format("\n{:<10}{:>16}{:>16}{:>16}{:>16}\n", "AdamW step", "loss", "reference",
                            "gradient norm", "reference");
      }
      text += fmt::format("{:<10}{:>16.7g}{:>16.7g}{:>16.7g}{:>16.7g}\n", i + 1, p.loss, p.reference_loss,
                          p.gradient_norm, p.reference_gradient_norm);
    }
    text += fmt::format("\nloss {:.7g}", report.loss);
    if (report.reference_loss) text += fmt::format(", reference {:.7g}", *report.reference_loss);
    text += "\n";
    if (report.rerouted_tokens > 0) {
      text += fmt::format(
          "{} token(s) would use other experts than in the reference, because bf16 rounding changes the "
          "order of nearly equal scores:\n"
          "the comparison sent every token to the experts that the fp32 model chooses\n",
          report.rerouted_tokens);
    }
    for (const std::string& failure : report.failures) text += failure + "\n";
    console.print(text);
    console.print(report.passed() ? Color::kGreen : Color::kRed,
                  report.passed() ? "verified" : "not verified");
    console.print("\n");
  }

  std::string model_, inputs_;
  std::optional<std::string> gradients_, trajectory_;
  std::optional<double> tolerance_, trajectory_tolerance_;
  DeviceOptions device_;
  bool all_ = false, json_ = false;
};

}  // namespace

extern const CommandEntry kModelVerify{
    "model verify",
    "Compares a model's outputs with those of a reference",
    "Compares logits, loss, every gradient and a few AdamW steps with files that another implementation "
    "wrote. The error of a tensor is its largest difference divided by the reference's largest element. In "
    "bf16 the limit of a single gradient is twice as high. The exit code is 0 if everything is within its "
    "limit, and 3 otherwise.",
    "primus model verify tests/golden/models/llama --inputs tests/golden/models/llama/io.safetensors\n"
    "primus model verify DIR --inputs io.safetensors --grads grads.safetensors --trajectory golden.json "
    "--json",
    make_command<ModelVerify>,
    {Section::kModel, 1}};

}  // namespace primus::cli
