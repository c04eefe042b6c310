#include "lm/verify/verify_adapters.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/files/file.h"
#include "config/trainer_config.h"
#include "lm/checkpoint/elements.h"
#include "lm/exchange/exchange.h"
#include "lm/verify/verified_session.h"

namespace primus {
namespace {

using nlohmann::json;

constexpr std::uint64_t kJsonLimit = 64U << 20;

// Returns the name that PEFT gives to the trained parameter of a published tensor.
std::string peft_name(const std::string& published) {
  std::string name = "base_model.model." + published;
  const std::size_t adapter = name.find(".lora_");
  if (adapter == std::string::npos) return name.insert(name.rfind('.'), ".modules_to_save.default");
  const std::size_t end = name.find('.', adapter + 1);
  if (end != std::string::npos) return name.insert(end, ".default");
  return name + (name.ends_with("_magnitude_vector") ? ".default.weight" : ".default");
}

class Case {
 public:
  Case(std::string name, const json& reference, const std::filesystem::path& folder,
       const FamilyRegistry& families)
      : reference_(reference),
        folder_(folder),
        families_(families),
        io_(SafetensorsFile::open(folder / "io.safetensors")) {
    report_.name = std::move(name);
    model_ = find_model_folder((folder / reference.at("base_model").get<std::string>()).lexically_normal());
    model_.adapters = folder;
  }

  AdapterReport run(std::unique_ptr<Device> device) {
    SessionSettings settings;
    settings.model = load_model_config(model_, families_);
    const TensorView ids = tensor("input_ids");
    const data::Batch batch = reference_batch(ids, settings.model.vocab, io_.name());
    settings.compute = DType::kF32;
    settings.step = {.micro_batch = ids.shape[0], .sequence = ids.shape[1], .microbatches = 1};
    config::TrainerConfig adam;
    adam.adam_beta1 = 0.9;
    adam.adam_beta2 = 0.999;
    adam.adam_eps = 1e-8;
    settings.optimizer = {.rules = update_rules_of(adam), .clip_norm = 0};
    VerifiedSession session(std::move(device), settings, families_, open_weights(model_), batch);
    compare("logits", session.logits(), "logits", report_.logits);
    steps(session);
    merged();
    return std::move(report_);
  }

 private:
  TensorView tensor(const std::string& name) const {
    const auto found = io_.find(name);
    if (!found) throw invalid(fmt::format("tensor '{}' is missing", name)).at(io_.name());
    return *found;
  }

  void compare(const std::string& what, const std::vector<float>& ours, const std::string& name,
               TensorComparison& result) {
    const TensorView view = tensor(name);
    require_float(view);
    std::vector<float> expected(view.data.size() / static_cast<std::size_t>(size_of(view.dtype)));
    to_float(view.dtype, view.data, expected);
    if (expected.size() != ours.size())
      throw invalid(fmt::format("tensor '{}' has {} elements, but the model has {}", name, expected.size(),
                                ours.size()))
          .at(io_.name());
    result = {.name = what, .limit = AdapterReport::kTolerance};
    double error = 0, norm = 0, largest = 0;
    for (std::size_t i = 0; i < ours.size(); ++i) {
      const double a = static_cast<double>(ours[i]), b = static_cast<double>(expected[i]),
                   d = std::abs(a - b);
      result.largest = std::isnan(d) ? d : std::max(result.largest, d);
      largest = std::max(largest, std::abs(b));
      error += d * d;
      norm += b * b;
    }
    if (error != 0) {
      result.normalised = result.largest / largest;
      result.euclidean = std::sqrt(error / norm);
    }
    if (!(result.normalised <= result.limit))
      fail(fmt::format("{}: normalised error {:.3g} is above {:.3g}", what, result.normalised, result.limit));
  }

