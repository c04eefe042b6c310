#include "lm/verify/verify_objective.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/files/file.h"
#include "base/text/json_text.h"
#include "config/trainer_config.h"
#include "lm/model/weights.h"
#include "lm/train/objectives/rules/dft_rule.h"
#include "lm/train/objectives/rules/policy_rule.h"
#include "lm/train/objectives/rules/ppo_rule.h"
#include "lm/train/objectives/rules/preference_rule.h"
#include "lm/verify/objective_cases.h"
#include "lm/verify/verified_session.h"
#include "lm/verify/verify_policy.h"
#include "lm/verify/verify_ppo.h"

namespace primus {
namespace {

using data::DocumentRole;
using nlohmann::json;

// How a batch marks the learned tokens.
enum class Marks : std::uint8_t {
  kMask,    // PREFIXcompletion_mask is 1
  kLabels,  // PREFIXlabels is not -100
  kNone,    // all tokens are learned
};

// Reads the texts PREFIXinput_ids. Tokens with PREFIXattention_mask 0 are padding.
std::vector<Text> texts_of(const SafetensorsFile& file, const std::string& prefix, Marks marks) {
  const auto ids = integers(file, prefix + "input_ids");
  const auto attention = integers(file, prefix + "attention_mask");
  const auto learned = marks == Marks::kNone
                           ? attention
                           : integers(file, prefix + (marks == Marks::kMask ? "completion_mask" : "labels"));
  if (attention.size() != ids.size() || learned.size() != ids.size())
    throw invalid("the masks of '" + prefix + "input_ids' have another number of rows").at(file.name());
  std::vector<Text> texts;
  for (std::size_t row = 0; row < ids.size(); ++row) {
    if (attention[row].size() != ids[row].size() || learned[row].size() != ids[row].size())
      throw invalid("the masks of '" + prefix + "input_ids' have another length").at(file.name());
    Text& text = texts.emplace_back();
    for (std::size_t t = 0; t < ids[row].size(); ++t) {
      if (attention[row][t] == 0) continue;
      text.ids.push_back(token_id(ids[row][t], file.name()));
      text.learned.push_back(marks == Marks::kLabels ? learned[row][t] >= 0 : learned[row][t] != 0);
    }
    if (text.ids.size() < 2) throw invalid("a text has fewer than two tokens").at(file.name());
  }
  if (texts.empty()) throw invalid("there are no texts").at(file.name());
  return texts;
}

// Puts each rejected text after its chosen text.
std::vector<Text> paired(std::vector<Text> chosen, std::vector<Text> rejected, const std::string& where) {
  if (chosen.size() != rejected.size())
    throw invalid("there are not as many rejected as chosen texts").at(where);
  std::vector<Text> texts;
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    chosen[i].role = DocumentRole::kChosen;
    rejected[i].role = DocumentRole::kRejected;
    texts.push_back(std::move(chosen[i]));
    texts.push_back(std::move(rejected[i]));
  }
  return texts;
}

// Returns the texts of pref_batch, whose first half is chosen and whose second half is rejected.
std::vector<Text> preference_texts(const SafetensorsFile& file) {
  std::vector<Text> all = texts_of(file, "", Marks::kMask);
  const auto middle = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
  return paired({all.begin(), middle}, {middle, all.end()}, file.name());
}

// Returns the texts of reward_batch: first the chosen texts, then the rejected texts. Every token counts as
// learned, because only the scores of last tokens matter.
std::vector<Text> scored_texts(const SafetensorsFile& file) {
  std::vector<Text> all = texts_of(file, "", Marks::kNone);
  const auto middle = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
  return paired({all.begin(), middle}, {middle, all.end()}, file.name());
}

std::vector<Text> single_texts(const SafetensorsFile& file) {
  std::vector<Text> texts = texts_of(file, "", Marks::kMask);
  const auto labels = integers(file, "label");
  if (labels.size() != texts.size())
    throw invalid("'label' does not have one entry for each text").at(file.name());
  for (std::size_t i = 0; i < texts.size(); ++i)
    texts[i].role = labels[i].front() != 0 ? DocumentRole::kChosen : DocumentRole::kRejected;
  for (Text& text : texts_of(file, "KL_", Marks::kMask)) {
    text.role = DocumentRole::kMismatched;
    texts.push_back(std::move(text));
  }
  return texts;
}

// A file of cases, and the objective of all its cases.
struct CaseFile {
  const char* name;
  const char* objective;  // null: depends on the case
};
constexpr CaseFile kFiles[] = {{"pref.json", nullptr}, {"sft.json", "sft"},   {"reward.json", "reward"},
                               {"grpo.json", "grpo"},  {"rloo.json", "rloo"}, {"ppo.json", "ppo"}};

// Returns the objective of a case of pref.json, which does not name its trainer. Only DPO's settings list
// loss types, and each other trainer logs a metric that only this trainer logs.
std::string preference_objective(const json& at) {
  if (at.at("settings").contains("loss_types")) return "dpo";
  const json metrics = at.value("metrics", json::object());
  if (metrics.contains("kl")) return "kto";
  if (metrics.contains("log_odds_ratio")) return "orpo";
  if (metrics.contains("nll_loss")) return "cpo";
  return "unknown";
}

// The objective and the texts of a case.
struct Plan {
  std::vector<Text> texts;
  std::string where, policy = "policy", reference = "reference";
  std::optional<PreferenceSettings> preferences;
  std::optional<PolicySettings> policy_gradient;
  json margins = {};  // reward: one margin for each pair, or null
  bool dft = false;   // sft: the loss is that of dynamic fine-tuning
};

// Reads the settings of a preference case. Returns the name of a setting that has no meaning here, or "".
std::string read_settings(const json& settings, Plan& plan) {
  PreferenceSettings& to = *plan.preferences;
  for (const auto& [key, value] : settings.items()) {
    if (key == "loss_types") {
      to.loss_types = value.get<std::vector<std::string>>();
    } else if (key == "loss_type") {
      to.loss_types = {value.get<std::string>()};
    } else if (key == "loss_weights") {
      to.loss_weights = value.get<std::vector<double>>();
    } else if (key == "beta") {
      to.beta = value;
    } else if (key == "label_smoothing") {
      to.label_smoothing = value;
    } else if (key == "discopop_tau") {
      to.discopop_tau = value;
    } else if (key == "ld_alpha") {
      if (!value.is_null()) to.ld_alpha = value.get<double>();
    } else if (key == "f_divergence_type") {
      to.f_divergence_type = value;
    } else if (key == "f_alpha_divergence_coef") {
      to.f_alpha_divergence_coef = value;
    } else if (key == "use_weighting") {
      to.use_weighting = value;
    } else if (key == "desirable_weight") {
      to.desirable_weight = value;
    } else if (key == "undesirable_weight") {
      to.undesirable_weight = value;
    } else if (key == "simpo_gamma") {
      to.simpo_gamma = value;
    } else if (key == "cpo_alpha") {
      to.cpo_alpha = value;
    } else if (key == "center_rewards_coefficient") {
      to.center_rewards_coefficient = value;
    } else if (key == "margins") {
      plan.margins = value;
    } else if (key == "policy") {
      plan.policy = value;
    } else if (key == "reference") {
      plan.reference = value;
    } else {
      return key;
    }
  }
  return {};
}

double norm_of(const std::vector<float>& values) {
  double sum = 0;
  for (const float v : values) sum += static_cast<double>(v) * static_cast<double>(v);
  return std::sqrt(sum);
}

// Returns the settings of a session that trains `model` on `batch`.
SessionSettings settings_of(const ModelConfig& model, const data::Batch& batch) {
  SessionSettings settings;
  settings.model = model;
  settings.step = {.micro_batch = 1,
                   .sequence = static_cast<std::int64_t>(batch.tokens.size()),
                   .microbatches = 1,
                   .packed_documents = true};
  return settings;
}

// Keeps the weights of the mask, and stores -ln p(label) of every token.
class LossRecorder final : public LossRule {
 public:
  explicit LossRecorder(std::vector<float>& losses) : losses_(losses) {}
  void weigh(const TokenLosses& tokens) override {
    if (!tokens.rank.measuring()) losses_ = download(tokens.rank, tokens.losses);
  }

