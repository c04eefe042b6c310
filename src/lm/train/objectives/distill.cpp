// Distillation: fine-tunes on conversations by the probabilities of a teacher.
#include "lm/train/objectives/conversation_objective.h"
#include "lm/train/objectives/distillation_rule.h"
#include "lm/train/objectives/sft.h"

namespace primus {
namespace {

class Distillation final : public ConversationLearning {
 public:
  void prepare(config::Experiment& experiment) const override { distillation_settings_of(experiment); }
  MakeLossRule loss_rule(const config::Experiment& experiment) const override {
    return distillation_rule(distillation_settings_of(experiment));
  }
  void check_tokenizer(const config::Experiment& experiment, const Tokenizer& tokenizer) const override {
    check_teacher_tokenizer(experiment, tokenizer);
  }
};

}  // namespace

extern const ObjectiveEntry kStageDistill{
    .stage = {.name = "distill",
              .meaning =
                  "which learns the probabilities that a teacher gives to the answers of conversations",
              .material = config::Material::kConversations,
              .fine_tunes = true,
              .default_beta = 0.5},
    .make = [] { return make_fine_tuning(std::make_unique<Distillation>()); }};

}  // namespace primus
