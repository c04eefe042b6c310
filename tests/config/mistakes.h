// Typical mistakes in experiments and on the command line, with the place, the cause and the next step that
// the error must name. Used by tests of the loader (mistakes_test.cpp) and of the program
// (tests/cli/mistakes_test.cpp).
#pragma once

#include <string>
#include <vector>

namespace primus::config {

struct Mistake {
  std::string file;                    // content of exp.yaml
  std::vector<std::string> arguments;  // command line
  std::string place;                   // "exp.yaml:14:7", "command line", or "" without a place
  std::string cause;                   // part of the message
  std::string next_step;               // part of the hint
};

// Returns a minimal valid experiment, whose trainer keys are followed by `lines`, which begin at line 14.
inline std::string with_lines(const std::string& lines) {
  return "work_group: g\nuser_name: u\nexp_name: e\nworkspace: ./output\n"
         "modules:\n  pre_trainer:\n    framework: native\n    overrides:\n"
         "      num_layers: 2\n      hidden_size: 64\n      num_attention_heads: 4\n"
         "      vocab_size: 256\n      mock_data: true\n" +
         lines;
}

inline std::vector<Mistake> typical_mistakes() {
  std::vector<Mistake> all;
  // Adds a mistake "KEY: VALUE" in line 14. The error's place is the key, or the value.
  const auto at_key = [&](const std::string& line, const std::string& cause, const std::string& next) {
    all.push_back({with_lines("      " + line + "\n"), {}, "exp.yaml:14:7", cause, next});
  };
  const auto at_value = [&](const std::string& line, const std::string& cause, const std::string& next) {
    const std::size_t column = 7 + line.find(": ") + 2;
    all.push_back(
        {with_lines("      " + line + "\n"), {}, "exp.yaml:14:" + std::to_string(column), cause, next});
  };
  const auto argument = [&](const std::vector<std::string>& words, const std::string& cause,
                            const std::string& next) {
    all.push_back({with_lines(""), words, "command line", cause, next});
  };
  const auto file = [&](const std::string& text, const std::string& place, const std::string& cause,
                        const std::string& next) {
    all.push_back({text, {}, place, cause, next});
  };

  // Names that other programs use for a key.
  const std::vector<std::pair<std::string, std::string>> synonyms = {
      {"learning_rate", "lr"},
      {"max_steps", "train_iters"},
      {"num_train_epochs", "train_epochs"},
      {"num_epochs", "train_epochs"},
      {"steps", "train_iters"},
      {"iterations", "train_iters"},
      {"per_device_train_batch_size", "micro_batch_size"},
      {"gradient_accumulation_steps", "global_batch_size"},
      {"train_batch_size", "global_batch_size"},
      {"warmup_steps", "lr_warmup_iters"},
      {"warmup_ratio", "lr_warmup_fraction"},
      {"lr_scheduler_type", "lr_decay_style"},
      {"min_learning_rate", "min_lr"},
      {"max_grad_norm", "clip_grad"},
      {"grad_clip", "clip_grad"},
      {"beta1", "adam_beta1"},
      {"adam_epsilon", "adam_eps"},
      {"wd", "weight_decay"},
      {"optim", "optimizer"},
      {"max_seq_length", "seq_length"},
      {"block_size", "seq_length"},
      {"context_length", "seq_length"},
      {"dtype", "bf16"},
      {"precision", "bf16"},
      {"gradient_checkpointing", "recompute_granularity"},
      {"dataset", "data_path"},
      {"train_file", "train_data_path"},
      {"validation_file", "valid_data_path"},
      {"tokenizer", "tokenizer_model"},
      {"model_name_or_path", "load"},
      {"resume_from_checkpoint", "auto_continue_train"},
      {"output_dir", "workspace"},
      {"run_name", "exp_name"},
      {"save_steps", "save_interval"},
      {"eval_steps", "eval_interval"},
      {"logging_steps", "log_interval"},
      {"save_total_limit", "keep_latest"},
      {"keep_checkpoints", "keep_latest"},
      {"max_to_keep", "keep_latest"},
      {"random_seed", "seed"},
      {"threads", "num_threads"},
      {"num_hidden_layers", "num_layers"},
      {"n_head", "num_attention_heads"},
      {"n_embd", "hidden_size"},
      {"num_key_value_heads", "num_query_groups"},
      {"head_dim", "kv_channels"},
      {"intermediate_size", "ffn_hidden_size"},
      {"rope_theta", "rotary_base"},
      {"rms_norm_eps", "norm_epsilon"},
      {"tie_word_embeddings", "untie_embeddings_and_output_weights"},
      {"dropout", "hidden_dropout"},
      {"num_experts_per_tok", "moe_router_topk"},
      {"tp", "tensor_model_parallel_size"},
  };
  for (const auto& [theirs, ours] : synonyms) {
    at_key(theirs + ": 1", "unknown key '" + theirs + "'", "did you mean '" + ours + "'?");
  }
  at_key("accelerator: cuda", "unknown key 'accelerator'", "primus device list");
  at_key("num_gpus: 8", "unknown key 'num_gpus'", "--nproc N");
  at_key("nproc: 8", "unknown key 'nproc'", "'primus train ... --nproc N' starts N ranks");
  at_key("num_nodes: 2", "unknown key 'num_nodes'", "primus slurm srun -N 4");
  at_key("compile: true", "unknown key 'compile'", "nothing to compile");
  at_key("Learning-Rate: 1", "unknown key 'Learning-Rate'", "did you mean 'lr'?");
  at_value("batch_size: 32", "does not support batch_size (here it is 32)", "set micro_batch_size");
  at_value("warmup: 100", "does not support warmup (here it is 100)", "set lr_warmup_iters");
  at_value("train_samples: 1000", "does not support train_samples (here it is 1000)", "set train_iters");
  at_value("fp8: hybrid\n      fp8_recipe: mxfp8", "fp8: hybrid with fp8_recipe: mxfp8",
           "set fp8_recipe: delayed or tensorwise");
  at_value("fp16: true", "fp16 is true", "set bf16: true");

  file(with_lines("      tokenizer_type: ByteTokenizer\n      tokenizer_model: t.json\n"), "exp.yaml:15:7",
       "ByteTokenizer reads no file", "keep one of the two");
  at_value("tokenizer_type: KimiK2Tokenizer", "which Primus does not run", "HuggingFaceTokenizer");

  // Typing errors.
  const std::vector<std::pair<std::string, std::string>> slips = {
      {"lrr", "lr"},
      {"train_iter", "train_iters"},
      {"trian_iters", "train_iters"},
      {"micro_batchsize", "micro_batch_size"},
      {"global_batch", "global_batch_size"},
      {"seq_lenght", "seq_length"},
      {"lr_decay_stile", "lr_decay_style"},
      {"weight_decy", "weight_decay"},
      {"adam_beta_1", "adam_beta1"},
      {"num_layer", "num_layers"},
      {"hiden_size", "hidden_size"},
      {"vocabsize", "vocab_size"},
      {"save_intervall", "save_interval"},
      {"mock_dat", "mock_data"},
      {"tokenizer_typ", "tokenizer_type"},
      {"moe_router_top_k", "moe_router_topk"},
  };
  for (const auto& [slip, key] : slips) {
    at_key(slip + ": 1", "unknown key '" + slip + "'", "did you mean '" + key + "'?");
  }
  at_key("xyzzy_plugh: 1", "unknown key 'xyzzy_plugh'", "'primus config reference' lists every key");

  // Values of a wrong type.
  at_value("train_iters: ten", "train_iters expects an integer, not 'ten'",
           "primus config reference train_iters");
  at_value("train_iters: 1.5", "train_iters expects an integer, not 1.5",
           "primus config reference train_iters");
  at_value("train_iters: \"100\"", "train_iters expects an integer, not '100'", "remove the quotes");
  at_value("train_iters: 1,000", "train_iters expects an integer, not '1,000'",
           "primus config reference train_iters");
  at_value("train_iters: 10k", "train_iters expects an integer", "primus config reference train_iters");
  at_value("train_iters: true", "train_iters expects an integer, not true",
           "primus config reference train_iters");
  at_value("train_iters: [100]", "train_iters expects an integer, not a list", "primus config reference");
  at_value("seed: 007", "seed expects an integer, not '007'", "primus config reference seed");
  at_value("lr: fast", "lr expects a number, not 'fast'", "primus config reference lr");
  at_value("lr: 1e-5f", "lr expects a number, not '1e-5f'", "primus config reference lr");
  at_value("lr: \"1e-5\"", "lr expects a number, not '1e-5'", "remove the quotes");
  at_value("lr: 3,0e-4", "lr expects a number", "primus config reference lr");
  at_value("lr: {peak: 1e-4}", "lr expects a number, not a map", "primus config reference lr");
  at_value("bf16: yes", "bf16 expects true or false, not 'yes'", "write true or false");
  at_value("bf16: on", "bf16 expects true or false", "write true or false");
  at_value("bf16: 2", "bf16 expects true or false, not 2", "write true or false");
  at_value("bf16: \"true\"", "bf16 expects true or false", "remove the quotes");
  at_value("save: true", "save expects text, not true", "primus config reference save");
  at_value("data_path: {a: 1}", "data_path expects a list of text", "primus config reference data_path");
  at_value("use_turbo_gemm: fast", "use_turbo_gemm expects true or false", "write true or false");
  at_value("torch_compile: 1", "torch_compile expects a map, not 1", "primus config reference torch_compile");
  at_value("train_iters: 99999999999999999999", "train_iters expects an integer", "primus config reference");

  // Values out of range.
  at_value("micro_batch_size: 0", "it must be at least 1", "primus config reference micro_batch_size");
  at_value("global_batch_size: -8", "it must be at least 1", "primus config reference global_batch_size");
  at_value("seq_length: 0", "it must be at least 1", "primus config reference seq_length");
  at_value("train_iters: -1", "it must be at least 0", "primus config reference train_iters");
  at_value("seed: -1", "it must be at least 0", "primus config reference seed");
  at_value("lr: -1e-4", "it must be at least 0", "primus config reference lr");
  at_value("lr: .nan", "lr is .nan; it must be", "primus config reference lr");
  at_value("weight_decay: .inf", "it must be finite", "primus config reference weight_decay");
  at_value("adam_beta1: 1.0", "and below 1", "primus config reference adam_beta1");
  at_value("adam_beta2: 1.5", "and below 1", "primus config reference adam_beta2");
  at_value("adam_eps: 0", "it must be above 0", "primus config reference adam_eps");
  at_value("clip_grad: -1", "it must be at least 0", "primus config reference clip_grad");
  at_value("lr_warmup_fraction: 10", "and at most 1", "primus config reference lr_warmup_fraction");
  at_value("save_interval: 0", "it must be at least 1", "primus config reference save_interval");
  at_value("eval_interval: 0", "it must be at least 1", "primus config reference eval_interval");
  at_value("log_interval: 0", "it must be at least 1", "primus config reference log_interval");
  at_value("num_threads: 100000", "at most 4096", "primus config reference num_threads");
  at_value("rotary_percent: 2", "at most 1", "primus config reference rotary_percent");
  at_value("norm_epsilon: 0", "it must be above 0", "primus config reference norm_epsilon");
  at_value("rope_scaling_factor: 0.5", "it must be at least 1",
           "primus config reference rope_scaling_factor");
  at_value("num_experts: 0", "it must be at least 1", "primus config reference num_experts");

  // Unknown choices.
  at_value("lr_decay_style: cosin", "it must be one of", "did you mean 'cosine'?");
  at_value("lr_decay_style: polynomial", "it must be one of", "primus config reference lr_decay_style");
  at_value("optimizer: adamw", "it must be one of", "did you mean 'adam'?");
  at_value("optimizer: soap", "the native engine supports only adam, sgd", "set optimizer: adam");
  at_value("exp_avg_dtype: int8", "it must be one of fp32, bf16, fp8 (with other frameworks also fp16)",
           "primus config reference exp_avg_dtype");
  at_value("exp_avg_dtype: \"\"", "it must be one of fp32, bf16", "primus config reference exp_avg_dtype");
  at_value("tokenizer_type: HuggingFace", "it must be one of", "primus config reference tokenizer_type");
  at_value("recompute_granularity: all", "it must be one of",
           "primus config reference recompute_granularity");
  at_value("dataloader_type: random", "it must be one of", "primus config reference dataloader_type");
  at_value("dataloader_type: external", "supports only single, cyclic", "set dataloader_type: single");
  at_value("position_embedding_type: alibi", "it must be one of",
           "primus config reference position_embedding_type");
  at_value("normalization: LayerNorm", "supports only RMSNorm", "set normalization: RMSNorm");

  // Values that are valid, but not supported.
  at_value("cp_comm_type: a2a+p2p", "supports only p2p, a2a, all_gather", "set cp_comm_type: p2p");
  at_value("cp_comm_type: nvlink", "it must be one of", "primus config reference cp_comm_type");
  at_value("hidden_dropout: 0.1", "supports only 0", "leave hidden_dropout out");
  at_value("main_params_dtype: bf16", "supports only fp32", "set main_params_dtype: fp32");
  at_value("exp_avg_dtype: fp16", "supports only fp32, bf16", "set exp_avg_dtype: bf16");
  at_value("exp_avg_sq_dtype: FP16", "supports only fp32, bf16", "set exp_avg_sq_dtype: bf16");
  at_value("main_params_dtype: fp16", "supports only fp32", "set main_params_dtype: fp32");
  at_value("moe_router_dtype: fp64", "supports only fp32", "set moe_router_dtype: fp32");
  at_value("stage: rlhf",
           "it must be one of cpo, distill, dpo, grpo, kto, orpo, ppo, pretrain, mlperf_pretrain, reward, "
           "rloo, sft",
           "primus train ppo");
  file(with_lines("      lora:\n        enabled: true\n        dropout: 1\n"), "exp.yaml:16:18",
       "it must be at least 0 and below 1", "leave dropout out");
  file(with_lines("      lora:\n        enabled: true\n        dropout: 0.99999999\n"), "exp.yaml:16:18",
       "it must be at least 0 and below 1, in fp32", "leave dropout out");
  file(with_lines("      lora:\n        dim: 0\n"), "exp.yaml:15:14", "it must be an integer, at least 1",
       "leave dim out");
  file(with_lines("      lora:\n        rank: 8\n"), "exp.yaml:15:9", "unknown key 'rank' of lora", "dim");
  argument({"lora_rank=8"}, "unknown key 'lora_rank'", "lora.dim=16");
  argument({"lora_alpha=8"}, "unknown key 'lora_alpha'", "lora.alpha=32");
  argument({"lora.r=8"}, "unknown key 'r' of lora", "did you mean 'dim'?");
  file(with_lines("      lora:\n        target_modules: [linear_qvk]\n"), "exp.yaml:15:26",
       "it must be one of linear_qkv", "did you mean 'linear_qkv'?");
  at_value("rotary_seq_len_interpolation_factor: 4",
           "the native engine does not support rotary_seq_len_interpolation_factor",
           "rope_scaling_type: linear");
  at_value("rampup_batch_size: [16, 16, 1000]", "the native engine does not support rampup_batch_size",
           "leave rampup_batch_size out");
  at_value("recompute_activations: true", "supports only false", "recompute_granularity: selective");

  // Keys that contradict each other.
  at_value("global_batch_size: 7", "global_batch_size (7) is not a multiple of micro_batch_size (2)",
           "set global_batch_size to 6 or 8");
  at_value("num_query_groups: 3", "num_attention_heads (4) is not a multiple of num_query_groups (3)",
           "set num_query_groups to a divisor");
  at_value("group_query_attention: true", "needs num_query_groups", "set it to the number");
  at_value("target_eval_loss: 3.3", "the run does not evaluate (eval_iters: 0)", "set eval_iters");
  at_value("target_eval_loss: 0", "must be above 0", "target_eval_loss");
  at_value("min_lr: 1", "min_lr (1) is above lr", "set min_lr to at most lr");
  at_value("lr_warmup_init: 1", "lr_warmup_init (1) is above lr", "set it to at most lr");
  at_value("lr_decay_style: WSD", "needs lr_wsd_decay_iters", "set it to the number of steps");
  at_value("split: 90,x", "split is '90,x'", "for example 969,30,1");
  at_value("kv_channels: 17", "rotates pairs", "their product is even");
  at_value("vocab_file: vocab.json", "there is no merge_file", "vocab_file (vocab.json) and merge_file");
  file(with_lines("      start_weight_decay: 0.1\n      end_weight_decay: 0.2\n"), "exp.yaml:14:27",
       "weight_decay_incr_style is constant", "linear or cosine");
  file(with_lines("      lr_warmup_iters: 5\n      lr_warmup_fraction: 0.1\n"), "exp.yaml:15:7",
       "lr_warmup_iters and lr_warmup_fraction exclude each other", "keep one of the two");
  file(with_lines("      data_path: a\n      train_data_path: b\n      mock_data: false\n"), "exp.yaml:16:7",
       "key 'mock_data' is given twice", "keep one of the two");
  file(with_lines("      recompute_granularity: full\n      recompute_method: block\n"), "exp.yaml:15:25",
       "recompute_method: block needs recompute_num_layers", "set it to the number of blocks");
  file(with_lines("      recompute_granularity: full\n      recompute_num_layers: 9\n"), "exp.yaml:15:29",
       "recompute_num_layers (9) is more than num_layers (2)", "set it to at most 2");
  all.push_back({with_lines(""), {"mock_data=false"}, "", "there is no training data", "set data_path"});
  argument({"hidden_size=66"}, "hidden_size (66) is not a multiple of num_attention_heads (4)",
           "or set kv_channels");

  // Invalid YAML.
  file("", "exp.yaml", "the file holds no settings", "examples/native/configs");
  file("hello\n", "exp.yaml:1:1", "settings are 'key: value' lines", "examples/native/configs");
  file("- a\n- b\n", "exp.yaml:1:1", "but this is a list", "examples/native/configs");
  file(with_lines("      lr: 1\n      lr: 2\n"), "exp.yaml:15:7", "key 'lr' is given twice, first on line 14",
       "keep one of the two");
  file(with_lines("      lr: 1e-5\n        min_lr: 0\n"), "exp.yaml:15:9",
       "indented deeper than line 14, which already has a value", "indent it by 6 spaces, as line 14");
  file(with_lines("    lr: 1e-5\n   seed: 1\n"), "exp.yaml:15:4", "does not match any line above it",
       "spaces");
  file(with_lines("\tlr: 1e-5\n"), "exp.yaml:14:1", "indented with a tab", "indent with spaces");
  file(with_lines("      data_path: [a, b\n"), "exp.yaml:14:18", "this [ is not closed", "] after the last");
  file(with_lines("      data_path: [a, 'b' 'c']\n"), "exp.yaml:14:26", "a comma or ] is missing here",
       "commas between the values");
  file(with_lines("      seed 1\n      lr: 1\n"), "exp.yaml:14:7", "the line is not 'key: value'",
       "put a colon after the key: seed: 1");
  file(with_lines("      seed:1\n      lr: 1\n"), "exp.yaml:14:7", "the line is not 'key: value'",
       "put a space after the colon: seed: 1");
  file(with_lines("      save: \"out\n"), "exp.yaml:14:13", "this quote is never closed", "close it");
  file(with_lines("      save: *nowhere\n"), "exp.yaml:14:13", "this alias has no anchor above it",
       "follows &NAME");
  file(with_lines("      save: &a {x: *a}\n"), "exp.yaml:14:20", "inside the value that it repeats",
       "move the anchor");
  file(with_lines("      <<: 5\n"), "exp.yaml:14:7", "<< takes a map", "write <<: *NAME");
  file(with_lines("      lr: !!float 1\n"), "exp.yaml:14:11", "YAML tags", "put text in quotes");
  file(with_lines("---\na: b\n"), "exp.yaml:14:1", "has one YAML document", "keep one of them");
  file(with_lines("      save: a: b\n"), "exp.yaml:14:14", "this is not valid YAML", "in quotes");
  file(with_lines("      ? [a]\n      : 1\n"), "exp.yaml:14:9", "a key must be plain text",
       "write KEY: VALUE");
  file("a: \xFF\n", "exp.yaml:1:4", "this byte is not", "save the file as UTF-8");

  // The keys around the modules.
  const std::string head = "work_group: g\nuser_name: u\nexp_name: e\nworkspace: w\n";
  const std::string model =
      "num_layers: 2, hidden_size: 64, num_attention_heads: 4, vocab_size: 9, mock_data: true";
  file(head, "exp.yaml", "the experiment has no modules", "add modules:");
  file(head + "modules: {runner: {}}\n", "exp.yaml:5:11", "module 'runner' is not a trainer", "pre_trainer");
  file(head + "modules: {pre_trainer: 1}\n", "exp.yaml:5:24", "pre_trainer expects a map, not 1",
       "KEY: VALUE");
  file(head + "modules: {a_trainer: {}, b_trainer: {}}\n", "exp.yaml:5:26", "several trainers",
       "rename the one to run to pre_trainer");
  file(head + "modules: {pre_trainer: {overrides: 1}}\n", "exp.yaml:5:36", "expects a map of trainer keys",
       "'primus config reference' lists the keys");
  file(head + "modules: {pre_trainer: {modle: x, overrides: {" + model + "}}}\n", "exp.yaml:5:25",
       "unknown key 'modle' in a module", "did you mean 'model'?");
  file(head + "modules: {pre_trainer: {framework: pytorch, overrides: {" + model + "}}}\n", "exp.yaml:5:36",
       "framework is 'pytorch'", "native");
  file(head +
           "modules: {pre_trainer: {overrides: {hidden_size: 64, num_attention_heads: 4, vocab_size: 9, "
           "mock_data: true}}}\n",
       "exp.yaml:5:11", "num_layers is missing", "choose a model preset");
  file("train_iters: 5\n" + with_lines(""), "exp.yaml:1:1", "unknown key 'train_iters' at the top level",
       "write trainer keys under modules.pre_trainer.overrides");
  file("work_groop: g\n" + with_lines(""), "exp.yaml:1:1", "unknown key 'work_groop'",
       "did you mean 'work_group'?");
  file("bases: [a.yaml]\n" + with_lines(""), "exp.yaml:1:1", "unknown key 'bases'", "extends: [FILE, ...]");
  file("env: {1X: a}\n" + with_lines(""), "exp.yaml:1:7", "not a valid name for a variable",
       "letters, digits and _");
  file("env: [a]\n" + with_lines(""), "exp.yaml:1:6", "env expects a map", "NAME: VALUE");
  file("extends: nowhere.yaml\n" + with_lines(""), "exp.yaml:1:10", "does not exist", "relative to the file");
  file("extends: 5.5\n" + with_lines(""), "exp.yaml:1:10", "extends expects file names",
       "extends: FILE.yaml");
  argument({"exp_name=../x"}, "exp_name is '../x'", "workspace sets where");

  // Environment variables.
  at_value("save: ${NO_SUCH_VARIABLE_HERE}", "environment variable NO_SUCH_VARIABLE_HERE is not set",
           "export NO_SUCH_VARIABLE_HERE=");
  at_value("save: ${NO_END", "'${' without a closing '}'", "${NAME:default}");
  at_value("save: ${1X}", "'${1X}' is not the name of a variable", "write ${NAME}");
  at_value("save: ${A:-x}", "uses ':-' as in a shell", "${A:x}");

  // Arguments of the command line.
  argument({"fast"}, "'fast' is not a setting", "settings are key=value");
  argument({"--seed"}, "seed needs a value", "write --seed VALUE");
  argument({"--lora"}, "lora needs a value", "lora.dim=16 enables adapters");
  argument({"lora=true"}, "lora expects", "lora.dim=16 enables adapters");
  argument({"sft_dataset_name=[a.jsonl, b.jsonl]"}, "sft_dataset_name expects text",
           "or a folder with train-1.jsonl");
  argument({"dataset=a.jsonl"}, "unknown key 'dataset'",
           "for conversations, pairs and prompts: sft_dataset_name");
  argument({"=3"}, "'' is not a key", "settings are key=value");
  argument({"a..b=3"}, "'a..b' is not a key", "settings are key=value");
  // A value is empty, as after an unset shell variable.
  argument({"train_iters="}, "'train_iters=' has no value", "write train_iters=null to unset it");
  argument({"--lr="}, "'--lr=' has no value", "write --lr=null to unset it");
  argument({"--lr", ""}, "'--lr ' has no value", "write --lr=null to unset it");
  argument({"--learning-rate", "3"}, "unknown key 'learning_rate'", "did you mean 'lr'?");
  argument({"--train-iters", "ten"}, "train_iters expects an integer", "primus config reference train_iters");
  argument({"data_path=[a"}, "data_path expects a list of text", "close every bracket and quote");
  argument({"modules.post_trainer.overrides.lr=1"}, "there is no module 'post_trainer'", "pre_trainer");
  argument({"extends=a.yaml"}, "extends has no effect on the command line",
           "write extends into the experiment file");
  argument({"framework=megatrn"}, "framework is 'megatrn'", "did you mean 'megatron'?");
  argument({"env.A-B=1"}, "'A-B' is not a valid name for a variable", "letters, digits and _");
  argument({"lr=\"1e-5\""}, "lr expects a number", "remove the quotes");
  argument({"split=1,2,3,4"}, "up to three shares", "for example 969,30,1");

  // Other frameworks, and unknown models.
  const auto foreign = [&](const std::string& engine, const std::string& overrides) {
    return head + "modules:\n  pre_trainer:\n    framework: " + engine +
           "\n    config: pre_trainer.yaml\n    model: llama3_8B.yaml\n    overrides:\n" + overrides;
  };
  file(foreign("torchtitan", "      training: {step: 5}\n      metrics: {log_freq: 1}\n"), "exp.yaml:11:18",
       "unknown key 'training.step' of TorchTitan", "did you mean 'training.steps'?");
  file(foreign("maxtext", "      per_device_batch_sise: 4\n      remat_policy: full\n"), "exp.yaml:11:7",
       "unknown key 'per_device_batch_sise' of MaxText", "did you mean 'per_device_batch_size'?");
  file(foreign("megatron_bridge", "      peft: lora\n"), "exp.yaml:7:16",
       "names no recipe of Megatron-Bridge", "model: qwen3_8b.yaml");
  file(foreign("nemo_automodel", "      x: 1\n"), "exp.yaml:7:16", "written for NeMo AutoModel",
       "Megatron-LM's keys");
  const auto preset = [&](const std::string& name) {
    return head + "modules:\n  pre_trainer:\n    model: " + name + "\n    overrides: {mock_data: true}\n";
  };
  file(preset("llama3_9B.yaml"), "exp.yaml:7:12", "there is no model preset 'llama3_9B.yaml'",
       "did you mean 'llama3_8B.yaml'?");
  file(preset("gemma4_31B.yaml"), "exp.yaml:7:12", "does not have the Gemma 4 family yet",
       "PRIMUS_PRESETS=FOLDER");
  file(preset("mamba_370M.yaml"), "exp.yaml:7:12", "state-space layers", "set framework: megatron");
  file(preset("my_own"), "exp.yaml:7:12", "there is no model preset 'my_own'", "looked in");
  return all;
}

}  // namespace primus::config
