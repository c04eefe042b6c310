#include "lm/data/tokenize.h"

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>  // hardware_concurrency
#include <utility>

#include "base/checked.h"
#include "base/error.h"
#include "base/files/partial_folder.h"
#include "base/system/threads.h"
#include "lm/data/block_encoder.h"
#include "lm/data/corpus.h"
#include "lm/data/indexed_dataset.h"
#include "lm/data/made_by.h"
#include "lm/data/tokenize_state.h"

namespace primus::data {

namespace {

using Clock = std::chrono::steady_clock;

// The output: one data set per JSON key; or, with partitions, one per key and partition, which are merged at
// the end.
class Output {
 public:
  Output(const TokenizeOptions& options, TokenType type, const Path& folder, Env& env)
      : options_(options),
        type_(type),
        folder_(folder),
        env_(env),
        partitions_(static_cast<std::size_t>(options.partitions)) {}

  // `from`: the result of an earlier save(), to resume from; empty for a new start.
  void open(const std::vector<IndexedDatasetWriter::Progress>& from) {
    for (const std::string& key : options_.json_keys) {
      for (std::size_t partition = 0; partition < partitions_; ++partition) {
        const std::size_t i = writers_.size();
        writers_.push_back(std::make_unique<IndexedDatasetWriter>(
            tokenized_prefix(options_.output_prefix, key), type_, part_prefix(key, partition),
            from.empty() ? IndexedDatasetWriter::Progress{} : from[i], env_));
      }
    }
  }
  void close() { writers_.clear(); }
  std::size_t writers() const { return options_.json_keys.size() * partitions_; }

  // Returns the data set for the next document of a key; `documents` is the number of earlier documents.
  IndexedDatasetWriter& writer(std::size_t key, std::uint64_t documents) {
    return *writers_[key * partitions_ + documents % partitions_];
  }

  std::vector<IndexedDatasetWriter::Progress> save() {
    std::vector<IndexedDatasetWriter::Progress> progress;
    for (const auto& writer : writers_) progress.push_back(writer->save());
    return progress;
  }
  void keep_unfinished() {
    for (const auto& writer : writers_) writer->keep_unfinished();
  }
  std::uint64_t tokens() const { return total(&IndexedDatasetWriter::tokens); }
  std::uint64_t sequences() const { return total(&IndexedDatasetWriter::sequences); }

  // Renames each data set to its final name, with a note that `tokenizer` made its ids.
  void finish(const Tokenizer& tokenizer) {
    for (const auto& writer : writers_) writer->complete();
    std::vector<std::unique_ptr<IndexedDatasetWriter>> joined;
    if (partitions_ > 1) {
      for (const std::string& key : options_.json_keys) joined.push_back(join(key));
    }
    const auto& whole = partitions_ > 1 ? joined : writers_;
    for (const auto& writer : whole) attach_made_by(*writer, tokenizer);
    for (const auto& writer : whole) writer->finish();
  }

 private:
  // Merges all partitions of a key. The result is complete but not yet renamed.
  std::unique_ptr<IndexedDatasetWriter> join(const std::string& key) const {
    auto joined =
        std::make_unique<IndexedDatasetWriter>(tokenized_prefix(options_.output_prefix, key), type_,
                                               folder_ / key, IndexedDatasetWriter::Progress{}, env_);
    for (std::size_t partition = 0; partition < partitions_; ++partition) {
      const auto part = IndexedDataset::open(part_prefix(key, partition), env_);
      joined->append(*part, 0, part->documents());
    }
    joined->complete();
    return joined;
  }
  Path part_prefix(const std::string& key, std::size_t partition) const {
    return folder_ / fmt::format("{}_{}", key, partition);
  }
  std::uint64_t total(std::int64_t (IndexedDatasetWriter::*count)() const) const {
    std::uint64_t sum = 0;
    for (const auto& writer : writers_) sum += static_cast<std::uint64_t>(((*writer).*count)());
    return sum;
  }

  const TokenizeOptions& options_;
  const TokenType type_;
  const Path folder_;
  Env& env_;
  const std::size_t partitions_;
  std::vector<std::unique_ptr<IndexedDatasetWriter>> writers_;
};

// Workers fetch blocks one after another and encode them concurrently. The blocks are written in reading
// order. The result is therefore the same for any number of workers. At most a few blocks per worker are in
// memory.
class BlockWorkers {
 public:
  using Write = std::function<void(const TextBlock& block, const EncodedBlock& encoded)>;
  // All arguments must outlive this object. `write` is never called concurrently.
  BlockWorkers(BlockReader& reader, const TokenizeOptions& options, const Tokenizer& tokenizer, Write write)
      : options_(options),
        tokenizer_(tokenizer),
        write_(std::move(write)),
        workers_(options.workers > 0 ? options.workers
                                     : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()))),
        reader_(reader) {}