 private:
  std::vector<float>& losses_;
};

class Verifier {
 public:
  Verifier(const VerifyObjectiveOptions& options, const FamilyRegistry& families,
           const std::function<std::unique_ptr<Device>()>& make_device)
      : options_(options), families_(families), make_device_(make_device) {}

  // Lists the selected cases.
  std::vector<ObjectiveCase> cases() {
    std::vector<ObjectiveCase> all;
    for (const CaseFile& file : kFiles) {
      const std::filesystem::path path = options_.folder / file.name;
      if (!Env::posix().status(path)) continue;
      const json& content = files_[file.name] = parse_json_object(read_file(path, 64U << 20), path.string());
      read(file.name, [&] {
        for (const auto& [name, at] : content.at("cases").items())
          all.push_back({file.name, file.objective ? file.objective : preference_objective(at), name});
      });
      if (std::string_view(file.name) == "pref.json") all.push_back({file.name, "dpo", kLogProbs});
      if (std::string_view(file.name) == "grpo.json") all.push_back({file.name, "grpo", kLogProbs});
    }
    if (all.empty()) {
      throw invalid("the folder has no file with cases, such as pref.json",
                    "give a folder with references of post-training")
          .at(options_.folder.string());
    }
    select(all, options_.cases, "case", &ObjectiveCase::name);
    select(all, options_.objectives, "objective", &ObjectiveCase::objective);
    if (all.empty()) throw invalid("no case has both the chosen name and the chosen objective");
    return all;
  }

