// primus data tokenize | train-tokenizer
#include "lm/data/tokenize.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

#include "base/checked.h"
#include "base/error.h"
#include "base/files/file.h"
#include "base/text/json_text.h"
#include "cli/command.h"
#include "cli/train/stop_signal.h"
#include "lm/data/corpus.h"
#include "lm/data/train_tokenizer.h"
#include "lm/generate/model_folder.h"
#include "lm/tokenizer/tokenizer.h"

namespace primus::cli {
namespace {

void declare_max_line(Arguments& args, std::int64_t* mebibytes) {
  args.option("--max-line-mib", "N", mebibytes,
              "maximum length of a JSON line, unpacked, in MiB; a longer line is an error, because each line "
              "is held in memory");
}

std::uint64_t max_line_bytes(std::int64_t mebibytes) {
  constexpr std::int64_t kMax = 1 << 20;
  if (mebibytes < 1 || mebibytes > kMax) {
    throw invalid(fmt::format("--max-line-mib cannot be {}", mebibytes),
                  fmt::format("set it to 1 to {}, or leave it out", kMax));
  }
  return static_cast<std::uint64_t>(mebibytes) << 20;
}

// Refuses the other options of Megatron's preprocess_data.py (docs/data.md lists them).
void refuse_other_options_of_megatron(Arguments& args) {
  args.refuse(
      "--split-sentences,--keep-newlines,--lang",
      "Primus does not split documents into sentences, which BERT needed",
      "remove the option, or put a list of sentences under the key: each becomes a separate sequence");
  args.refuse("--find-optimal-num-workers,--workers-to-check,--max-documents,--performance-dir",
              "Primus does not search for a number of workers",
              "remove the option: --workers 0 uses every core");
  args.refuse("--dataset-impl", "Primus has one file format, that of 'mmap'", "remove the option");
  args.refuse("--padded-vocab-size,--pad-vocab-size,--vocab-extra-ids,--make-vocab-size-divisible-by",
              "the files depend only on the tokenizer; padding belongs to the model",
              "remove the option, and set make_vocab_size_divisible_by in the experiment");
  args.refuse("--null-tokenizer-eod-id,--null-tokenizer-pad-id",
              "the last id of a NullTokenizer ends documents, and no id is for padding",
              "leave it out, and set --vocab-size to one more than the id that ends documents");
  args.refuse("--tokenizer-metadata,--metadata-path", "Primus reads this from the tokenizer's own files",
              "name the tokenizer with --tokenizer-type and --tokenizer-model");
  args.refuse("--tokenizer-special-tokens,--special-tokens,--tiktoken-special-tokens",
              "Primus takes special tokens from the tokenizer's files",
              "add them to tokenizer.json, e.g. with transformers: tokenizer.add_special_tokens(...), "
              "save_pretrained(folder)");
  args.refuse("--tokenizer-sentencepiece-legacy,--tokenizer-sentencepiece-ignore-extra-whitespaces",
              "Primus reads a SentencePiece model as the sentencepiece library does", "remove the option");
  args.refuse("--tokenizer-hf-use-fast,--tokenizer-hf-no-use-fast,--use-gigatoken",
              "Primus has one implementation, with the same ids as the fast Hugging Face tokenizers",
              "remove the option");
  args.refuse("--tokenizer-hf-include-special-tokens", "Primus adds special tokens around texts by default",
              "remove the option; --no-special-tokens turns them off");
  args.refuse("--trust-remote-code", "Primus does not run code that comes with a tokenizer",
              "remove the option");
  args.refuse("--chat-template", "Primus does not change texts before it tokenizes them",
              "remove the option");
}

class DataTokenize final : public Command {
 public:
  void declare(Arguments& args) override {
    Argument& input = args.option("--input,-i", "PATH", &options_.inputs,
                                  "text or JSON lines (.gz, .zst): files, folders, globs; one or more");
    input.required = input.several = true;
    args.option("--output-prefix,-o", "PREFIX", &prefix_, "writes PREFIX_<key>_document.bin and .idx")
        .required = true;
    args.option("--tokenizer-type", "TYPE", &type_, "kind of tokenizer, as in experiments");
    args.option("--tokenizer-model,--tokenizer,-t", "FILE", &model_,
                "tokenizer file, or the folder of a model or a run");
    args.option("--vocab-file", "FILE", &vocab_file_,
                "vocab.json of a GPT2BPETokenizer, instead of --tokenizer-model")
        .reads = all_of_them;
    args.option("--merge-file", "FILE", &merge_file_, "merges.txt that belongs to --vocab-file").reads =
        all_of_them;
    args.option("--vocab-size", "N", &vocab_size_,
                "number of ids of a NullTokenizer, instead of --tokenizer-model; the last id ends documents");
    args.option("--tiktoken-pattern", "v2", &tiktoken_pattern_,
                "how Megatron's JSON list of tokens cuts text into words; only v2 is supported");
    args.option("--tiktoken-num-special-tokens", "1000", &tiktoken_specials_,
                "ids that such a list reserves for special tokens; only 1000 is supported");
    args.option("--json-keys", "KEY", &keys_, "keys of the texts in JSON lines (default: text); one or more")
        .several = true;
    args.flag("--append-eod", options_.append_eod, "end each document with the end-of-document token");
    args.flag(
        "--no-special-tokens,--tokenizer-hf-no-include-special-tokens", no_special_,
        "leave out the special tokens that the tokenizer puts around each text (Llama 3: <|begin_of_text|>)");
    args.flag("--skip-bad", options_.skip_bad, "leave out broken lines and count them");
    args.option("--workers", "N", &workers_, "threads, at most 4096; 0: one per core");
    declare_max_line(args, &max_line_mib_);
    args.option("--partitions", "N", &partitions_,
                "order the documents as preprocess_data.py does with N partitions");
    args.flag("--keep-sequential-samples", keep_sequential_,
              "keep the order of documents, and ignore --partitions");
    args.option("--log-interval", "N", &log_interval_,
                "show progress after every N documents, rounded to blocks of 256 KiB (default: by time)");
    overwrite_.declare(args);
    args.flag("--json", json_, "print the result as JSON");
    refuse_other_options_of_megatron(args);
  }

