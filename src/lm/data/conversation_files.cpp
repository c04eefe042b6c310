#include "lm/data/conversation_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/system/thread_pool.h"
#include "base/text/counted.h"
#include "lm/data/tables.h"
#include "lm/data/text_check.h"
#include "lm/tokenizer/text/unicode.h"

namespace primus::data {
namespace {

// Max size of a JSON-list file, which is loaded as one block.
constexpr std::size_t kMaxListBytes = std::size_t{4} << 30;

// The text of one JSON object, and the object's first line in the file.
struct Place {
  std::string_view text;
  std::int64_t line = 0;
};

// Objects that are processed together, and the memory that contains their text.
struct Part {
  std::vector<std::unique_ptr<const std::string>> memory;
  std::vector<Place> objects;
  std::string file;
  std::uint64_t position = 0;  // number of bytes read so far from the file on disk
};
using PartFn = FunctionRef<void(const Part&)>;

std::string_view without_mark(std::string_view text) {
  if (text.starts_with(unicode::kByteOrderMark)) text.remove_prefix(unicode::kByteOrderMark.size());
  return text;
}

bool begins_list(std::string_view text) {
  text = without_mark(text);
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  return begin != std::string_view::npos && text[begin] == '[';
}

void add_lines(std::string_view text, std::int64_t line, std::vector<Place>& objects) {
  for (; !text.empty(); ++line) {
    const std::size_t newline = text.find('\n');
    const std::string_view object = text.substr(0, newline);
    text.remove_prefix(newline == std::string_view::npos ? text.size() : newline + 1);
    if (object.find_first_not_of(" \t\r") != std::string_view::npos) objects.push_back({object, line});
  }
}

void read_lines(const InputFile& file, PartFn visit) {
  constexpr std::size_t kTogether = 16;  // number of blocks that are processed together
  BlockReader reader({file});
  Part part{.file = file.path.string()};
  bool more = true;
  while (more) {
    auto text = std::make_unique<std::string>();
    TextBlock block;
    more = reader.next(block);
    if (more) {
      if (block.begins_file) refuse_other_content(block.text, part.file, block.first_line, true);
      *text = std::move(block.text);
      add_lines(block.begins_file ? without_mark(*text) : std::string_view(*text), block.first_line,
                part.objects);
      part.memory.push_back(std::move(text));
      part.position = block.position;
    }
    if (part.memory.size() < kTogether && more) continue;
    visit(part);
    part.objects.clear();
    part.memory.clear();
  }
}

// Throws if the first two lines of a file are lists. Such a file has one list of messages per line, where
// Primus needs the key "messages".
void refuse_lists_in_lines(std::string_view text, const std::string& file) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  const std::size_t newline = text.find('\n', begin);
  if (newline == std::string_view::npos) return;
  const std::string_view line = text.substr(0, newline);
  const std::size_t last = line.find_last_not_of(" \t\r");
  if (last == begin || line[last] != ']' || !begins_list(text.substr(newline))) return;
  throw invalid("the line is a list, not an object",
                "a conversation is an object: {\"messages\": [...]}; jq -c '{messages: .}' FILE > NEW_FILE "
                "writes such lines")
      .at(fmt::format("{}:{}", file,
                      1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(begin), '\n')));
}

void read_list(const InputFile& file, PartFn visit) {
  auto text = std::make_unique<std::string>();
  BlockReader reader({file}, BlockReader::kBlockSize, kMaxListBytes);
  for (TextBlock block; reader.next(block);) {
    if (text->size() + block.text.size() > kMaxListBytes) {
      throw unsupported("a JSON list of more than 4 GiB is not supported",
                        "write it as JSON lines: jq -c '.[]' FILE > FILE.jsonl")
          .at(file.path.string());
    }
    *text += block.text;
  }
  Part part{.file = file.path.string(), .position = file.size};
  const std::string_view all = without_mark(*text);
  refuse_lists_in_lines(all, part.file);
  JsonReader json(all, part.file, {.python = true});
  const char* counted = all.data();
  std::int64_t line = 1;
  json.array([&] {
    json.require(JsonReader::Kind::kObject, "an element of the list");
    const std::string_view object = json.skip();
    line += std::count(counted, object.data(), '\n');
    counted = object.data();
    part.objects.push_back({object, line});
  });
  json.finish();
  part.memory.push_back(std::move(text));
  visit(part);
}