  // Processes all blocks. If blocks fail, throws the error of the earliest block.
  void run() {
    ThreadGroup threads;
    try {
      for (int i = 1; i < workers_; ++i) threads.start([this] { work(); }, "encodes");
    } catch (const Error&) {
      // Ignores the error, because the result does not depend on the number of threads, and this thread
      // works, too.
    }
    work();
    threads.join();
    if (failure_ != nullptr) std::rethrow_exception(failure_);
    if (broken_worker_ != nullptr) std::rethrow_exception(broken_worker_);
  }

 private:
  bool stop_requested() const { return options_.stop != nullptr && *options_.stop; }

  // A block between reader and writer.
  struct Work {
    TextBlock block;
    EncodedBlock encoded;
    std::exception_ptr error;
  };

  void work() {
    try {
      encode_blocks();
    } catch (...) {
      // Memory ran out outside the handling of a block. Wakes the other workers, which would otherwise wait
      // for the lost block.
      const std::lock_guard lock(output_mutex_);
      if (broken_worker_ == nullptr) broken_worker_ = std::current_exception();
      const std::lock_guard stop(input_);
      stopped_ = true;
      written_changed_.notify_all();
    }
  }

  void encode_blocks() {
    BlockEncoder encoder(options_, tokenizer_);
    while (true) {
      std::unique_ptr<Work> work = take_spare();
      std::uint64_t turn;
      {
        const std::lock_guard lock(input_);
        if (stopped_ || stop_requested()) return;
        turn = next_turn_;
        try {
          if (!reader_.next(work->block)) return;
        } catch (...) {
          work->error = std::current_exception();
          stopped_ = true;
        }
        ++next_turn_;
      }
      try {
        if (work->error == nullptr)
          encoder.encode(work->block, reader_.files()[work->block.file], work->encoded);
      } catch (...) {
        work->error = std::current_exception();
      }
      hand_in(turn, std::move(work));
    }
  }

  std::unique_ptr<Work> take_spare() {
    const std::lock_guard lock(output_mutex_);
    if (spare_.empty()) return std::make_unique<Work>();
    std::unique_ptr<Work> work = std::move(spare_.back());
    spare_.pop_back();
    work->error = nullptr;
    return work;
  }

  // Adds a finished block. If no worker is writing, writes all blocks that are next in order. Waits only if
  // this block is too far ahead of the last written block.
  void hand_in(std::uint64_t turn, std::unique_ptr<Work> work) {
    std::unique_lock lock(output_mutex_);
    finished_.emplace(turn, std::move(work));
    if (!writing_) {
      writing_ = true;
      for (auto next = finished_.begin(); next != finished_.end() && next->first == written_;
           next = finished_.begin()) {
        std::unique_ptr<Work> due = std::move(next->second);
        finished_.erase(next);
        lock.unlock();
        write_or_fail(*due);
        lock.lock();
        // Keeps the block for reuse, unless an unusually long line has made its buffer large.
        if (due->block.text.capacity() <= 4 * BlockReader::kBlockSize) spare_.push_back(std::move(due));
        ++written_;
        written_changed_.notify_all();
      }
      writing_ = false;
    }
    written_changed_.wait(lock, [&] {
      return broken_worker_ != nullptr || turn < written_ + kAhead * static_cast<std::uint64_t>(workers_);
    });
  }

  // Writes a block or throws its error. Blocks arrive in reading order. Therefore the earliest error in the
  // input is reported, whichever worker fails first.
  void write_or_fail(const Work& work) {
    if (failure_ != nullptr) return;
    try {
      if (work.error != nullptr) std::rethrow_exception(work.error);
      write_(work.block, work.encoded);
    } catch (...) {
      failure_ = std::current_exception();
      const std::lock_guard stop(input_);
      stopped_ = true;
    }
  }

  static constexpr std::uint64_t kAhead = 4;  // max number of blocks per worker that wait for an earlier
                                              // block

  const TokenizeOptions& options_;
  const Tokenizer& tokenizer_;
  const Write write_;
  const int workers_;

  std::mutex input_;  // guards reader_, next_turn_ and stopped_
  BlockReader& reader_;
  std::uint64_t next_turn_ = 0;
  bool stopped_ = false;

  std::mutex output_mutex_;  // guards the members up to broken_worker_
  std::condition_variable written_changed_;
  std::uint64_t written_ = 0;                                // number of blocks written
  bool writing_ = false;                                     // whether a worker is writing
  std::map<std::uint64_t, std::unique_ptr<Work>> finished_;  // finished blocks by block number
  std::vector<std::unique_ptr<Work>> spare_;
  std::exception_ptr broken_worker_;  // error that ended a worker outside the handling of a block

