// primus train grpo, train rloo and train ppo
#include "cli/command.h"
#include "cli/train/stage_command.h"

namespace primus::cli {

extern const CommandEntry kTrainGrpo{
    "train grpo",
    "Trains a language model by rewards for its own answers (stage: grpo)",
    "Group-relative policy optimization. The data are prompts, {\"prompt\": ..., \"answer\": ...} per line, "
    "as "
    "texts or as lists of messages (docs/formats/conversations.md). In each step, the model generates "
    "num_generations answers to each prompt. The reward functions score the answers (docs/rewards.md). The "
    "step makes answers that score above the mean of their group likelier, and the other answers less "
    "likely.\n\n"
    "reward=exact:answer compares an answer with the column 'answer' of its record; "
    "reward=program:./reward.py "
    "runs a program; reward=model:FOLDER is the score of a reward model. global_batch_size counts answers "
    "per step, max_completion_length limits their tokens, "
    "loss_type chooses a variant (dapo, grpo, dr_grpo, cispo, ...), and beta above 0 keeps the model close "
    "to "
    "the model at its start. dynamic_sampling=true replaces groups whose rewards are equal by groups for the "
    "next prompts (DAPO). max_staleness=N computes rewards while the run trains, and learns from answers of "
    "weights that are up to N updates older.\n\n"
    "docs/posttrain.md (Reinforcement learning) names the metrics to watch. Options, output folder and "
    "resuming are those of 'train pretrain'. --skip-bad leaves broken records out and counts them. "
    "Without "
    "--config, load=FOLDER names the model and data=FILE the prompts, and the run takes one pass over the "
    "prompts with the settings of grpo_trainer.yaml.",
    "primus train grpo load=path/to/model data=prompts.jsonl reward=exact:answer\n"
    "primus train grpo load=path/to/model data=prompts.jsonl reward=number:answer lr=2e-6 "
    "max_completion_length=512 seq_length=1024\n"
    "primus train grpo load=path/to/model data=prompts.jsonl reward='[exact:answer, format:think]' "
    "reward_weights='[1, 0.2]'\n"
    "primus train grpo load=path/to/model data=prompts.jsonl reward=program:./reward.py lora='{enabled: "
    "true, "
    "dim: 16}' lr=1e-5 exp_name=my-lora\n"
    "primus train grpo load=path/to/model data=prompts.jsonl reward=exact:answer --dry-run\n"
    "primus train grpo --config exp.yaml --nproc 4",
    [] { return make_stage_command("grpo"); },
    {Section::kTrain, 8},
    true};

extern const CommandEntry kTrainRloo{
    "train rloo",
    "Trains by rewards, compared with the other answers to the prompt (stage: rloo)",
    "REINFORCE with a leave-one-out baseline: the advantage of an answer is its reward minus the mean reward "
    "of the other answers to the same prompt. beta (0.05) subtracts the KL divergence from the model at the "
    "start of the run from the reward. Data, rewards, options and defaults are those of 'train grpo'.",
    "primus train rloo load=path/to/model data=prompts.jsonl reward=exact:answer\n"
    "primus train rloo load=path/to/model data=prompts.jsonl reward=program:./reward.py beta=0\n"
    "primus train rloo --config exp.yaml",
    [] { return make_stage_command("rloo"); },
    {Section::kTrain, 9},
    true};

extern const CommandEntry kTrainPpo{
    "train ppo",
    "Trains by rewards, compared with the expectations of a value model (stage: ppo)",
    "Proximal policy optimization with a value model. The value model learns to predict, at each token, the "
    "rewards that follow; an answer's tokens become likelier if the answer scores more than predicted. Both "
    "models are trained in the same steps, and need memory for weights, gradients and optimizer states. The "
    "value model starts from the model of load, or from the model of value_load, such as a reward model. "
    "kl_coef (0.05) subtracts the KL divergence from the model at the start of the run from the reward of "
    "each token. num_ppo_epochs is the number of steps that learn from the same answers, and "
    "num_mini_batches divides the answers among steps. Data, rewards and options are those of 'train grpo'; "
    "num_generations may be 1.",
    "primus train ppo load=path/to/model data=prompts.jsonl reward=exact:answer\n"
    "primus train ppo load=path/to/model data=prompts.jsonl reward=model:path/to/reward-model "
    "value_load=path/to/reward-model\n"
    "primus train ppo load=path/to/model data=prompts.jsonl reward=program:./reward.py num_ppo_epochs=2 "
    "num_mini_batches=4 kl_coef=0.02\n"
    "primus train ppo --config exp.yaml",
    [] { return make_stage_command("ppo"); },
    {Section::kTrain, 9},
    true};

}  // namespace primus::cli
