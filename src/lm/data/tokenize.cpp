#include "lm/data/tokenize.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <span>
#include <thread>

#include "base/checked.h"
#include "base/error.h"
#include "lm/data/corpus.h"
#include "lm/data/indexed_dataset.h"
#include "lm/data/json_lines.h"

namespace primus::data {

namespace {

using Clock = std::chrono::steady_clock;

// What one block became, for one JSON key.
struct EncodedKey {
  std::vector<int32_t> tokens;
  std::vector<int32_t> lengths;       // of its sequences
  std::vector<size_t> document_ends;  // counts of sequences
};

struct EncodedBlock {
  std::vector<EncodedKey> keys;
  uint64_t skipped_lines = 0;
  std::string first_skipped;

  void clear() {
    for (EncodedKey& key : keys) {
      key.tokens.clear();
      key.lengths.clear();
      key.document_ends.clear();
    }
    skipped_lines = 0;
    first_skipped.clear();
  }
};

// Encodes blocks; one per worker.
class BlockEncoder {
 public:
  BlockEncoder(const TokenizeOptions& options, const Tokenizer& tokenizer)
      : options_(options), tokenizer_(tokenizer), lines_(options.json_keys, options.skip_bad) {
    if (options.append_eod) eod_ = tokenizer.special_ids().eod;
  }

  void encode(const TextBlock& block, const InputFile& file, EncodedBlock& out) {
    out.keys.resize(options_.json_keys.size());
    out.clear();
    if (file.kind == InputKind::kText) {
      encode_parts(block, out.keys.front());
    } else {
      encode_lines(block, file.path.string(), out);
    }
  }

 private:
  void encode_parts(const TextBlock& block, EncodedKey& out) {
    const Tokenizer::Frame& frame = tokenizer_.frame();
    size_t begin = 0;
    for (const size_t end : block.parts) {
      const size_t before = out.tokens.size();
      // The parts of a file are one text, framed once.
      if (options_.add_special && block.begins_file && begin == 0) append(frame.before, out);
      tokenizer_.encode(std::string_view(block.text).substr(begin, end - begin), false, out.tokens);
      if (options_.add_special && block.ends_file && end == block.text.size()) append(frame.after, out);
      end_sequence(before, out);
      begin = end;
    }
    if (block.ends_file) end_document(!out.lengths.empty(), out);
  }

  static void append(const std::vector<int32_t>& ids, EncodedKey& out) {
    out.tokens.insert(out.tokens.end(), ids.begin(), ids.end());
  }

  void encode_lines(const TextBlock& block, const std::string& name, EncodedBlock& out) {
    lines_.read(block, name, [&](std::span<const JsonTexts> keys) {
      for (size_t key = 0; key < keys.size(); ++key) {
        const size_t before = out.keys[key].lengths.size();
        for (const std::string& text : keys[key].strings()) add_sequence(text, out.keys[key]);
        end_document(out.keys[key].lengths.size() > before, out.keys[key]);
      }
    });
    out.skipped_lines = lines_.skipped();
    out.first_skipped = lines_.first_skipped();
  }

  void add_sequence(std::string_view text, EncodedKey& out) {
    const size_t before = out.tokens.size();
    tokenizer_.encode(text, options_.add_special, out.tokens);
    end_sequence(before, out);
  }

  // Ends the sequence that began at out.tokens[begin], unless it is empty.
  static void end_sequence(size_t begin, EncodedKey& out) {
    const size_t count = out.tokens.size() - begin;
    if (count > 0) out.lengths.push_back(checked_cast<int32_t>(count, "tokens in one sequence"));
  }

  void end_document(bool has_tokens, EncodedKey& out) {
    if (eod_ && has_tokens) {
      out.tokens.push_back(*eod_);
      ++out.lengths.back();
    }
    out.document_ends.push_back(out.lengths.size());
  }

  const TokenizeOptions& options_;
  const Tokenizer& tokenizer_;
  std::optional<int32_t> eod_;
  JsonLines lines_;
};

// Workers take blocks in turn, encode them at the same time, and write them in the order they were taken: at
// most one block per worker is in memory, and the result is the same for any number of them.
class Pipeline {
 public:
  Pipeline(const TokenizeOptions& options, const Tokenizer& tokenizer, const TokenizeProgressFn& progress)
      : options_(options), tokenizer_(tokenizer), progress_(progress), reader_(find_inputs(options.inputs)) {
    for (const InputFile& file : reader_.files()) bytes_total_ += file.size;
    const TokenType type = token_type_for(tokenizer.vocab_size());
    for (const std::string& key : options.json_keys) {
      result_.prefixes.push_back(tokenized_prefix(options.output_prefix, key));
      writers_.push_back(std::make_unique<IndexedDatasetWriter>(result_.prefixes.back(), type));
    }
  }