  void run(ObjectiveCase& c) {
    read(c.file, [&] {
      if (c.name == kLogProbs) return c.objective == "grpo" ? answer_log_probs(c) : log_probs(c);
      if (c.objective == "ppo") return ppo(c);
      const json& at = files_.at(c.file).at("cases").at(c.name);
      const std::optional<Plan> plan = plan_of(c, at);
      if (plan) train(c, at, *plan);
    });
  }

 private:
  static constexpr const char* kLogProbs = "log-probabilities";

  void select(std::vector<ObjectiveCase>& all, const std::vector<std::string>& wanted, std::string_view what,
              std::string ObjectiveCase::*member) const {
    if (wanted.empty()) return;
    std::set<std::string> known;
    for (const ObjectiveCase& c : all) known.insert(c.*member);
    for (const std::string& name : wanted) {
      if (!known.contains(name)) {
        throw invalid(fmt::format("there is no {} '{}' in the folder", what, name),
                      fmt::format("choose {}", fmt::join(known, ", ")))
            .at(options_.folder.string());
      }
    }
    std::erase_if(
        all, [&](const ObjectiveCase& c) { return std::ranges::find(wanted, c.*member) == wanted.end(); });
  }

  // Runs `work`, which reads the JSON file. Reports missing and wrong values with the file's name.
  template <class Work>
  void read(const std::string& file, const Work& work) const {
    try {
      work();
    } catch (const json::exception& error) {
      throw invalid(std::string("a value is missing or has another type: ") + error.what(),
                    "give a folder in the format of this command")
          .at((options_.folder / file).string());
    }
  }

  SafetensorsFile tensors(const std::string& name) const {
    return SafetensorsFile::open(options_.folder / (name + ".safetensors"));
  }
  std::filesystem::path model_folder(const std::string& name) const {
    return options_.folder / "model" / name;
  }
  ModelConfig model_config(const std::string& name) const {
    const std::filesystem::path path = model_folder(name) / "config.json";
    ModelConfig model = read_model_config(read_file(path, 16U << 20), path.string(), families_);
    model.moe.training = {};  // references are gradients of only the objective's loss
    return model;
  }

