// Data, training length, checkpoints and reports as arguments of Megatron-LM.
#include <fmt/format.h>

#include <filesystem>

#include "backends/megatron_arguments.h"
#include "config/keys.h"
#include "config/stages.h"
#include "config/trainer_config.h"

namespace primus::backends::megatron {

using config::Layer;
using config::Value;

namespace {

constexpr const char* kTracker = "latest_checkpointed_iteration.txt";
constexpr const char* kWarning = "SIGUSR1";

bool is_text_file(const std::string& path) {
  for (const char* ending : {".txt", ".jsonl", ".json", ".gz", ".zst", ".md"}) {
    if (path.ends_with(ending)) return true;
  }
  return false;
}

// Selects Megatron-LM's NullTokenizer for `ids` ids, the last of which is the end-of-document id. Only since
// April 2026, --vocab-size includes the last id.
void null_tokenizer(Megatron& m, std::int64_t ids) {
  const bool counts_all =
      m.source_says("megatron/core/tokenizers/text/libraries/null_tokenizer.py", "eod_id=None");
  m.put_text("tokenizer_type", "NullTokenizer");
  m.put_number("vocab_size", static_cast<double>(counts_all ? ids : ids - 1));
}

// Adds a problem if there is no checkpoint, because Megatron-LM would continue with random weights.
void check_load(Megatron& m, const Path& folder) {
  std::error_code error;
  if (std::filesystem::exists(folder / kTracker, error)) return;
  if (std::filesystem::exists(folder, error)) {
    m.problems.add(m.experiment.error_for(
        "load",
        fmt::format("load '{}' has no {}: Megatron-LM would start from random weights", folder.string(),
                    kTracker),
        "convert the model with Megatron-LM's tools/checkpoint/convert.py, or choose framework: native, "
        "which loads Hugging Face folders"));
  } else {
    m.job.warnings.push_back(fmt::format(
        "load '{}' is not on this machine: if Megatron-LM finds no checkpoint, it starts from random weights",
        folder.string()));
  }
}

// Lets Megatron-LM save and stop at SIGUSR1, which Slurm's batch script sends before the time limit. Without
// a handler, the signal would end Megatron-LM. Settings of the experiment have priority.
void save_at_warning(Megatron& m) {
  if (!m.fields.find("exit_signal") || !m.fields.find("exit_signal_handler")) return;
  const config::Value* const signal = m.experiment.settings.find("exit_signal");
  const config::Value* const handler = m.experiment.settings.find("exit_signal_handler");
  if (!handler) m.put("exit_signal_handler", true);
  if (!handler && !signal) m.put_text("exit_signal", kWarning);
  const auto chosen = m.arguments.find("exit_signal");
  m.job.saves_at_warning =
      m.is_on("exit_signal_handler") && chosen != m.arguments.end() && chosen->second.text == kWarning;
}

}  // namespace

void schedule(Megatron& m) {
  m.put_number("train_iters", static_cast<double>(m.t.train_iters));
  if (m.is_set("lr_decay_iters") && m.t.lr_decay_iters > 0)
    m.put_number("lr_decay_iters", static_cast<double>(m.t.lr_decay_iters));
  if (m.t.lr_warmup_fraction) {
    m.put_number("lr_warmup_fraction", *m.t.lr_warmup_fraction);
  } else {
    m.put_number("lr_warmup_iters", static_cast<double>(m.t.lr_warmup_iters));
  }
}

void data(Megatron& m) {
  if (m.t.mock_data) {
    m.put("mock_data", true);
    return;
  }
  const std::pair<const char*, const std::vector<std::string>*> sources[] = {
      {"data_path", &m.t.data_path},
      {"train_data_path", &m.t.train_data_path},
      {"valid_data_path", &m.t.valid_data_path},
      {"test_data_path", &m.t.test_data_path}};
  bool any = false;
  for (const auto& [key, paths] : sources) {
    if (paths->empty()) continue;
    std::vector<std::string> words = *paths;
    for (std::string& word : words) {
      if (is_text_file(word)) {
        throw m.error_for(
            key, fmt::format("Megatron-LM reads tokens from .bin/.idx, but '{}' is text", word),
            fmt::format("'primus data tokenize --input {} --output-prefix NAME' makes them", word));
      }
      for (const char* ending : {".bin", ".idx"}) {
        if (word.ends_with(ending)) word.resize(word.size() - 4);
      }
    }
    m.put_words(key, words);
    any = true;
  }
  // Only text is checked here, because a stage that trains on conversations is refused elsewhere.
  if (!any && config::stage_of(m.t).material == config::Material::kText) {
    throw m.experiment.error_for("data_path", "there is no data to train on",
                                 "set data_path or train_data_path to .bin/.idx files, or mock_data: true");
  }
  if (!m.t.data_path.empty() && m.t.split) m.put_text("split", *m.t.split);
}

void tokenizer(Megatron& m) {
  if (m.t.mock_data) return null_tokenizer(m, m.t.vocab_size.value_or(kMockVocabulary));
  if (m.t.tokenizer_type == "NullTokenizer" && m.t.vocab_size) return null_tokenizer(m, *m.t.vocab_size);
  if (m.t.vocab_size) m.put_number("vocab_size", static_cast<double>(*m.t.vocab_size));
  if (m.t.tokenizer_model) m.put_text("tokenizer_model", *m.t.tokenizer_model);
  if (m.t.tokenizer_type == "ByteTokenizer") {
    m.problems.add(
        m.error_for("tokenizer_type", "Megatron-LM has no byte tokenizer",
                    "set tokenizer_type: NullTokenizer and vocab_size: 257 for .bin/.idx made from bytes"));
    return;
  }
  const config::KeySpec& key = *config::find_key("tokenizer_type");
  Value value = m.rules.value_there(key.name, config::current_value(key, m.t));
  if (value.is_null() && m.t.tokenizer_model) {
    value = config::plain_scalar("HuggingFaceTokenizer", {});
  }
  if (!value.is_null()) m.put_text("tokenizer_type", value.text);
}

void checkpoints(Megatron& m) {
  const Path own = std::filesystem::absolute(m.run.checkpoints());
  // As in AMD Primus, `save: null` means that no checkpoints are written. If the key is not set, checkpoints
  // are written to the run's folder.
  Path folder;
  if (m.t.save) {
    folder = std::filesystem::absolute(*m.t.save);
  } else if (!m.is_null("save")) {
    folder = own;
  }
  if (folder.empty()) {
    m.job.notes.emplace_back("save is null, so Megatron-LM writes no checkpoint");
  } else {
    m.put_text("save", folder.string());
    save_at_warning(m);
  }
  std::error_code error;
  const bool has_checkpoint = !folder.empty() && std::filesystem::exists(folder / kTracker, error);
  if (m.t.auto_continue_train && has_checkpoint && (m.is_set("auto_continue_train") || !m.t.load)) {
    m.put_text("load", folder.string());
    m.put("finetune", false);
  } else if (m.t.load) {
    check_load(m, *m.t.load);
    m.put_text("load", *m.t.load);
    m.put("finetune", m.t.finetune);
  }
}

void reports(Megatron& m) {
  if (!m.t.disable_tensorboard) {
    m.put_text("tensorboard_dir",
               m.t.tensorboard_dir.value_or(std::filesystem::absolute(m.run.tensorboard()).string()));
  }
  const Value* off = m.experiment.settings.find("disable_wandb");
  if (off && off->kind == Value::Kind::kBool && !off->boolean) {
    m.put_text("wandb_project",
               m.text_of("wandb_project").value_or(m.experiment.work_group + "_" + m.experiment.user_name));
    m.put_text("wandb_exp_name", m.text_of("wandb_exp_name").value_or(m.experiment.exp_name));
    m.put_text("wandb_save_dir", std::filesystem::absolute(m.run.root() / "wandb").string());
  }
  if (!m.experiment.settings.find("eval_iters") && !m.is_set("eval_iters"))
    m.put_number("eval_iters", static_cast<double>(m.t.eval_iters));
  if (m.is_set("eval_interval") || m.t.eval_iters > 0)
    m.put_number("eval_interval", static_cast<double>(m.t.eval_interval));
  if (m.is_set("eval_iters")) m.put_number("eval_iters", static_cast<double>(m.t.eval_iters));
  if (!m.is_set("log_throughput")) m.put("log_throughput", true);  // `primus report` shows the throughput
  if (m.is_set("save_interval") || m.arguments.contains("save"))
    m.put_number("save_interval", static_cast<double>(m.t.save_interval));
}

}  // namespace primus::backends::megatron