  std::exception_ptr failure_;
};

// The work of one call of tokenize_corpus().
class Pipeline {
 public:
  Pipeline(const TokenizeOptions& options, const Tokenizer& tokenizer, const TokenizeProgressFn& progress,
           Env& env)
      : options_(options),
        tokenizer_(tokenizer),
        progress_(progress),
        env_(env),
        reader_(find_inputs(options.inputs), BlockReader::kBlockSize, options.max_line_bytes,
                options.hints.max_line),
        folder_(options.output_prefix, env),
        output_(options, token_type_for(tokenizer.vocab_size()), folder_.path(), env) {
    for (const InputFile& file : reader_.files()) bytes_total_ += file.size;
    for (const std::string& key : options.json_keys)
      result_.prefixes.push_back(tokenized_prefix(options.output_prefix, key));
    state_.key = key();
  }

  TokenizeResult run() {
    try {
      begin();
      BlockWorkers(reader_, options_, tokenizer_,
                   [this](const TextBlock& block, const EncodedBlock& encoded) { write(block, encoded); })
          .run();
      finish();
    } catch (FileError& error) {
      // Keeps the saved work after a disk error, for example if the disk is full.
      if (saved_) {
        keep_unfinished();
        error.add_hint("run the same command again to continue from the saved progress");
      }
      throw;
    }
    return std::move(result_);
  }

 private:
  // Returns a hash of everything that the result depends on, and of the modification times of the inputs.
  std::uint64_t key() const {
    std::string text =
        fmt::format("{:016x} {} {} {} {} {}", tokenizer_.fingerprint(), options_.append_eod,
                    options_.skip_bad, options_.add_special, options_.partitions, tokenizer_.vocab_size());
    for (const std::string& name : options_.json_keys) text += fmt::format(" {}:{}", name.size(), name);
    for (const InputFile& file : reader_.files()) {
      const std::string path = std::filesystem::absolute(file.path).string();
      const auto changed = std::filesystem::last_write_time(file.path).time_since_epoch().count();
      text += fmt::format(" {}:{} {} {}", path.size(), path, file.size, changed);
    }
    return XXH3_64bits(text.data(), text.size());
  }

  void begin() {
    const Path file = folder_.path() / kStateFile;
    saved_ = env_.status(file).has_value();
    auto saved = load_state(file, env_);
    if (saved && (saved->key != state_.key || saved->writers.size() != output_.writers() ||
                  saved->file > reader_.files().size())) {
      saved.reset();
    }
    try {
      for (const Path& prefix : result_.prefixes) {
        if (!saved) refuse_existing_dataset(prefix, options_.existing, env_);
      }
    } catch (const Error&) {
      if (saved_) folder_.keep();  // keeps the unfinished work of an earlier call
      throw;
    }
    if (saved) {
      try {
        output_.open(saved->writers);
      } catch (const FileError&) {
        throw;
      } catch (const Error&) {
        output_.close();
        saved.reset();  // starts again, because the saved files are lost
      }
    }
    saved_ = saved.has_value();
    if (!saved) return output_.open({});
    state_ = *std::move(saved);
    reader_.go_on_behind(state_.file, state_.end, state_.next_line);
    result_.resumed_bytes = state_.bytes;
    current_file_ = std::min(state_.file, reader_.files().size() - 1);
    for (std::size_t i = 0; i < current_file_; ++i) bytes_before_ += reader_.files()[i].size;
  }

  void finish() {
    result_.documents = state_.documents;
    result_.skipped_lines = state_.skipped_lines;
    result_.first_skipped = state_.first_skipped;
    result_.sequences = output_.sequences();
    result_.tokens = output_.tokens();
    result_.bytes = state_.bytes;
    result_.complete = state_.file == reader_.files().size();
    if (result_.complete) {
      if (result_.tokens > 0 && !state_.has_words) {
        throw invalid(fmt::format("{} only white space, so there is no text to train on",
                                  options_.inputs.size() == 1
                                      ? fmt::format("'{}' holds", options_.inputs.front())
                                      : fmt::format("the {} inputs hold", options_.inputs.size())),
                      "put text into it, or choose other data");
      }
      // Saves the state, so that a later call recognizes the files as its own if the process is killed during
      // renaming.
      save();
      output_.finish(tokenizer_);
      output_.close();
      folder_.remove();
    } else {
      save();
      keep_unfinished();
    }
    result_.seconds = seconds();
    report(Clock::time_point::max());
  }