void read_objects(const std::vector<InputFile>& files, PartFn visit) {
  for (const InputFile& file : files) {
    TextBlock block;
    BlockReader reader({file});
    bool list = false;
    // Accepts long lines, because a JSON list may be a single line.
    try {
      while (reader.next(block) && block.text.find_first_not_of(" \t\r\n") == std::string::npos) {
      }
      list = begins_list(block.text);
    } catch (const Error&) {
      BlockReader whole({file}, BlockReader::kBlockSize, kMaxListBytes);
      whole.next(block);
      list = begins_list(block.text);
      if (!list) throw;
    }
    list ? read_list(file, visit) : read_lines(file, visit);
  }
}

Error at_line(Error error, const Place& place, const std::string& file) {
  if (error.location().empty()) error.at(fmt::format("{}:{}", file, place.line));
  if (place.text.find_first_not_of("{ \t\r") == std::string_view::npos) {
    error.add_hint(
        "a JSON-lines file has one object per line, and a JSON file has a list of objects: 'jq -c .' writes "
        "lines");
  }
  return error;
}

// Returns whether a file name begins with one of the names of a split.
bool is_part(std::string_view file, std::initializer_list<std::string_view> names) {
  return std::ranges::any_of(names, [file](std::string_view name) {
    if (!file.starts_with(name)) return false;
    const std::string_view rest = file.substr(name.size());
    return rest.starts_with('.') || rest.starts_with('-') || rest.starts_with('_');
  });
}

// Returns whether the name is that of a backup or partial copy, which would repeat records.
bool is_backup(std::string_view file) {
  constexpr std::array<std::string_view, 7> kEndings = {"~",    ".bak", ".old", ".orig",
                                                        ".swp", ".tmp", ".part"};
  return std::ranges::any_of(kEndings, [file](std::string_view ending) { return file.ends_with(ending); });
}

// Returns whether a file name has the extension of JSON, compressed or not.
bool is_json(std::string_view file) {
  for (const std::string_view packed : {".gz", ".zst"}) {
    if (file.ends_with(packed)) file.remove_suffix(packed.size());
  }
  constexpr std::array<std::string_view, 3> kEndings = {".jsonl", ".json", ".ndjson"};
  return std::ranges::any_of(kEndings, [file](std::string_view ending) { return file.ends_with(ending); });
}

// Returns whether `name` is a list of existing files, separated by blanks or commas.
bool is_list_of_files(std::string_view name) {
  std::size_t found = 0;
  while (!name.empty()) {
    const std::size_t end = std::min(name.find_first_of(" ,"), name.size());
    if (end > 0 && !Env::posix().status(Path(name.substr(0, end)))) return false;
    found += end > 0 ? 1 : 0;
    name.remove_prefix(std::min(end + 1, name.size()));
  }
  return found > 1;
}

constexpr const char* kHowToExport =
    "where there is a network, python -c \"from datasets import load_dataset; "
    "load_dataset('NAME', split='train').to_json('train.jsonl')\" writes one as JSON lines";

std::string how_to_export(const std::string& name) {
  std::string text = kHowToExport;
  return text.replace(text.find("NAME"), 4, name);
}

// Returns whether `name` looks like the hub's "tatsu-lab/alpaca", and not like the path "./data/x.jsonl".
bool looks_like_hub(const std::string& name) {
  const std::size_t slash = name.find('/');
  const bool pair = slash != std::string::npos && slash > 0 && slash + 1 < name.size() &&
                    name.find('/', slash + 1) == std::string::npos;
  return pair && name[0] != '.' && name[0] != '~' && name.find(".json") == std::string::npos;
}

Error no_such_data(const std::string& name) {
  if (is_list_of_files(name)) {
    return invalid(
        fmt::format("'{}' names several files, but conversations are one file or one folder", name),
        "put them into one folder as train-1.jsonl, train-2.jsonl, or join them: cat A B > BOTH.jsonl");
  }
  if (looks_like_hub(name)) {
    return invalid(
        fmt::format("file or folder '{}' does not exist; Primus does not download data sets from the Hugging "
                    "Face hub",
                    name),
        fmt::format("give a JSON-lines file, or a folder with train.jsonl and optionally "
                    "validation.jsonl; {}",
                    how_to_export(name)));
  }
  return invalid(
      fmt::format("file or folder '{}' of conversations does not exist", name),
      fmt::format("give a JSON-lines file, or a folder with train.jsonl and optionally "
                  "validation.jsonl{}",
                  Path(name).is_absolute() ? ""
                                           : fmt::format("; paths are relative to '{}'",
                                                         std::filesystem::current_path().string())));
}