  int run(Console& console) override {
    if (type_.empty() && model_.empty() && vocab_file_.empty() && merge_file_.empty()) {
      throw invalid("there is no tokenizer",
                    "name its file with --tokenizer-model; --tokenizer-type ByteTokenizer needs none");
    }
    options_.output_prefix = prefix_;
    options_.max_line_bytes = max_line_bytes(max_line_mib_);
    options_.workers = checked_cast<int>(at_least(0, workers_, "--workers"), "--workers");
    options_.partitions = checked_cast<int>(at_least(1, partitions_, "--partitions"), "--partitions");
    if (keep_sequential_) options_.partitions = 1;
    options_.add_special = !no_special_;
    options_.existing = overwrite_.existing();
    options_.stop = &catch_stop_signals();
    if (!keys_.empty()) options_.json_keys = keys_;
    console.notes(data::remarks_on(options_.inputs));
    const auto tokenizer = load();
    console.notes(tokenizer->notes());
    const data::TokenizeResult r = tokenize(*tokenizer, console);
    if (r.skipped_lines > 0) {
      console.note(fmt::format(
          "warning: {} left out, the first: {}",
          r.skipped_lines == 1 ? "1 broken line was" : fmt::format("{} broken lines were", r.skipped_lines),
          r.first_skipped));
    }
    const bool all_broken = r.complete && r.tokens == 0 && r.skipped_lines > 0;
    if (r.complete && r.tokens == 0 && !all_broken) {
      console.note(fmt::format("warning: the input has no {}, so the output has no training data",
                               r.documents == 0 ? "document" : "text"));
    }
    json_ ? console.write(as_json(r)) : console.print(as_text(r));
    if (all_broken) {
      throw invalid("the input has no line that could be read, so the output has no training data",
                    "correct the lines; the warning above names the first");
    }
    constexpr int kInterrupted = 130;  // exit code that shells report after Ctrl-C
    return r.complete ? 0 : kInterrupted;
  }

 private:
  static std::int64_t at_least(std::int64_t minimum, std::int64_t number, const char* option) {
    if (number >= minimum) return number;
    throw invalid(fmt::format("{} cannot be {}", option, number),
                  fmt::format("set it to {} or more, or leave it out", minimum));
  }

