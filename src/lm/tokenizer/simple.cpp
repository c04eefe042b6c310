#include "lm/tokenizer/simple.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files/file.h"
#include "lm/tokenizer/bpe/byte_level.h"
#include "lm/tokenizer/decoding.h"
#include "lm/tokenizer/huggingface/huggingface.h"

namespace primus {

namespace {

constexpr std::int32_t kBytes = 256;
constexpr std::string_view kEndOfText = "<|endoftext|>";

// Returns byte-level BPE without merges, which transformers loads and which makes the same ids.
HuggingFaceFiles files_of_bytes() {
  using nlohmann::json;
  json vocabulary = json::object();
  for (std::int32_t id = 0; id < kBytes; ++id) {
    const char byte = static_cast<char>(id);
    vocabulary[byte_level::to_text({&byte, 1})] = id;
  }
  const json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  const json tokenizer = {{"version", "1.0"},
                          {"truncation", nullptr},
                          {"padding", nullptr},
                          {"added_tokens",
                           {{{"id", kBytes},
                             {"content", kEndOfText},
                             {"single_word", false},
                             {"lstrip", false},
                             {"rstrip", false},
                             {"normalized", false},
                             {"special", true}}}},
                          {"normalizer", nullptr},
                          {"pre_tokenizer", byte_level},
                          {"post_processor", nullptr},
                          {"decoder", byte_level},
                          {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", json::array()}}}};
  const json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                       {"clean_up_tokenization_spaces", false},
                       {"eos_token", kEndOfText}};
  HuggingFaceFiles files;
  files.tokenizer_json = tokenizer.dump(2) + "\n";
  files.tokenizer_config_json = config.dump(2) + "\n";
  return files;
}

class ByteTokenizer final : public Tokenizer {
 public:
  ByteTokenizer() { special_ids_.eos = special_ids_.eod = kBytes; }
  std::string_view name() const override { return "ByteTokenizer"; }
  std::int32_t vocab_size() const override { return kBytes + 1; }
  const SpecialIds& special_ids() const override { return special_ids_; }
  std::string token_text(std::int32_t id) const override {
    check_id(id);
    const char byte = static_cast<char>(id);
    return id == kBytes ? std::string(kEndOfText) : byte_level::to_text({&byte, 1});
  }
  std::optional<std::int32_t> token_id(std::string_view token) const override {
    if (token == kEndOfText) return kBytes;
    const auto bytes = byte_level::to_bytes(token);
    if (!bytes || bytes->size() != 1) return std::nullopt;
    return static_cast<unsigned char>(bytes->front());
  }
  bool is_special(std::int32_t id) const override { return id == kBytes; }

  std::uint64_t fingerprint() const override { return kBytes; }

  void save(const std::filesystem::path& folder) const override {
    const HuggingFaceFiles files = files_of_bytes();
    make_folders(folder);
    write_file_atomic(folder / "tokenizer.json", files.tokenizer_json);
    write_file_atomic(folder / "tokenizer_config.json", files.tokenizer_config_json);
  }

 protected:
  void encode_text(std::string_view text, std::vector<std::int32_t>& ids) const override {
    for (const char byte : text) ids.push_back(static_cast<unsigned char>(byte));
  }
  std::unique_ptr<Decoding> new_decoding() const override { return std::make_unique<State>(); }

 private:
  class State final : public Decoding {
   public:
    void push(std::int32_t id, std::string& out) override {
      const char byte = static_cast<char>(id);
      stream_.push(id == kBytes ? kEndOfText : std::string_view(&byte, 1), out);
    }
    void finish(std::string& out) override { stream_.finish(out); }

   private:
    Utf8Stream stream_;
  };

  SpecialIds special_ids_;
};

class NullTokenizer final : public Tokenizer {
 public:
  explicit NullTokenizer(std::int32_t vocab_size) : end_(vocab_size - 1) { special_ids_.eod = end_; }
  std::string_view name() const override { return "NullTokenizer"; }
  std::int32_t vocab_size() const override { return end_ + 1; }
  const SpecialIds& special_ids() const override { return special_ids_; }
  std::string token_text(std::int32_t id) const override {
    check_id(id);
    return fmt::to_string(id);
  }
  std::optional<std::int32_t> token_id(std::string_view token) const override {
    std::int32_t id = 0;
    const auto result = std::from_chars(token.data(), token.data() + token.size(), id);
    const bool whole = result.ec == std::errc() && result.ptr == token.data() + token.size();
    return whole && id >= 0 && id <= end_ ? std::optional(id) : std::nullopt;
  }
  bool is_special(std::int32_t) const override { return false; }
  std::uint64_t fingerprint() const override {
    return std::uint64_t{1} << 32 | static_cast<std::uint32_t>(end_);
  }
  void save(const std::filesystem::path&) const override {
    throw unsupported("the null tokenizer cannot be written as a Hugging Face tokenizer");
  }

 protected:
  void encode_text(std::string_view text, std::vector<std::int32_t>& ids) const override {
    constexpr std::string_view kBlanks = " \t\r\n";
    while (true) {
      text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
      if (text.empty()) return;
      const std::string_view word = text.substr(0, text.find_first_of(kBlanks));
      const auto id = token_id(word);
      if (!id) {
        throw invalid(
            fmt::format("the null tokenizer reads numbers up to {}, not '{}'", end_, word.substr(0, 40)),
            "text needs another tokenizer (tokenizer_type: ByteTokenizer, or tokenizer_model)");
      }
      ids.push_back(*id);
      text.remove_prefix(word.size());
    }
  }
  std::unique_ptr<Decoding> new_decoding() const override { return std::make_unique<State>(); }

 private:
  class State final : public Decoding {
   public:
    void push(std::int32_t id, std::string& out) override {
      fmt::format_to(std::back_inserter(out), "{}{}", first_ ? "" : " ", id);
      first_ = false;
    }
    void finish(std::string&) override { first_ = true; }

   private:
    bool first_ = true;
  };

  std::int32_t end_;
  SpecialIds special_ids_;
};

}  // namespace

bool make_same_ids(std::uint64_t fingerprint, std::uint64_t other) {
  static const std::uint64_t saved_bytes =
      make_huggingface_tokenizer(files_of_bytes(), "HuggingFaceTokenizer")->fingerprint();
  const auto canonical = [](std::uint64_t one) { return one == saved_bytes ? std::uint64_t{kBytes} : one; };
  return canonical(fingerprint) == canonical(other);
}

std::unique_ptr<const Tokenizer> make_byte_tokenizer() { return std::make_unique<ByteTokenizer>(); }

std::unique_ptr<const Tokenizer> make_null_tokenizer(std::int32_t vocab_size) {
  if (vocab_size < 1) {
    throw invalid(fmt::format("a null tokenizer needs a vocabulary size, not {}", vocab_size));
  }
  return std::make_unique<NullTokenizer>(vocab_size);
}

}  // namespace primus