// Returns the input files. Throws if one of them is not JSON.
std::vector<InputFile> json_files(const std::vector<std::string>& patterns) {
  std::vector<InputFile> files = find_inputs(patterns);
  for (const InputFile& file : files) {
    refuse_table(file.path);
    if (file.kind == InputKind::kJsonLines || !file.known_ending) continue;
    throw invalid(fmt::format("'{}' is plain text, but conversations must be JSON lines", file.path.string()),
                  "to train on plain text, use 'train pretrain' with data_path");
  }
  return files;
}

ConversationFiles divided_folder(const Path& folder, const std::string& split) {
  Env& env = Env::posix();
  const std::vector<std::string> names = env.list(folder);
  const auto has = [&](std::string_view name) { return std::ranges::find(names, name) != names.end(); };
  std::vector<std::string> train, valid, test, other;
  for (const std::string& name : names) {
    if (is_part(name, {split}) || is_part(name, {"validation", "valid", "val", "dev", "test"}))
      refuse_dangling_link(folder / name);
    const auto status = env.status(folder / name);
    if (!status || status->type != FileStatus::Type::kFile || name.ends_with(".npy")) continue;
    const std::string path = (folder / name).string();
    if (is_backup(name)) continue;
    if (is_part(name, {split})) {
      train.push_back(path);
    } else if (is_part(name, {"validation", "valid", "val", "dev"})) {
      valid.push_back(path);
    } else if (is_part(name, {"test"})) {
      test.push_back(path);
    } else if (is_json(name)) {
      other.push_back(name);
    }
  }
  if (train.empty() && has("train.npy") && has("packed_metadata.jsonl")) {
    throw unsupported(
        fmt::format(
            "'{}' holds MLPerf's packed arrays (train.npy): each of their elements is a pickled Python "
            "object, which may run code when it is read",
            folder.string()),
        fmt::format(
            "write them as JSON lines of {{\"input_ids\", \"loss_mask\", \"seq_start_id\"}}, for train "
            "and for validation: python -c \"import json, numpy as np; [print(json.dumps({{k: "
            "list(map(int, v)) for k, v in s.items()}})) for s in np.load('{}', allow_pickle=True)]\" > "
            "{}",
            (folder / "train.npy").string(), (folder / "train.jsonl").string()));
  }
  if (train.empty()) {
    refuse_binary_dataset(folder, split);
    throw invalid(
        fmt::format("folder '{}' has no file whose name begins with '{}'; it has {}", folder.string(), split,
                    names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "))),
        "name the training file train.jsonl, or choose it with sft_dataset_split");
  }
  const auto found = [](const std::vector<std::string>& paths) {
    return paths.empty() ? std::vector<InputFile>{} : json_files(paths);
  };
  return {.train = found(train),
          .valid = found(valid),
          .test = found(test),
          .other = std::move(other),
          .divided = true};
}

// Returns the number that `text` is; nullopt if it is not a number of at most nine digits.
std::optional<std::int64_t> number_of(std::string_view text) {
  constexpr std::size_t kMostDigits = 9;
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (text.empty() || text.size() > kMostDigits || !std::ranges::all_of(text, is_digit)) return std::nullopt;
  return std::stoll(std::string(text));
}

// Returns a note on sets of numbered files (train-00001-of-00003.jsonl) that are incomplete; "" if there are
// none.
std::string note_on_missing_parts(const ConversationFiles& files) {
  struct Set {
    std::int64_t total = 0;
    std::set<std::int64_t> parts{};
  };
  std::map<std::string, Set> sets;  // by a pattern of the names
  for (const std::vector<InputFile>* const split : {&files.train, &files.valid, &files.test}) {
    for (const InputFile& file : *split) {
      const std::string name = file.path.filename().string();
      const std::string_view stem = std::string_view(name).substr(0, name.find('.'));
      const std::size_t of = stem.rfind("-of-");
      const std::size_t dash = of == std::string::npos || of == 0 ? of : stem.rfind('-', of - 1);
      if (dash == std::string::npos || dash >= of) continue;
      const auto part = number_of(stem.substr(dash + 1, of - dash - 1)),
                 total = number_of(stem.substr(of + 4));
      if (!part || !total) continue;
      Set& set = sets[fmt::format("{}*{}", stem.substr(0, dash + 1), stem.substr(of))];
      set.total = *total;
      set.parts.insert(*part);
    }
  }
  std::string note;
  for (const auto& [pattern, set] : sets) {
    if (std::ssize(set.parts) >= set.total) continue;
    note += fmt::format("{}{} of {} files '{}' exist", note.empty() ? "" : "; ", set.parts.size(), set.total,
                        pattern);
  }
  return note;
}

}  // namespace