  void keep_unfinished() {
    output_.keep_unfinished();
    folder_.keep();
  }

  void write(const TextBlock& block, const EncodedBlock& encoded) {
    std::uint64_t ended = 0;
    for (std::size_t key = 0; key < encoded.keys.size(); ++key) {
      const EncodedKey& part = encoded.keys[key];
      std::span<const std::int32_t> tokens = part.tokens;
      std::uint64_t document = 0;  // number of documents in this block that have ended so far
      for (std::size_t i = 0; i <= part.lengths.size(); ++i) {
        for (; document < part.document_ends.size() && part.document_ends[document] == i; ++document) {
          output_.writer(key, state_.documents + document).end_document();
        }
        if (i == part.lengths.size()) break;
        const auto length = static_cast<std::size_t>(part.lengths[i]);
        output_.writer(key, state_.documents + document).add_sequence(tokens.first(length));
        tokens = tokens.subspan(length);
      }
      if (key == 0) ended = document;
    }
    state_.documents += ended;
    if (state_.skipped_lines == 0) state_.first_skipped = encoded.first_skipped;
    state_.skipped_lines += encoded.skipped_lines;
    state_.has_words = state_.has_words || encoded.has_words;
    for (; current_file_ < block.file; ++current_file_) bytes_before_ += reader_.files()[current_file_].size;
    const std::uint64_t size = reader_.files()[block.file].size;
    state_.bytes = bytes_before_ + (block.ends_file ? size : std::min(block.position, size));
    state_.file = block.ends_file ? block.file + 1 : block.file;
    state_.end = block.ends_file ? 0 : block.end;
    state_.next_line = block.ends_file ? 1 : block.next_line;
    const Clock::time_point now = Clock::now();
    if (now - last_save_ >= std::chrono::duration<double>(options_.save_seconds)) {
      save();
      last_save_ = Clock::now();
    }
    report(now);
  }

  void save() {
    state_.writers = output_.save();
    save_state(state_, folder_.path() / kStateFile, env_);
    saved_ = true;
  }

  void report(Clock::time_point now) {
    if (!progress_ || now - last_report_ < std::chrono::duration<double>(options_.progress_seconds)) return;
    last_report_ = now;
    const std::string input = reader_.files()[current_file_].path.string();
    const std::uint64_t tokens = result_.tokens > 0 ? result_.tokens : output_.tokens();
    progress_({input, state_.bytes, bytes_total_, state_.documents, tokens, seconds()});
  }

  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  static constexpr const char* kStateFile = "progress.json";

  const TokenizeOptions& options_;
  const Tokenizer& tokenizer_;
  const TokenizeProgressFn& progress_;
  Env& env_;
  const Clock::time_point start_ = Clock::now();

  BlockReader reader_;
  PartialFolder folder_;
  Output output_;  // declared after folder_, so that its files are closed before the folder is removed
  TokenizeState state_;
  bool saved_ = false;  // whether the folder contains work that can be resumed
  TokenizeResult result_;
  std::size_t current_file_ = 0;
  std::uint64_t bytes_before_ = 0, bytes_total_ = 0;
  Clock::time_point last_report_ = start_, last_save_ = start_;
};

}  // namespace

Path tokenized_prefix(const Path& output_prefix, const std::string& key) {
  return fmt::format("{}_{}_document", output_prefix.string(), key);
}

TokenizeResult tokenize_corpus(const TokenizeOptions& options, const Tokenizer& tokenizer,
                               const TokenizeProgressFn& progress, Env& env) {
  if (options.inputs.empty()) throw invalid("no input to tokenize is given");
  if (options.json_keys.empty()) throw invalid("no JSON key to tokenize is given");
  for (auto key = options.json_keys.begin(); key != options.json_keys.end(); ++key) {
    if (std::find(options.json_keys.begin(), key, *key) != key)
      throw invalid(fmt::format("the JSON key '{}' is named twice", *key), "name each key once");
  }
  if (options.partitions < 1) {
    throw invalid(fmt::format("the number of partitions is {}", options.partitions), "ask for 1 or more");
  }
  if (options.workers < 0 || options.workers > ThreadPool::kMaxThreads) {
    throw invalid(fmt::format("the number of workers is {}", options.workers),
                  fmt::format("ask for at most {}; 0 means one per core", ThreadPool::kMaxThreads));
  }
  if (options.append_eod && !tokenizer.special_ids().eod) {
    throw invalid(fmt::format("the tokenizer ({}) has no end-of-document token to append", tokenizer.name()),
                  "add one, or omit --append-eod");
  }
  return Pipeline(options, tokenizer, progress, env).run();
}

}  // namespace primus::data