  TokenizeResult run() {
    const int workers = options_.workers > 0
                            ? options_.workers
                            : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    std::vector<std::thread> threads;
    for (int i = 1; i < workers; ++i) threads.emplace_back([this] { work(); });
    work();
    for (std::thread& thread : threads) thread.join();
    if (failure_ != nullptr) std::rethrow_exception(failure_);
    for (const auto& writer : writers_) {
      result_.sequences += static_cast<uint64_t>(writer->sequences());
      result_.tokens += static_cast<uint64_t>(writer->tokens());
      writer->finish();
    }
    result_.bytes = bytes_total_;
    result_.seconds = seconds();
    report(Clock::time_point::max());
    return std::move(result_);
  }

 private:
  void work() {
    BlockEncoder encoder(options_, tokenizer_);
    TextBlock block;
    EncodedBlock encoded;
    while (true) {
      uint64_t turn;
      std::exception_ptr error;
      {
        const std::lock_guard lock(input_);
        if (stopped_) return;
        turn = next_turn_;
        try {
          if (!reader_.next(block)) return;
        } catch (...) {
          error = std::current_exception();
        }
        ++next_turn_;
      }
      try {
        if (error == nullptr) encoder.encode(block, reader_.files()[block.file], encoded);
      } catch (...) {
        error = std::current_exception();
      }
      std::unique_lock lock(output_);
      turn_changed_.wait(lock, [&] { return written_ == turn; });
      // The earliest error counts, whichever worker met one first.
      if (failure_ == nullptr) {
        try {
          if (error != nullptr) std::rethrow_exception(error);
          write(block, encoded);
        } catch (...) {
          failure_ = std::current_exception();
          const std::lock_guard stop(input_);
          stopped_ = true;
        }
      }
      ++written_;
      lock.unlock();
      turn_changed_.notify_all();
    }
  }

  void write(const TextBlock& block, const EncodedBlock& encoded) {
    for (size_t key = 0; key < writers_.size(); ++key) {
      const EncodedKey& part = encoded.keys[key];
      std::span<const int32_t> tokens = part.tokens;
      size_t document = 0;
      for (size_t i = 0; i <= part.lengths.size(); ++i) {
        for (; document < part.document_ends.size() && part.document_ends[document] == i; ++document) {
          writers_[key]->end_document();
          if (key == 0) ++result_.documents;
        }
        if (i == part.lengths.size()) break;
        const auto length = static_cast<size_t>(part.lengths[i]);
        writers_[key]->add_sequence(tokens.first(length));
        tokens = tokens.subspan(length);
      }
    }
    if (result_.skipped_lines == 0) result_.first_skipped = encoded.first_skipped;
    result_.skipped_lines += encoded.skipped_lines;
    position_ = block.position;
    if (block.file != current_file_) {
      for (; current_file_ < block.file; ++current_file_)
        bytes_before_ += reader_.files()[current_file_].size;
    }
    report(Clock::now());
  }

  void report(Clock::time_point now) {
    if (!progress_ || now - last_report_ < std::chrono::milliseconds(100)) return;
    last_report_ = now;
    uint64_t tokens = 0;
    for (const auto& writer : writers_) tokens += static_cast<uint64_t>(writer->tokens());
    const std::string input = reader_.files()[current_file_].path.string();
    progress_({input, std::min(bytes_before_ + position_, bytes_total_), bytes_total_, result_.documents,
               tokens, seconds()});
  }

  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  const TokenizeOptions& options_;
  const Tokenizer& tokenizer_;
  const TokenizeProgressFn& progress_;
  const Clock::time_point start_ = Clock::now();

  std::mutex input_;  // guards the reader, next_turn_ and stopped_
  BlockReader reader_;
  uint64_t next_turn_ = 0;
  bool stopped_ = false;

  std::mutex output_;  // guards the rest
  std::condition_variable turn_changed_;
  uint64_t written_ = 0;
  std::exception_ptr failure_;
  std::vector<std::unique_ptr<IndexedDatasetWriter>> writers_;
  TokenizeResult result_;
  size_t current_file_ = 0;
  uint64_t position_ = 0, bytes_before_ = 0, bytes_total_ = 0;
  Clock::time_point last_report_ = start_;
};

}  // namespace

Path tokenized_prefix(const Path& output_prefix, const std::string& key) {
  return fmt::format("{}_{}_document", output_prefix.string(), key);
}

TokenizeResult tokenize_corpus(const TokenizeOptions& options, const Tokenizer& tokenizer,
                               const TokenizeProgressFn& progress) {
  if (options.inputs.empty()) throw invalid("there is no input to tokenize");
  if (options.json_keys.empty()) throw invalid("there is no JSON key to tokenize");
  if (options.append_eod && !tokenizer.special_ids().eod) {
    throw invalid(fmt::format("the tokenizer ({}) has no end-of-document token to append", tokenizer.name()),
                  "add one, or leave out --append-eod");
  }
  return Pipeline(options, tokenizer, progress).run();
}

}  // namespace primus::data