ConversationFiles find_conversations(const std::string& name, const std::string& split) {
  const auto status = Env::posix().status(name);
  if (status && status->type == FileStatus::Type::kFolder) return divided_folder(name, split);
  if (!status && name.find_first_of("*?[") == std::string::npos) throw no_such_data(name);
  return {.train = json_files({name})};
}

std::string note_on_other_files(const ConversationFiles& files, std::string_view name) {
  constexpr std::size_t kShown = 8;
  const std::string missing = note_on_missing_parts(files);
  if (files.other.empty()) return missing.empty() ? "" : fmt::format("{}: {}", name, missing);
  const auto shown = std::span(files.other).first(std::min(kShown, files.other.size()));
  return fmt::format(
      "{}: {}{}not read, because their names begin with none of train, validation and test: {}{} (name them "
      "train-1.jsonl, "
      "train-2.jsonl to train on them)",
      name, missing, missing.empty() ? "" : "; ", fmt::join(shown, ", "),
      files.other.size() > kShown ? fmt::format(" and {} more", files.other.size() - kShown) : "");
}

std::string note_on_skipped(const TokenizedConversations& read, std::string_view file) {
  if (read.skipped == 0) return "";
  return fmt::format("{}: skipped {} of {} records (skip_bad); the first: {}", file, read.skipped, read.read,
                     read.first_skipped);
}

std::string note_on_unused(const TokenizedConversations& read, std::string_view file) {
  constexpr std::size_t kMaxKeys = 12;
  if (read.unused.empty()) return "";
  std::vector<std::string> keys;
  for (const auto& [key, count] : read.unused) {
    if (keys.size() == kMaxKeys) {
      keys.push_back(fmt::format("and {} more", read.unused.size() - kMaxKeys));
      break;
    }
    keys.push_back(fmt::format("{} ({})", key, count));
  }
  return fmt::format("{}: ignored keys, with their number of records: {}", file, fmt::join(keys, ", "));
}

std::vector<std::string> notes_on_content(const TokenizedConversations& read, std::string_view file) {
  std::vector<std::string> notes, keys;
  for (const auto& [key, count] : read.replaced)
    keys.push_back(fmt::format("'{}' ({})", key, counted(count, "record")));
  if (!keys.empty()) {
    notes.push_back(
        fmt::format("{}: records have {} next to messages or input_ids; only messages or input_ids are "
                    "learned (the first: {})",
                    file, fmt::join(keys, ", "), read.first_replaced));
  }
  if (read.unanswered > 0) {
    notes.push_back(
        fmt::format("{}: {} of {} conversations end without an answer: the answers before that turn are "
                    "learned, and that turn "
                    "is not (the first: {})",
                    file, read.unanswered, read.read, read.first_unanswered));
  }
  if (read.empty_questions > 0) {
    notes.push_back(fmt::format(
        "{}: {} of {} conversations have an empty question, after which an answer is learned (the first: {})",
        file, read.empty_questions, read.read, read.first_empty_question));
  }
  return notes;
}

namespace {

// A record, or the reason why it is broken.
struct Done {
  TokenizedRecord record;
  std::optional<Error> error;
};

class ConversationReader final : public RecordReader {
 public:
  ConversationReader(const ConversationWriter& writer, std::int64_t vocab_size)
      : writer_(writer), vocab_size_(vocab_size) {}

  void prepare(std::size_t /*slots*/, int threads) override {
    scratch_.resize(static_cast<std::size_t>(threads));
  }
  std::string_view name() const override { return "a conversation"; }

  void read(JsonReader& json, std::size_t /*slot*/, int thread, TokenizedRecord& out) override {
    Conversation& conversation = scratch_[static_cast<std::size_t>(thread)];
    read_conversation(json, conversation, writer_.members());
    json.finish();
    out.unused = conversation.unused;
    out.replaced = conversation.replaced;
    out.unanswered = conversation.ends_unanswered();
    out.empty_question = conversation.has_empty_question();
    if (!conversation.messages.empty()) return writer_.write(conversation, out.tokens);
    for (const std::int32_t id : conversation.ids) {
      if (id < vocab_size_) continue;
      throw invalid(fmt::format("token {} is outside the vocabulary of {}", id, vocab_size_),
                    "the data were made with another tokenizer: use that one");
    }
    out.tokens.ids = conversation.ids;
    out.tokens.learned = conversation.learned;
    out.tokens.starts = conversation.starts;
  }