  std::unique_ptr<const Tokenizer> load() const {
    for (const auto& [option, given, only] :
         {std::tuple("--tiktoken-pattern", tiktoken_pattern_, "v2"),
          {"--tiktoken-num-special-tokens", tiktoken_specials_, "1000"}}) {
      if (given.empty() || given == only) continue;
      throw unsupported(fmt::format("{} {} is not supported, only {}", option, given, only),
                        "Primus would compute other ids: tokenize this data with Megatron-LM");
    }
    const bool counts = type_ == "NullTokenizer" && vocab_size_;
    if (counts && !model_.empty()) {
      throw invalid("--vocab-size and --tokenizer-model both set the size of the NullTokenizer",
                    "leave one of them out");
    }
    auto tokenizer = load_named_tokenizer(
        {type_, counts ? std::to_string(*vocab_size_) : model_, vocab_file_, merge_file_});
    if (vocab_size_ && *vocab_size_ != tokenizer->vocab_size()) {
      throw invalid(fmt::format("--vocab-size is {}, but the tokenizer has {} ids", *vocab_size_,
                                tokenizer->vocab_size()),
                    "remove --vocab-size: only a NullTokenizer needs it");
    }
    return tokenizer;
  }

  data::TokenizeResult tokenize(const Tokenizer& tokenizer, const Console& console) {
    std::optional<ProgressLine> line;  // created once the input size is known
    std::uint64_t intervals = 0;       // finished intervals of --log-interval
    if (log_interval_) {
      at_least(1, *log_interval_, "--log-interval");
      options_.progress_seconds = 0;
    }
    data::TokenizeResult result =
        data::tokenize_corpus(options_, tokenizer, [&](const data::TokenizeProgress& p) {
          std::string note = fmt::format("{} tokens", human_count(static_cast<double>(p.tokens)));
          ProgressOptions options{.label = "tokenizing", .unit = "bytes", .total = p.bytes_total};
          if (log_interval_) {
            const std::uint64_t over = p.documents / static_cast<std::uint64_t>(*log_interval_);
            if (line && over == intervals) return;
            intervals = over;
            note = fmt::format("{} documents  {}", p.documents, note);
            options.redraw_seconds = options.plain_seconds = 0;
          }
          if (!line) line.emplace(json_ ? Terminal{} : console.err, options);
          line->update(p.bytes_done, steady_seconds(), note);
        });
    if (line) line->finish(steady_seconds());
    return result;
  }

  static std::string as_json(const data::TokenizeResult& r) {
    nlohmann::json json{{"complete", r.complete},
                        {"documents", r.documents},
                        {"sequences", r.sequences},
                        {"tokens", r.tokens},
                        {"bytes", r.bytes},
                        {"resumed_bytes", r.resumed_bytes},
                        {"skipped_lines", r.skipped_lines},
                        {"seconds", r.seconds},
                        {"prefixes", nlohmann::json::array()}};
    for (const Path& path : r.prefixes) json["prefixes"].push_back(path.string());
    return json_text(json) + "\n";
  }

  static std::string as_text(const data::TokenizeResult& r) {
    const auto done = static_cast<double>(r.bytes - r.resumed_bytes);
    std::string text =
        fmt::format("{} document{}, {} tokens in {} ({}/s)\n", r.documents, r.documents == 1 ? "" : "s",
                    r.tokens, human_duration(r.seconds), human_bytes(r.seconds > 0 ? done / r.seconds : 0));
    if (!r.complete) return text + "stopped; the same command continues from there\n";
    for (const Path& path : r.prefixes) text += fmt::format("{}.bin, .idx\n", path.string());
    return text;
  }

  data::TokenizeOptions options_;
  std::string prefix_, type_, model_, vocab_file_, merge_file_, tiktoken_pattern_, tiktoken_specials_;
  std::vector<std::string> keys_;
  std::optional<std::int64_t> vocab_size_, log_interval_;
  std::int64_t workers_ = 0, partitions_ = 1, max_line_mib_ = 64;
  OverwriteFlag overwrite_;
  bool no_special_ = false, keep_sequential_ = false, json_ = false;
};

class DataTrainTokenizer final : public Command {
 public:
  void declare(Arguments& args) override {
    Argument& input = args.option("--input,-i", "PATH", &options_.inputs,
                                  "text or JSON lines: files, folders, globs; one or more");
    input.required = input.several = true;
    args.option("--output,-o", "FOLDER", &output_, "folder for tokenizer.json").required = true;
    args.option("--vocab-size", "N", &vocab_size_,
                "number of tokens, including the 256 bytes, <|endoftext|> and special tokens");
    args.option("--special", "TOKEN", &special_,
                "a text that is always one special token (<|im_start|>); may be repeated");
    args.option("--json-key", "KEY", &options_.json_key, "key of the text in JSON lines");
    args.flag("--gpt2", options_.bpe.gpt2_style, "cut words as GPT-2 does (default: as Llama 3)");
    args.flag("--skip-bad", options_.skip_bad, "leave out broken lines");
    declare_max_line(args, &max_line_mib_);
    overwrite_.declare(args);
    args.flag("--json", json_, "print the result as JSON");
  }

