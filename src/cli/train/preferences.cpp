// primus train dpo, train kto, train orpo, train cpo and train reward
#include "cli/command.h"
#include "cli/train/stage_command.h"

namespace primus::cli {

extern const CommandEntry kTrainDpo{
    "train dpo",
    "Trains a language model to prefer one of two answers (stage: dpo)",
    "Direct preference optimization. The data are pairs: {\"prompt\": ..., \"chosen\": ..., \"rejected\": "
    "...} per line, as texts or as lists of messages (docs/formats/conversations.md). The run makes chosen "
    "answers likelier and rejected answers less likely, compared with the model at its start. With LoRA, "
    "this "
    "reference is the base model without adapters; without LoRA, the run loads the model a second time. beta "
    "limits the distance from the reference, and loss_type chooses a variant (ipo, hinge, apo_zero, ...).\n\n"
    "The metrics rewards/accuracies (share of pairs in which the chosen answer has the higher reward) and "
    "rewards/margins show progress (docs/posttrain.md, Align). Options, output folder and resuming are those "
    "of 'train pretrain'. --skip-bad leaves broken records out and counts them.\n\n"
    "Without --config, load=FOLDER names the model and data=FILE the pairs. Primus then chooses batch, "
    "epochs "
    "and lr from the number of pairs and the model's size (sft_fit_to_data), unless the command line sets "
    "them.",
    "primus train dpo load=path/to/model data=pairs.jsonl\n"
    "primus train dpo load=path/to/model data=pairs.jsonl lora='{enabled: true, dim: 16}' exp_name=my-lora\n"
    "primus train dpo load=path/to/model data=pairs.jsonl beta=0.3 loss_type=ipo --epochs 2\n"
    "primus train dpo --config exp.yaml --nproc 4",
    [] { return make_stage_command("dpo"); },
    {Section::kTrain, 4},
    true};

extern const CommandEntry kTrainKto{
    "train kto",
    "Trains a language model on answers labelled good or bad (stage: kto)",
    "Kahneman-Tversky optimization, for data without pairs: {\"prompt\": ..., \"completion\": ..., "
    "\"label\": true} per line. Pairs are accepted, too; each becomes a good and a bad answer. "
    "desirable_weight and undesirable_weight balance unequal numbers of good and bad answers. The reference "
    "model, options and defaults are those of 'train dpo'.",
    "primus train kto load=path/to/model data=labelled.jsonl\n"
    "primus train kto load=path/to/model data=labelled.jsonl undesirable_weight=0.5\n"
    "primus train kto --config exp.yaml",
    [] { return make_stage_command("kto"); },
    {Section::kTrain, 5},
    true};

extern const CommandEntry kTrainOrpo{
    "train orpo",
    "Fine-tunes on chosen answers and prefers them to rejected ones (stage: orpo)",
    "Odds-ratio preference optimization: one stage instead of fine-tuning and DPO, without a reference "
    "model. Data (pairs), options and defaults are those of 'train dpo'. beta is the weight of the "
    "comparison; the loss of the chosen answers has the weight 1.",
    "primus train orpo load=path/to/model data=pairs.jsonl\n"
    "primus train orpo load=path/to/model data=pairs.jsonl beta=0.2\n"
    "primus train orpo --config exp.yaml",
    [] { return make_stage_command("orpo"); },
    {Section::kTrain, 6},
    true};

extern const CommandEntry kTrainCpo{
    "train cpo",
    "Prefers chosen answers without a reference model: CPO and SimPO (stage: cpo)",
    "Contrastive preference optimization. Data (pairs), options and defaults are those of 'train dpo'. "
    "loss_type=simpo cpo_alpha=0 is SimPO, with the margin simpo_gamma.",
    "primus train cpo load=path/to/model data=pairs.jsonl\n"
    "primus train cpo load=path/to/model data=pairs.jsonl loss_type=simpo cpo_alpha=0 beta=2\n"
    "primus train cpo --config exp.yaml",
    [] { return make_stage_command("cpo"); },
    {Section::kTrain, 7},
    true};

extern const CommandEntry kTrainReward{
    "train reward",
    "Trains a model that scores texts, from pairs of answers (stage: reward)",
    "The data are the pairs of 'train dpo'; the key margin of a record is the number by which the score of "
    "the "
    "chosen answer should exceed the score of the rejected answer. load names a language model, whose head "
    "is "
    "replaced by a new one with one output, or a reward model. The result is a folder for transformers' "
    "AutoModelForSequenceClassification. The loss is that of the Bradley-Terry model; "
    "center_rewards_coefficient keeps scores near 0. The metric accuracy is the share of pairs in which the "
    "chosen answer has the higher score. Options and defaults are those of 'train dpo'.",
    "primus train reward load=path/to/model data=pairs.jsonl\n"
    "primus train reward load=path/to/model data=pairs.jsonl center_rewards_coefficient=0.01\n"
    "primus train reward --config exp.yaml",
    [] { return make_stage_command("reward"); },
    {Section::kTrain, 7},
    true};

}  // namespace primus::cli
