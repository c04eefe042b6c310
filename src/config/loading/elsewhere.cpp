#include "config/loading/elsewhere.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace primus::config {
namespace {

// Terms are separated by blanks; '-' joins the parts of a term.
struct Row {
  std::string_view words, answer;
};

constexpr auto kRows = std::to_array<Row>({
    // Training.
    {"finetune fine-tune finetuning fine-tuning tune tuning sft instruct instruction-tuning chat-tuning "
     "supervised",
     "fine-tuning on conversations is 'primus train posttrain load=MODEL sft_dataset_name=chats.jsonl' "
     "(docs/posttrain.md)"},
    {"lora qlora peft adapter adapters dora",
     "LoRA is a setting of fine-tuning: 'primus train posttrain load=MODEL sft_dataset_name=chats.jsonl "
     "lora.dim=16' (docs/models.md)"},
    {"dpo orpo kto ipo simpo cpo preference preferences align alignment",
     "learning from pairs of answers is 'primus train dpo load=MODEL data=pairs.jsonl', and also 'train "
     "kto', "
     "'train orpo' and 'train cpo' (docs/posttrain.md)"},
    {"grpo rl rloo reinforce reinforcement reinforcement-learning dapo gspo dr-grpo cispo rlvr reward "
     "rewards "
     "rollout",
     "reinforcement learning from reward functions is 'primus train grpo load=MODEL data=prompts.jsonl "
     "reward=exact:answer', and also 'train rloo' (docs/posttrain.md)"},
    {"ppo rlhf reward-model value-model critic",
     "reinforcement learning with a value model is 'primus train ppo load=MODEL data=prompts.jsonl "
     "reward=exact:answer'; 'primus train reward' trains a reward model, 'primus train grpo' needs no value "
     "model, and 'primus train dpo' learns from pairs of answers (docs/posttrain.md)"},
    {"distill distillation kd gkd opd on-policy on-policy-distillation",
     "learning from a larger model's probabilities is 'primus train distill load=SMALL teacher=LARGE "
     "data=train.jsonl', on its own answers with distillation_on_policy_share=1 (docs/posttrain.md)"},
    {"prune pruning",
     "Primus prunes no models: export with 'primus model export RUN FOLDER' and use NVIDIA's ModelOpt or "
     "Hugging "
     "Face's libraries"},
    {"diffusion image vision multimodal vlm audio speech embedding embeddings rerank",
     "Primus trains language models, and only on text: 'primus train pretrain', 'primus train posttrain'"},
    {"pre-train pretraining pretraining-run training trainer fit start run launch",
     "training is 'primus train pretrain --config exp.yaml' on text, and 'primus train posttrain' on "
     "conversations"},
    {"resume continue restart",
     "the command that started a run continues it from its last checkpoint: 'primus train pretrain --config "
     "exp.yaml' again"},
    {"checkpoint checkpoints ckpt save load restore snapshot",
     "checkpoints lie in RUN/checkpoints: save_interval=N writes one every N steps, the same command again "
     "continues from the last, and load=FOLDER starts a new run from one"},
    {"sweep sweeps hparams hpo hyperopt optuna grid search",
     "Primus has no sweeps: write a shell loop, 'for lr in 1e-4 3e-4; do primus train pretrain --config "
     "exp.yaml "
     "lr=$lr exp_name=lr-$lr; done', and compare with 'primus report RUN RUN'"},
    {"agent agents tuning-agent autotune",
     "Primus has no tuning agent: 'primus train pretrain --config exp.yaml --fit' picks the fastest settings "
     "that fit the memory"},
    {"projection estimate estimator vram memory-estimate calculator",
     "'primus train pretrain --config exp.yaml --dry-run --hardware mi355x --world N' forecasts the memory, "
     "communication and "
     "time "
     "of N ranks"},
    // Using and measuring a model.
    {"infer inference predict sample sampling text-generation write",
     "'primus generate MODEL --prompt TEXT' continues a prompt, and 'primus chat MODEL' answers"},
    {"talk ask repl interactive prompt conversation",
     "'primus chat MODEL' chats with a model, and 'primus generate MODEL --prompt TEXT' continues a text"},
    {"serve server serving api openai deploy endpoint vllm sglang tgi ollama",
     "Primus does not serve models: write a Hugging Face folder with 'primus model export RUN FOLDER' and "
     "serve it with vLLM ('vllm serve FOLDER') or llama.cpp; 'primus chat' chats with it in the terminal"},
    {"webui web-ui ui gui gradio streamlit playground",
     "Primus has no web page for chats: 'primus chat MODEL' chats in the terminal, and vLLM or llama.cpp "
     "serve the folder that 'primus model export RUN FOLDER' writes"},
    {"evaluate evaluation validate validation test score perplexity ppl",
     "'primus eval loss MODEL --data held-out.txt' measures loss and perplexity; '--conversations FILE' "
     "measures them on the answers of chats"},
    {"lm-eval lm-eval-harness lm-evaluation-harness lighteval harness hellaswag mmlu arc arc-easy "
     "arc-challenge "
     "gsm8k humaneval winogrande truthfulqa ifeval lambada piqa boolq openbookqa mbpp math",
     "Primus measures loss, not tasks: 'primus model export RUN FOLDER', then EleutherAI's harness: 'lm_eval "
     "--model hf --model_args pretrained=FOLDER --tasks hellaswag'"},
    {"bisect preflight-bisect",
     "'primus preflight --tests slow-nodes' finds slow nodes by bisection. If a node makes a job hang, the "
     "job's ranks name the rank they wait for"},
    // Models and checkpoints.
    {"export save-pretrained to-hf hf-export",
     "'primus model export RUN FOLDER' writes a trained model as a Hugging Face folder"},
    {"import from-pretrained from-hf hf-import",
     "'primus model import FROM TO' reads a Hugging Face model, and load=FOLDER trains it further"},
    {"convert conversion converter",
     "'primus model import FROM TO' reads a Hugging Face model and 'primus model export RUN FOLDER' writes "
     "one; "
     "for GGUF run llama.cpp's convert_hf_to_gguf.py on that folder"},
    {"gguf ggml llama.cpp llama-cpp llamacpp to-gguf",
     "Primus does not write GGUF: 'primus model export RUN FOLDER', then llama.cpp's 'convert_hf_to_gguf.py "
     "FOLDER'"},
    {"quantize quantise quantization quantisation awq gptq bnb bitsandbytes int8 int4 nf4 4bit 8bit",
     "Primus does not quantize models: 'primus model export RUN FOLDER', then llama.cpp's llama-quantize or "
     "vLLM's llm-compressor"},
    {"merge merge-lora merge-adapter merge-adapters",
     "'primus model export RUN FOLDER' merges LoRA into the weights, and 'primus data merge' joins data "
     "sets"},
    {"download pull fetch get hub hf huggingface huggingface-cli",
     "Primus downloads no models: 'hf download ORG/MODEL --local-dir FOLDER' (pip install huggingface_hub), "
     "then "
     "load=FOLDER"},
    {"upload push publish push-to-hub login",
     "Primus uploads no models: 'primus model export RUN FOLDER', then 'hf upload ORG/MODEL FOLDER' (pip "
     "install "
     "huggingface_hub)"},
    {"rm delete remove del rmdir clean cleanup purge",
     "a run and a model are folders, which 'rm -r FOLDER' removes ('primus runs' lists the runs); "
     "keep_latest=N limits the checkpoints of a run"},
    // Data.
    {"data-clean data-cleanup data-filter data-dedup data-deduplicate",
     "Primus cleans no texts: write the cleaned texts to a file with other software, then data_path=FILE; "
     "'primus data tokenize --skip-bad' leaves broken records out"},
    {"data-download data-get data-pull data-fetch",
     "Primus downloads no data: 'hf download ORG/DATASET --repo-type dataset --local-dir FOLDER' "
     "(pip install huggingface_hub), then data_path=FILE for text, or data=FILE for conversations"},
    {"data-convert data-conversion data-converter",
     "training reads text and JSON lines as they are; 'primus data tokenize --input corpus.jsonl "
     "--output-prefix data/corpus --tokenizer FOLDER' writes .bin/.idx, and 'primus data' lists the other "
     "commands (docs/data.md)"},
    {"config-list config-get config-ls config-explain config-describe config-help",
     "'primus config reference' explains every key of an experiment, 'primus config reference KEY' one of "
     "them, and 'primus config show' prints an experiment as it would run"},
    {"tokenize tokenise tokenization preprocess preprocess-data prepare prepare-data pretokenize",
     "'primus data tokenize --input corpus.jsonl --output-prefix data/corpus --tokenizer FOLDER' writes "
     ".bin/.idx; "
     "training also reads text and JSON lines as they are (docs/data.md)"},
    {"tokenizer tokenizers train-tokenizer",
     "'primus data train-tokenizer --input corpus.txt --vocab-size 8192 --output my-tokenizer' trains a "
     "tokenizer"},
    {"encode", "'primus data encode --tokenizer FOLDER' turns text into token ids"},
    {"decode", "'primus data decode --tokenizer FOLDER' turns token ids into text"},
    {"dataset datasets corpus", "'primus data' lists the commands that prepare text (docs/data.md)"},
    // Watching runs.
    {"status list ls top monitor history show-runs",
     "'primus runs' lists the runs with state, step, loss and speed"},
    {"ps queue job squeue", "'primus jobs' lists running and waiting jobs; 'primus runs' lists all runs"},
    {"log tail", "'primus logs RUN' shows the logs of a run, and 'primus logs RUN --follow' new lines"},
    {"kill cancel abort pause",
     "'primus stop RUN' or Ctrl-C ends a run after its step, with a checkpoint; the same command continues "
     "it"},
    {"attach detach",
     "Primus cannot attach to a run: start it in tmux, or watch it with 'primus logs RUN --follow'"},
    {"compare diff",
     "'primus report RUN RUN' draws the curves of runs side by side, and lists how their settings differ"},
    {"plot plots graph curves tensorboard wandb mlflow comet",
     "'primus report RUN' draws a run's curves as one HTML page; 'tensorboard --logdir RUN', MLflow and W&B "
     "are in "
     "docs/watching.md"},
    {"profile profiler trace nsys rocprof",
     "docs/watching.md says how to trace steps; 'primus benchmark train' times them"},
    // Machines and launchers.
    {"torchrun accelerate deepspeed fsdp ddp horovod ray lightning mpirun mpiexec torch-distributed "
     "distributed",
     "Primus starts the ranks itself: 'primus direct -- train pretrain --config exp.yaml' starts one for "
     "each GPU, '--nproc N' starts N, and 'primus slurm' starts them on several nodes (docs/launch.md)"},
    {"docker podman apptainer singularity",
     "'primus container --image IMAGE -- train pretrain --config exp.yaml' runs in a container"},
    {"srun sbatch salloc",
     "'primus slurm srun -N 2 -- direct -- train pretrain --config exp.yaml' runs on Slurm nodes, and "
     "'primus slurm sbatch ...' submits a batch job"},
    {"kubectl kubernetes kube helm",
     "'primus k8s --image IMAGE -N 2 -- train pretrain --config exp.yaml' writes a Kubernetes job"},
    {"check health diagnose diagnostics env info",
     "'primus doctor' checks this machine, 'primus preflight' checks the machines of a job, and 'primus "
     "model info MODEL' describes a model"},
    {"devices gpus gpu nvidia-smi rocm-smi", "'primus device list' lists the devices that can compute here"},
    {"install setup update upgrade",
     "docs/install.md says how to install Primus; 'primus deps sync' fetches other frameworks"},
    {"init new create template",
     "an experiment is a YAML file: copy one of examples/native/configs; 'primus config reference' explains "
     "its keys"},
    {"settings keys options",
     "'primus config reference' explains every key of an experiment, and 'primus config show' prints an "
     "experiment as it would run"},
    {"perf speed throughput",
     "'primus benchmark train --config exp.yaml' times training steps; 'primus benchmark' lists more"},
    // Other training programs.
    {"unsloth axolotl trl llama-factory torchtune nemo nanogpt nanochat litgpt",
     "Primus trains with its native engine, or with Megatron-LM, TorchTitan or MaxText (framework: ..., "
     "docs/backends.md); 'primus train posttrain' fine-tunes"},
});

std::string as_word(std::string_view text) {
  while (text.starts_with('-')) text.remove_prefix(1);
  std::string word(text);
  for (char& c : word) c = c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return word;
}

template <class Visit>
void for_each_word(std::string_view words, Visit visit) {
  while (!words.empty()) {
    const std::string_view word = words.substr(0, words.find(' '));
    words.remove_prefix(std::min(words.size(), word.size() + 1));
    visit(word);
  }
}

}  // namespace

std::optional<std::string> answer_for(std::string_view word) {
  const std::string wanted = as_word(word);
  for (const Row& row : kRows) {
    bool found = false;
    for_each_word(row.words, [&](std::string_view known) { found |= known == wanted; });
    if (found) return std::string(row.answer);
  }
  return std::nullopt;
}

std::vector<std::string_view> words_from_elsewhere() {
  std::vector<std::string_view> words;
  for (const Row& row : kRows)
    for_each_word(row.words, [&](std::string_view word) { words.push_back(word); });
  return words;
}

}  // namespace primus::config
