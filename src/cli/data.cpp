// primus data tokenize | train-tokenizer
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/checked.h"
#include "base/file.h"
#include "cli/commands.h"
#include "lm/data/tokenize.h"
#include "lm/data/train_tokenizer.h"
#include "lm/tokenizer/tokenizer.h"

namespace primus::cli {
namespace {

class DataTokenize final : public Command {
 public:
  void declare(Arguments& args) override {
    args.option("--input,-i", "PATH", &options_.inputs,
                "text or JSON lines: files, folders, globs; may be repeated")
        .required = true;
    args.option("--output-prefix,-o", "PREFIX", &prefix_, "writes PREFIX_<key>_document.bin and .idx")
        .required = true;
    args.option("--tokenizer-type", "TYPE", &type_, "kind of tokenizer, as in experiments");
    args.option("--tokenizer-model,-t", "FILE", &model_,
                "tokenizer file, or the model folder that holds one");
    args.option("--json-keys", "KEY", &keys_,
                "of JSON lines: where the texts are (default: text); may be repeated");
    args.flag("--append-eod", options_.append_eod, "end each document with the end-of-document token");
    args.flag("--skip-bad", options_.skip_bad, "leave out broken lines and count them");
    args.option("--workers", "N", &workers_, "threads; 0: one per core");
    args.flag("--json", json_, "print the result as JSON");
  }

  int run(Console& console) override {
    if (type_.empty() && model_.empty()) {
      throw invalid("there is no tokenizer",
                    "--tokenizer-model names its file, --tokenizer-type ByteTokenizer needs none");
    }
    options_.output_prefix = prefix_;
    options_.workers = static_cast<int>(workers_);
    if (!keys_.empty()) options_.json_keys = keys_;
    const auto tokenizer = load_tokenizer(type_, model_);
    ProgressLine progress(json_ ? Terminal{} : console.err, {.label = "tokenizing", .unit = "bytes"});
    const data::TokenizeResult r =
        data::tokenize_corpus(options_, *tokenizer, [&](const data::TokenizeProgress& p) {
          progress.update(p.bytes_done, steady_seconds(),
                          fmt::format("{} tokens", human_count(static_cast<double>(p.tokens))));
        });
    progress.finish(steady_seconds());
    if (r.skipped_lines > 0) {
      console.note(fmt::format("warning: {} broken lines were left out, the first: {}", r.skipped_lines,
                               r.first_skipped));
    }
    if (json_) {
      nlohmann::json json{{"documents", r.documents},
                          {"sequences", r.sequences},
                          {"tokens", r.tokens},
                          {"bytes", r.bytes},
                          {"skipped_lines", r.skipped_lines},
                          {"seconds", r.seconds},
                          {"prefixes", nlohmann::json::array()}};
      for (const Path& path : r.prefixes) json["prefixes"].push_back(path.string());
      console.print(json.dump(2) + "\n");
      return 0;
    }
    std::string text =
        fmt::format("{} documents, {} tokens in {}\n", r.documents, r.tokens, human_duration(r.seconds));
    for (const Path& path : r.prefixes) text += fmt::format("{}.bin, .idx\n", path.string());
    console.print(text);
    return 0;
  }

 private:
  data::TokenizeOptions options_;
  std::string prefix_, type_, model_;
  std::vector<std::string> keys_;
  std::int64_t workers_ = 0;
  bool json_ = false;
};

class DataTrainTokenizer final : public Command {
 public:
  void declare(Arguments& args) override {
    args.option("--input,-i", "PATH", &options_.inputs,
                "text or JSON lines: files, folders, globs; may be repeated")
        .required = true;
    args.option("--output,-o", "FOLDER", &output_, "where tokenizer.json goes").required = true;
    args.option("--vocab-size", "N", &vocab_size_, "tokens, the 256 bytes and <|endoftext|> included");
    args.option("--json-key", "KEY", &options_.json_key, "of JSON lines: where the text is");
    args.flag("--gpt2", options_.bpe.gpt2_style, "cut words as GPT-2 does; otherwise as Llama 3");
    args.flag("--skip-bad", options_.skip_bad, "leave out broken lines");
  }

  int run(Console& console) override {
    options_.bpe.vocab_size = checked_cast<std::int32_t>(vocab_size_, "--vocab-size");
    ProgressLine progress(console.err, {.label = "learning"});
    const std::string json = data::train_tokenizer(options_, [&](const data::TrainTokenizerProgress& p) {
      progress.update(p.bytes_done, steady_seconds(),
                      p.merges_done > 0
                          ? fmt::format("{} of {} merges", p.merges_done, p.merges_wanted)
                          : fmt::format("{} read", human_bytes(static_cast<double>(p.bytes_done))));
    });
    progress.finish(steady_seconds());
    make_folders(output_);
    const Path file = Path(output_) / "tokenizer.json";
    write_file_atomic(file, json);
    const auto tokenizer = load_tokenizer("", file.string());
    console.print(fmt::format("{}: {} tokens\n", file.string(), tokenizer->vocab_size()));
    return 0;
  }

 private:
  data::TrainTokenizerOptions options_;
  std::string output_;
  std::int64_t vocab_size_ = 8192;
};

}  // namespace

const CommandEntry kDataTokenize{
    "data tokenize", "Turns text or JSON lines into .bin/.idx training data",
    "The files are those of Megatron's preprocess_data.py. They appear complete or not at all.",
    "primus data tokenize -i books/ -o data/books -t tokenizer.json --append-eod\n"
    "primus data tokenize -i 'corpus/*.jsonl.gz' -o data/corpus --tokenizer-type ByteTokenizer",
    make_command<DataTokenize>};

const CommandEntry kDataTrainTokenizer{
    "data train-tokenizer", "Learns a byte-level BPE tokenizer from text",
    "Writes a tokenizer.json that Hugging Face tokenizers and Primus load.",
    "primus data train-tokenizer -i book.txt -o tokenizer --vocab-size 4096",
    make_command<DataTrainTokenizer>};

}  // namespace primus::cli