  int run(Console& console) override {
    options_.max_line_bytes = max_line_bytes(max_line_mib_);
    options_.bpe.vocab_size = checked_cast<std::int32_t>(vocab_size_, "--vocab-size");
    for (const std::string& token : special_) {
      if (token.empty()) throw invalid("--special: an empty text cannot be a token");
      if (std::ranges::count(special_, token) > 1)
        throw invalid(fmt::format("--special '{}' is given twice", token), "give each token once");
      options_.bpe.special_tokens.push_back(token);
    }
    console.notes(data::remarks_on(options_.inputs));
    const Path file = Path(output_) / "tokenizer.json";
    refuse_existing(file, overwrite_.existing());  // checked now, because tokenizing takes long
    const bool is_new = !Env::posix().status(output_);
    make_folders(output_);
    const double begin = steady_seconds();
    std::uint64_t bytes = 0;
    const std::string content = learn(bytes, is_new, console);
    write_file_atomic(file, content);
    const auto tokenizer = load_tokenizer("", file.string());
    if (tokenizer->vocab_size() < vocab_size_) {
      console.note(fmt::format(
          "note: {} tokens were requested, but this text gives only {}: it has no more pairs to merge",
          vocab_size_, tokenizer->vocab_size()));
    }
    if (json_) {
      const nlohmann::json result{{"file", file.string()},
                                  {"vocab_size", tokenizer->vocab_size()},
                                  {"bytes", bytes},
                                  {"seconds", steady_seconds() - begin}};
      console.write(json_text(result) + "\n");
    } else {
      console.print(fmt::format("{}: {} tokens\n", file.string(), tokenizer->vocab_size()));
    }
    return 0;
  }

 private:
  // Returns the tokenizer. If it cannot be trained, removes the output folder, which is empty, if the folder
  // `is_new`. `bytes`: receives the number of bytes read.
  std::string learn(std::uint64_t& bytes, bool is_new, Console& console) const {
    try {
      ProgressLine progress(json_ ? Terminal{} : console.err, {.label = "learning"});
      std::string content = data::train_tokenizer(options_, [&](const data::TrainTokenizerProgress& p) {
        bytes = p.bytes_total;
        progress.update(p.bytes_done, steady_seconds(),
                        p.merges_done > 0
                            ? fmt::format("{} of {} merges", p.merges_done, p.merges_wanted)
                            : fmt::format("{} read", human_bytes(static_cast<double>(p.bytes_done))));
      });
      progress.finish(steady_seconds());
      return content;
    } catch (...) {
      std::error_code ignored;  // remove() keeps a folder that contains files
      if (is_new) std::filesystem::remove(output_, ignored);
      throw;
    }
  }

  data::TrainTokenizerOptions options_;
  std::string output_;
  std::vector<std::string> special_;
  std::int64_t vocab_size_ = 8192, max_line_mib_ = 64;
  OverwriteFlag overwrite_;
  bool json_ = false;
};

}  // namespace

extern const CommandEntry kDataTokenize{
    "data tokenize",
    "Turns text or JSON lines into .bin/.idx training data",
    "The options and files are those of Megatron's preprocess_data.py. Files appear only when they are "
    "complete, and replace older ones only with --overwrite. After Ctrl-C or a kill, the same command "
    "resumes.",
    "primus data tokenize -i books/ -o data/books -t tokenizer.json --append-eod\n"
    "primus data tokenize -i 'corpus/*.jsonl.zst' -o data/corpus -t tokenizer.model --json-keys title text",
    make_command<DataTokenize>,
    {Section::kData, 1}};

extern const CommandEntry kDataTrainTokenizer{
    "data train-tokenizer",
    "Trains a byte-level BPE tokenizer on text",
    "Writes a tokenizer.json that Hugging Face tokenizers and Primus load. An existing tokenizer.json is "
    "replaced only with --overwrite, because data and models that were made with it do not match the new "
    "one.",
    "primus data train-tokenizer -i book.txt -o tokenizer --vocab-size 4096\n"
    "primus data train-tokenizer -i texts.jsonl -o tokenizer --special '<|im_start|>' --special '<|im_end|>'",
    make_command<DataTrainTokenizer>,
    {Section::kData, 2}};

}  // namespace primus::cli