  // Returns what to train. If the case needs something that is not built, sets why_not_built.
  std::optional<Plan> plan_of(ObjectiveCase& c, const json& at) {
    Plan plan;
    const auto from = [&](const std::string& file, const auto& read_texts) {
      const SafetensorsFile batch = tensors(file);
      plan.where = batch.name();
      plan.texts = read_texts(batch);
    };
    if (c.objective == "sft") {
      const json& settings = at.at("settings");
      const std::string loss = settings.value("loss_type", "nll");
      plan.dft = loss == "dft";
      if (!plan.dft && loss != "nll") {
        c.why_not_built = fmt::format("the loss '{}' is not built", loss);
        return std::nullopt;
      }
      const bool whole = c.name.starts_with("whole_text");
      from(whole ? "sft_whole_text_batch" : "sft_completion_only_batch",
           [](const SafetensorsFile& file) { return texts_of(file, "", Marks::kLabels); });
      return plan;
    }
    if (c.objective == "grpo" || c.objective == "rloo") {
      PolicyCase policy = read_policy_case(c, files_.at(c.file), tensors("rl_batch"), tensors("grpo_tensors"),
                                           options_.tolerance);
      if (!c.why_not_built.empty()) return std::nullopt;
      return Plan{.texts = std::move(policy.texts),
                  .where = tensors("rl_batch").name(),
                  .preferences = {},
                  .policy_gradient = policy.settings};
    }
    plan.preferences.emplace();
    if (c.objective == "dpo") {
      plan.preferences->method = PreferenceMethod::kDpo;
      from("pref_batch", preference_texts);
    } else if (c.objective == "kto") {
      plan.preferences->method = PreferenceMethod::kKto;
      from("kto_batch", single_texts);
    } else if (c.objective == "orpo" || c.objective == "cpo") {
      plan.preferences->method = c.objective == "orpo" ? PreferenceMethod::kOrpo : PreferenceMethod::kCpo;
      from(c.objective + "_batch", [](const SafetensorsFile& file) {
        return paired(texts_of(file, "chosen_", Marks::kLabels), texts_of(file, "rejected_", Marks::kLabels),
                      file.name());
      });
    } else if (c.objective == "reward") {
      plan.policy = "reward";
      plan.preferences->method = PreferenceMethod::kReward;
      from("reward_batch", scored_texts);
    } else {
      c.why_not_built = "this objective is not built";
      return std::nullopt;
    }
    const std::string unknown = read_settings(at.at("settings"), plan);
    if (!unknown.empty()) {
      c.why_not_built = fmt::format("the setting '{}' is not built", unknown);
      return std::nullopt;
    }
    try {
      check_preferences(*plan.preferences);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kUnsupported) throw;
      c.why_not_built = error.what();
      return std::nullopt;
    }
    return plan;
  }

