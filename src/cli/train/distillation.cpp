// primus train distill
#include "cli/command.h"
#include "cli/train/stage_command.h"

namespace primus::cli {

extern const CommandEntry kTrainDistill{
    "train distill",
    "Fine-tunes a small model by the probabilities of a larger one (stage: distill)",
    "For each token of the answers, the trained model (load) learns the probabilities that a teacher gives "
    "to all tokens of the vocabulary. The data are the conversations of 'train posttrain'. The teacher must "
    "have the same tokenizer. It may have another architecture, and adapters. It is loaded next to the "
    "trained model and divided over the same ranks.\n\nbeta chooses the divergence: 0 is KL(teacher || "
    "student), 1 is KL(student || teacher), and 0.5 is the Jensen-Shannon divergence. temperature divides "
    "the logits of both models. distillation_label_share=0.5 learns the tokens of the data for half of the "
    "loss. distillation_on_policy_share=1 is on-policy distillation: the trained model answers the prompts "
    "of the data in each step, and the teacher scores these answers. Options, output folder, resuming and "
    "defaults are those of 'train posttrain'; docs/posttrain.md (Distill) has an example.",
    "primus train distill load=path/to/small teacher=path/to/large data=train.jsonl\n"
    "primus train distill load=path/to/small teacher=path/to/large data=train.jsonl beta=0 temperature=2\n"
    "primus train distill load=path/to/small teacher=path/to/large data=prompts.jsonl "
    "distillation_on_policy_share=1 beta=1\n"
    "primus train distill --config exp.yaml --nproc 2",
    [] { return make_stage_command("distill"); },
    {Section::kTrain, 4},
    true};

}  // namespace primus::cli
