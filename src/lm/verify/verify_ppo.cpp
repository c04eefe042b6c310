#include "lm/verify/verify_ppo.h"

#include <fmt/format.h>

#include <functional>
#include <string>

#include "base/error.h"
#include "config/trainer_config.h"

namespace primus {
namespace {

using nlohmann::json;

// Reads the settings of a case. Returns the name of a setting that is not built, or "".
std::string read_settings(const json& settings, PpoCase& to) {
  for (const auto& [key, value] : settings.items()) {
    if (key == "kl_coef") {
      to.settings.kl_coef = value;
    } else if (key == "kl_estimator") {
      to.settings.kl_estimator = value;
    } else if (key == "cliprange") {
      to.settings.cliprange = value;
    } else if (key == "cliprange_value") {
      to.settings.cliprange_value = value;
    } else if (key == "vf_coef") {
      to.settings.vf_coef = value;
    } else if (key == "gamma") {
      to.settings.gamma = value;
    } else if (key == "lam") {
      to.settings.lam = value;
    } else if (key == "whiten_rewards") {
      to.settings.whiten_rewards = value;
    } else if (key == "missing_eos_penalty") {
      if (!value.is_null()) to.missing_eos_penalty = value;
    } else if (key == "temperature") {
      to.temperature = value;
    } else if (key == "learning_rate") {
      to.learning_rate = value;
    } else {
      return key;
    }
  }
  return {};
}

}  // namespace

PpoCase read_ppo_case(ObjectiveCase& c, const json& file, const SafetensorsFile& batch) {
  PpoCase out;
  out.learning_rate = file.at("learning_rate");
  out.settings.max_completion_length = file.at("response_length");
  const std::string unknown = read_settings(file.at("cases").at(c.name).at("settings"), out);
  if (!unknown.empty()) {
    c.why_not_built = fmt::format("the setting '{}' is not built", unknown);
    return out;
  }
  const json &prompts = file.at("prompts"), &answers = file.at("completions");
  for (std::size_t a = 0; a < prompts.size(); ++a) {
    Text& text = out.texts.emplace_back();
    text.role = data::DocumentRole::kAnswer;
    for (const json& id : prompts.at(a)) text.ids.push_back(token_id(id, batch.name()));
    text.learned.assign(text.ids.size(), false);
    for (const json& id : answers.at(a)) text.ids.push_back(token_id(id, batch.name()));
    text.learned.resize(text.ids.size(), true);
  }
  if (out.texts.empty()) throw invalid("there are no answers").at(batch.name());
  return out;
}

void compare_estimates(ObjectiveCase& c, const json& file, std::span<const PpoAnswer> answers,
                       const SafetensorsFile& tensors, double tolerance) {
  const std::size_t columns = file.at("response_length");
  if (answers.size() != file.at("completions").size())
    throw invalid("there are not as many results as answers").at(tensors.name());
  const auto compare = [&](const std::string& name, float padding,
                           const std::function<std::vector<double>(const PpoAnswer&)>& of) {
    std::vector<float> all;
    for (const PpoAnswer& answer : answers) {
      std::vector<double> row = of(answer);
      row.resize(columns, static_cast<double>(padding));
      for (const double x : row) all.push_back(static_cast<float>(x));
    }
    compare_tensor(c, name, all, tensors, fmt::format("{}/{}", c.name, name), tolerance);
  };
  // The reference marks padding with the log-probability 1.
  compare("logprobs", 1, [](const PpoAnswer& a) { return a.log_probs; });
  compare("ref_logprobs", 1, [](const PpoAnswer& a) { return a.reference; });
  compare("values", 0, [](const PpoAnswer& a) { return a.values; });
  compare("rewards", 0, [](const PpoAnswer& a) { return a.rewards; });
  compare("returns", 0, [](const PpoAnswer& a) { return a.returns; });
  compare("raw_advantages", 0, [](const PpoAnswer& a) {
    std::vector<double> raw = a.returns;
    for (std::size_t t = 0; t < raw.size(); ++t) raw[t] -= a.values[t];
    return raw;
  });
  compare("advantages", 0, [](const PpoAnswer& a) {
    std::vector<double> own = a.advantages;
    own.resize(a.log_probs.size());
    return own;
  });
}

void compare_gradients(ObjectiveCase& c, VerifiedSession& session, const SafetensorsFile& tensors,
                       double tolerance) {
  const auto compare = [&](engine::ParameterStore& store, const std::string& model) {
    session.for_each_gradient(store, [&](const std::string& name, const std::vector<float>& values) {
      const std::string key = fmt::format("{}/{}.{}", c.name, model, name);
      if (tensors.find(key))
        compare_tensor(c, fmt::format("gradient of {}.{}", model, name), values, tensors, key, tolerance);
    });
  };
  compare(session.session().store(), "policy");
  compare(session.session().second().store(), "value_model");
}

OptimizerSettings optimizer_of_ppo() {
  config::TrainerConfig adam;
  adam.adam_beta1 = 0.9;
  adam.adam_beta2 = 0.999;
  adam.adam_eps = 1e-8;
  return {.rules = update_rules_of(adam), .clip_norm = 0, .decay_all_parameters = false};
}

}  // namespace primus