  void train(ObjectiveCase& c, const json& at, const Plan& plan) {
    const double temperature = plan.policy_gradient ? plan.policy_gradient->temperature : 1;
    const ModelConfig model = with_temperature(model_config(plan.policy), temperature);
    data::Batch batch = batch_of(plan.texts, model.vocab, plan.where);
    set_margins(plan, batch);
    SessionSettings settings = settings_of(model, batch);
    const json adamw = files_.at(c.file).value("adamw", json::object());
    config::TrainerConfig adam;
    adam.adam_beta1 = adamw.value("betas", std::vector<double>{0.9, 0.999}).at(0);
    adam.adam_beta2 = adamw.value("betas", std::vector<double>{0.9, 0.999}).at(1);
    adam.adam_eps = adamw.value("eps", 1e-8);
    settings.optimizer = {.rules = update_rules_of(adam), .clip_norm = 0, .decay_all_parameters = false};
    const LoadReference load_reference = [&](TrainingSession& session, ModelInstance& reference) {
      load_weights(SafetensorsFolder::open(model_folder(plan.reference)), reference.store(), session.rank());
    };
    if (plan.dft) settings.loss_rule = dft_rule();
    if (plan.preferences) settings.loss_rule = preference_rule(*plan.preferences, load_reference);
    if (plan.policy_gradient) settings.loss_rule = policy_rule(*plan.policy_gradient, load_reference);
    VerifiedSession session(make_device_(), settings, families_,
                            SafetensorsFolder::open(model_folder(plan.policy)), batch);
    const StepResult first = session.forward_backward();
    if (at.contains("scores_chosen")) scores(c, at, plan, batch);
    compare_number(c, "loss", first.loss, at.at("loss"), options_.tolerance);
    json metrics = at.value("metrics", json::object());
    metrics.update(at.value("scoring_metrics", json::object()));
    for (const auto& [name, value] : first.metrics) {
      if (metrics.contains(name)) compare_number(c, name, value, metrics.at(name), options_.tolerance);
    }
    compare_norm(c, "gradient norm", first.gradient_norm, at.at("grad_norm"), options_.tolerance);
    gradients(c, at, session);
    std::size_t step = 0;
    // A quantile of the entropies chooses tokens. After an update, rounding may choose other tokens.
    const bool chooses = plan.policy_gradient && plan.policy_gradient->entropy.top_quantile < 1;
    for (const json& point : at.value("trajectory", json::array())) {
      if (chooses && step == 1) break;
      const StepResult result = step == 0 ? first : session.forward_backward();
      ++step;
      compare_number(c, fmt::format("step {}: loss", step), result.loss, point.at(0),
                     options_.trajectory_tolerance);
      compare_norm(c, fmt::format("step {}: gradient norm", step), result.gradient_norm, point.at(1),
                   options_.trajectory_tolerance);
      session.update(static_cast<std::int64_t>(step), files_.at(c.file).at("learning_rate"),
                     adamw.value("weight_decay", 0.0));
    }
  }

  // Stores the margin of each pair as the value of its chosen text.
  static void set_margins(const Plan& plan, data::Batch& batch) {
    if (plan.margins.is_null()) return;
    if (2 * plan.margins.size() != batch.document_values.size())
      throw invalid("there is not one margin for each pair").at(plan.where);
    for (std::size_t pair = 0; pair < plan.margins.size(); ++pair)
      batch.document_values[2 * pair] = plan.margins.at(pair);
  }

  // Compares the scores of the last tokens.
  void scores(ObjectiveCase& c, const json& at, const Plan& plan, const data::Batch& batch) {
    const std::vector<float> all = losses_of(plan.policy, model_config(plan.policy), batch);
    for (std::size_t d = 0; d + 1 < batch.document_starts.size(); ++d) {
      const char* const key = d % 2 == 0 ? "scores_chosen" : "scores_rejected";
      const float score = all[static_cast<std::size_t>(batch.document_starts[d + 1]) - 1];
      compare_number(c, fmt::format("{} {}", key, d / 2), static_cast<double>(score), at.at(key).at(d / 2),
                     options_.tolerance);
    }
  }

  void gradients(ObjectiveCase& c, const json& at, VerifiedSession& session) {
    const std::string objective = c.file.substr(0, c.file.find('.'));
    const std::string file = objective + (objective == "grpo" ? "_tensors" : "_grads");
    const SafetensorsFile reference = tensors(file);
    const json norms = at.value("grad_norms", json::object());
    session.for_each_gradient([&](const std::string& name, const std::vector<float>& values) {
      if (norms.contains(name))
        compare_norm(c, "gradient norm of " + name, norm_of(values), norms.at(name), options_.tolerance);
      if (reference.find(c.name + "/" + name))
        compare_tensor(c, "gradient of " + name, values, reference, c.name + "/" + name, options_.tolerance);
    });
  }