 private:
  const ConversationWriter& writer_;
  const std::int64_t vocab_size_;
  std::vector<Conversation> scratch_;  // one for each thread
};

// Appends a record to the result, or counts the record as broken.
void add(const Done& one, const Place& place, const std::string& file, const ReadOptions& options,
         TokenizedConversations& all) {
  if (one.error && !options.skip_bad)
    throw Error(*one.error)
        .add_hint(
            "if other records are good, '--skip-bad' (in training: sft_skip_bad=true) skips such records and "
            "counts them");
  if (one.error) {
    if (all.skipped++ == 0)
      all.first_skipped = fmt::format("{}: {}", one.error->location(), one.error->what());
    return;
  }
  const auto here = [&] { return fmt::format("{}:{}", file, place.line); };
  const TokenizedRecord& record = one.record;
  for (const std::string& key : record.unused) ++all.unused[key];
  for (const std::string& key : record.replaced) ++all.replaced[key];
  if (!record.replaced.empty() && all.first_replaced.empty()) all.first_replaced = here();
  if (record.unanswered && all.unanswered++ == 0) all.first_unanswered = here();
  if (record.empty_question && all.empty_questions++ == 0) all.first_empty_question = here();
  const auto begin = static_cast<std::int64_t>(all.ids.size());
  all.ids.insert(all.ids.end(), record.tokens.ids.begin(), record.tokens.ids.end());
  all.learned.insert(all.learned.end(), record.tokens.learned.begin(), record.tokens.learned.end());
  const std::vector<std::int64_t>& starts = record.tokens.starts;
  for (std::size_t k = 1; k < starts.size(); ++k) all.ends.push_back(begin + starts[k]);
  all.ends.push_back(static_cast<std::int64_t>(all.ids.size()));
}

}  // namespace

TokenizedConversations read_conversations(const std::vector<InputFile>& files,
                                          const ConversationWriter& writer, const ReadOptions& options) {
  ConversationReader reader(writer, options.vocab_size);
  return read_records(files, reader, options);
}

TokenizedConversations read_records(const std::vector<InputFile>& files, RecordReader& reader,
                                    const ReadOptions& options) {
  using Clock = std::chrono::steady_clock;
  constexpr std::int64_t kGrain = 16;
  ThreadPool pool(options.workers > 0
                      ? options.workers
                      : static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, 64u)));
  TokenizedConversations all;
  std::vector<Done> done;
  const Clock::time_point began = Clock::now();
  std::uint64_t bytes_total = 0, bytes_before = 0;
  for (const InputFile& file : files) bytes_total += file.size;

  std::string current;
  std::uint64_t current_size = 0;
  read_objects(files, [&](const Part& part) {
    if (part.file != current) {
      bytes_before += current_size;
      current = part.file;
      for (const InputFile& file : files)
        if (file.path.string() == current) current_size = file.size;
    }
    done.resize(std::max(done.size(), part.objects.size()));
    reader.prepare(part.objects.size(), pool.size());
    pool.parallel_for(static_cast<std::int64_t>(part.objects.size()), kGrain,
                      [&](std::int64_t begin, std::int64_t end, int thread) {
                        for (std::int64_t i = begin; i < end; ++i) {
                          const auto at = static_cast<std::size_t>(i);
                          done[at].error.reset();
                          try {
                            const Place& place = part.objects[at];
                            unicode::require_valid(place.text, part.file, place.line);
                            JsonReader json(place.text, part.file,
                                            {.first_line = place.line, .python = true});
                            reader.read(json, at, thread, done[at].record);
                          } catch (const Error& error) {
                            done[at].error = at_line(error, part.objects[at], part.file);
                          }
                        }
                      });
    for (std::size_t i = 0; i < part.objects.size(); ++i) {
      add(done[i], part.objects[i], part.file, options, all);
      if (!done[i].error) reader.added(i);
    }
    all.read += static_cast<std::int64_t>(part.objects.size());
    if (options.progress) {
      options.progress({part.file, std::min(bytes_total, bytes_before + part.position), bytes_total,
                        static_cast<std::uint64_t>(all.read), all.ids.size(),
                        std::chrono::duration<double>(Clock::now() - began).count()});
    }
  });
  if (all.skipped > 0 && all.ends.empty()) {
    throw invalid(
        fmt::format("none of {} records is {}; the first: {}", all.read, reader.name(), all.first_skipped),
        "docs/formats/conversations.md describes the records");
  }
  // Frees unused capacity, because the arrays are kept for a long time.
  all.ids.shrink_to_fit();
  all.learned.shrink_to_fit();
  all.ends.shrink_to_fit();
  return all;
}

}  // namespace primus::data