  void compare_gradients(VerifiedSession& session) {
    std::set<std::string, std::less<>> missing;
    for (std::size_t i = 0; i < io_.size(); ++i) {
      if (io_[i].name.starts_with("grad/")) missing.emplace(io_[i].name);
    }
    session.for_each_gradient([&](const std::string& name, const std::vector<float>& values) {
      const std::string reference = "grad/" + peft_name(name);
      compare("gradient of " + name, values, reference, report_.gradients.emplace_back());
      missing.erase(reference);
    });
    for (const std::string& name : missing) fail(fmt::format("{}: the parameter is not trained", name));
  }

  void steps(VerifiedSession& session) {
    const double rate = reference_.at("learning_rate");
    report_.reference_loss = reference_.at("loss");
    std::int64_t step = 0;
    for (const json& point : reference_.at("trajectory")) {
      const StepResult result = session.forward_backward();
      const double loss = point.at(0), norm = point.at(1);
      if (step == 0) {
        report_.loss = result.loss;
        check("loss", result.loss, report_.reference_loss, AdapterReport::kTolerance);
        compare_gradients(session);
      }
      report_.trajectory.push_back({result.loss, loss, result.gradient_norm, norm});
      check(fmt::format("loss after {} steps", step), result.loss, loss, AdapterReport::kTrajectoryTolerance);
      check(fmt::format("gradient norm after {} steps", step), result.gradient_norm, norm,
            AdapterReport::kTrajectoryTolerance);
      session.update(++step, rate, 0);
    }
  }

  // Compares the merged weights. Other weights must equal the base model's.
  void merged() {
    if (reference_.at("merged_minus_adapter_logits_max").is_string()) {
      try {
        read_model(model_, families_, [](const TensorSource&) {});
        fail("the adapters were merged, which PEFT refuses");
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::kUnsupported) throw;
      }
      return;
    }
    const SafetensorsFolder base = SafetensorsFolder::open(model_.path);
    read_model(model_, families_, [&](const TensorSource& source) {
      std::vector<std::byte> buffer;
      const auto bytes = source.read(0, source.bytes(), buffer);
      std::vector<float> values(bytes.size() / static_cast<std::size_t>(size_of(source.dtype)));
      to_float(source.dtype, bytes, values);
      if (io_.find("merged/" + source.name)) {
        compare("merged " + source.name, values, "merged/" + source.name, report_.merged.emplace_back());
      } else if (const auto before = base.find(source.name);
                 !before || !std::ranges::equal(before->data, bytes)) {
        fail(fmt::format("merged {}: the weight differs from the base model's", source.name));
      }
    });
  }

  void check(const std::string& what, double value, double reference, double limit) {
    if (std::abs(value - reference) <= limit * std::abs(reference)) return;
    fail(fmt::format("{}: {:.8g} differs from {:.8g} by more than {:.3g} relative", what, value, reference,
                     limit));
  }
  void fail(std::string text) { report_.failures.push_back(std::move(text)); }

  const json& reference_;
  const std::filesystem::path& folder_;
  const FamilyRegistry& families_;
  SafetensorsFile io_;
  ModelFolder model_;
  AdapterReport report_;
};

}  // namespace

std::vector<AdapterReport> verify_adapters(const std::filesystem::path& folder,
                                           const std::optional<std::string>& only,
                                           const FamilyRegistry& families,
                                           const std::function<std::unique_ptr<Device>()>& make_device) {
  const std::filesystem::path file = folder / "peft.json";
  const json cases = json::parse(read_file(file, kJsonLimit), nullptr, false);
  if (!cases.is_object()) throw invalid("the file is not a JSON object").at(file.string());
  if (only && !cases.contains(*only))
    throw invalid(fmt::format("there is no case '{}'", *only), "name a case of this file").at(file.string());
  std::vector<AdapterReport> reports;
  for (const auto& [name, reference] : cases.items()) {
    if (only && name != *only) continue;
    const std::filesystem::path adapters = folder / name;
    try {
      reports.push_back(Case(name, reference, adapters, families).run(make_device()));
    } catch (const json::exception& error) {
      throw invalid(
          fmt::format("case '{}' lacks a value: {}", name, error.what()),
          "a case needs loss, learning_rate, trajectory, merged_minus_adapter_logits_max and base_model")
          .at(file.string());
    }
  }
  return reports;
}

}  // namespace primus