  // Compares the log-probabilities of every token and every answer, under the policy and the reference.
  void log_probs(ObjectiveCase& c) {
    const json& file = files_.at(c.file);
    const SafetensorsFile reference = tensors("pref_grads");
    const SafetensorsFile inputs = tensors("pref_batch");
    const std::vector<Text> texts = texts_of(inputs, "", Marks::kMask);
    for (const std::string model : {"policy", "reference"}) {
      const ModelConfig config = model_config(model);
      const data::Batch batch = batch_of(texts, config.vocab, inputs.name());
      const std::vector<float> losses = losses_of(model, config, batch);
      const std::size_t columns = integers(inputs, "input_ids").front().size() - 1;
      std::vector<float> all(texts.size() * columns, 0.0F);
      for (std::size_t row = 0; row < texts.size(); ++row) {
        double sum = 0;
        const auto begin = static_cast<std::size_t>(batch.document_starts[row]);
        for (std::size_t t = 0; t + 1 < texts[row].ids.size(); ++t) {
          if (batch.loss_mask[begin + t] == 0) continue;
          all[row * columns + t] = -losses[begin + t];
          sum -= static_cast<double>(losses[begin + t]);
        }
        const bool chosen = row < texts.size() / 2;
        const std::string key = model + (chosen ? "_chosen_logps" : "_rejected_logps");
        const std::size_t pair = chosen ? row : row - texts.size() / 2;
        if (file.contains(key))
          compare_number(c, fmt::format("{} {}", key, pair), sum, file.at(key).at(pair), options_.tolerance);
      }
      const std::string name = model + "_per_token_logps";
      if (reference.find(name)) compare_tensor(c, name, all, reference, name, options_.tolerance);
    }
  }

  // Compares the log-probabilities of every answer token, under the policy and the reference.
  void answer_log_probs(ObjectiveCase& c) {
    const SafetensorsFile inputs = tensors("rl_batch"), reference = tensors("grpo_tensors");
    const std::vector<Text> texts = answer_texts(inputs);
    for (const auto& [model, prefix] : {std::pair("policy", "policy"), std::pair("reference", "ref")}) {
      const ModelConfig config = model_config(model);
      const data::Batch batch = batch_of(texts, config.vocab, inputs.name());
      const std::vector<float> losses = losses_of(model, config, batch);
      const std::string name = std::string(prefix) + "_per_token_logps";
      const auto values = numbers(reference, name);
      for (std::size_t row = 0; row < texts.size(); ++row) {
        std::size_t column = 0;
        for (auto t = static_cast<std::size_t>(batch.document_starts[row]);
             t < static_cast<std::size_t>(batch.document_starts[row + 1]); ++t) {
          if (batch.loss_mask[t] == 0) continue;
          compare_number(c, fmt::format("{} {} {}", name, row, column), static_cast<double>(-losses[t]),
                         static_cast<double>(values.at(row).at(column)), options_.tolerance);
          ++column;
        }
      }
    }
  }

  // Compares the scores of the answers, the estimates of their tokens, and the steps that learn from them.
  void ppo(ObjectiveCase& c) {
    const json& file = files_.at(c.file);
    const SafetensorsFile reference = tensors("ppo_tensors");
    PpoCase ppo = read_ppo_case(c, file, tensors("ppo_batch"));
    if (!c.why_not_built.empty()) return;
    const ModelConfig policy = with_temperature(model_config("policy"), ppo.temperature);
    score_answers(c, ppo, reference);
    SessionSettings settings = settings_of(policy, batch_of(ppo.texts, policy.vocab, reference.name()));
    settings.optimizer = optimizer_of_ppo();
    settings.loss_rule = ppo_rule(
        ppo.settings,
        [&](TrainingSession& session, ModelInstance& model) {
          load_weights(SafetensorsFolder::open(model_folder("reference")), model.store(), session.rank());
        },
        {.config = [&](const ModelConfig&) { return model_config("value"); },
         .load =
             [&](TrainingSession& session, ModelInstance& model) {
               load_weights(SafetensorsFolder::open(model_folder("value")), model.store(), session.rank());
             }});
    VerifiedSession session(make_device_(), settings, families_,
                            SafetensorsFolder::open(model_folder("policy")),
                            batch_of(ppo.texts, policy.vocab, reference.name()));
    std::int64_t step = 0;
    for (const json& point : file.at("cases").at(c.name).at("steps")) {
      const StepResult result = session.forward_backward();
      const double limit = step == 0 ? options_.tolerance : options_.trajectory_tolerance;
      if (step++ == 0) {
        compare_estimates(c, file, dynamic_cast<PpoRule&>(*session.session().rule()).answers(), reference,
                          options_.tolerance);
        compare_gradients(c, session, reference, options_.tolerance);
      }
      const auto compare = [&](const char* name, double value, const char* key) {
        compare_number(c, fmt::format("step {}: {}", step, name), value, point.at(key), limit);
      };
      compare("loss", result.loss, "loss");
      for (const auto& [name, value] : result.metrics) {
        if (name == "policy_loss" || name == "value_loss") compare(name.c_str(), value, name.c_str());
        if (name == "value_clip_ratio") compare("value_clip_ratio", value, "value_clip_fraction");
      }
      compare_norm(c, fmt::format("step {}: gradient norm", step), result.gradient_norm,
                   point.at("grad_norm"), limit);
      session.update(step, ppo.learning_rate, 0);
    }
  }

  // Scores the answers with the reward model, compares the scores, and stores them as values of the texts.
  void score_answers(ObjectiveCase& c, PpoCase& ppo, const SafetensorsFile& reference) {
    const ModelConfig reward = model_config("ppo_reward");
    const data::Batch batch = batch_of(ppo.texts, reward.vocab, reference.name());
    const std::vector<float> all = losses_of("ppo_reward", reward, batch);
    constexpr std::int32_t kEnd = 2;  // the token that ends an answer
    std::vector<float> scores;
    for (std::size_t a = 0; a < ppo.texts.size(); ++a) {
      Text& text = ppo.texts[a];
      text.value = all[static_cast<std::size_t>(batch.document_starts[a + 1]) - 1];
      if (text.ids.back() != kEnd) text.value -= static_cast<float>(ppo.missing_eos_penalty);
      scores.push_back(text.value);
    }
    compare_tensor(c, "scores", scores, reference, c.name + "/scores", options_.tolerance);
  }

  std::vector<float> losses_of(const std::string& model, const ModelConfig& config,
                               const data::Batch& batch) {
    std::vector<float> losses;
    SessionSettings settings = settings_of(config, batch);
    settings.loss_rule = [&losses] { return std::make_unique<LossRecorder>(losses); };
    VerifiedSession(make_device_(), settings, families_, SafetensorsFolder::open(model_folder(model)), batch)
        .forward_backward();
    return losses;
  }

  const VerifyObjectiveOptions& options_;
  const FamilyRegistry& families_;
  const std::function<std::unique_ptr<Device>()>& make_device_;
  std::map<std::string, json> files_;
};

}  // namespace

bool ObjectiveCase::passed() const {
  return why_not_built.empty() && !checks.empty() &&
         std::ranges::all_of(checks, [](const ObjectiveCheck& check) { return check.passed(); });
}

bool ObjectiveReport::passed() const {
  return !cases.empty() && std::ranges::all_of(cases, [](const ObjectiveCase& c) { return c.passed(); });
}

ObjectiveReport verify_objectives(const VerifyObjectiveOptions& options, const FamilyRegistry& families,
                                  const std::function<std::unique_ptr<Device>()>& make_device,
                                  const std::function<void(const ObjectiveCase&)>& progress) {
  Verifier verifier(options, families, make_device);
  ObjectiveReport report{verifier.cases()};
  for (ObjectiveCase& c : report.cases) {
    if (progress) progress(c);
    verifier.run(c);
  }
  return report;
}

}  // namespace primus
