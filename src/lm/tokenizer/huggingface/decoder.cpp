#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "lm/tokenizer/bpe/byte_level.h"
#include "lm/tokenizer/huggingface/parts.h"
#include "lm/tokenizer/text/unicode.h"

namespace primus::huggingface {

using nlohmann::json;
using TextOf = std::function<std::string_view(std::int32_t)>;

namespace {

// A decoder without settings. The state of the decoder is constructed from the function that returns the text
// of a token.
template <class State>
class PlainDecoder final : public Decoder {
 public:
  std::unique_ptr<Decoding> start(TextOf text_of) const override {
    return std::make_unique<State>(std::move(text_of));
  }
};

// Decodes tokens that are byte strings in GPT-2's alphabet.
class ByteLevelDecoding final : public Decoding {
 public:
  explicit ByteLevelDecoding(TextOf text_of) : text_of_(std::move(text_of)) {}
  void push(std::int32_t id, std::string& out) override {
    const std::string_view text = text_of_(id);
    const auto bytes = byte_level::to_bytes(text);
    stream_.push(bytes ? std::string_view(*bytes) : text, out);
  }
  void finish(std::string& out) override { stream_.finish(out); }

 private:
  TextOf text_of_;
  Utf8Stream stream_;
};
using ByteLevelDecoder = PlainDecoder<ByteLevelDecoding>;

// Separates tokens by spaces. Used for files without a decoder.
class SpacedDecoding final : public Decoding {
 public:
  explicit SpacedDecoding(TextOf text_of) : text_of_(std::move(text_of)) {}
  void push(std::int32_t id, std::string& out) override {
    if (!std::exchange(first_, false)) out += ' ';
    out += text_of_(id);
  }
  void finish(std::string&) override { first_ = true; }

 private:
  TextOf text_of_;
  bool first_ = true;
};
using SpacedDecoder = PlainDecoder<SpacedDecoding>;

// SentencePiece's decoding, built from Hugging Face's components. Replace and Metaspace handle single tokens;
// ByteFallback handles runs of <0x..> tokens. Then Fuse joins the texts, and Strip strips the start of the
// complete text.
struct ChainOptions {
  struct Replace {
    std::string from, to;
  };
  std::vector<Replace> replaces;
  bool byte_fallback = false;
  bool fused = false;
  std::string strip;            // text that is stripped
  std::size_t strip_count = 0;  // max number of times that `strip` is removed
  std::string metaspace;        // the mark that Metaspace replaces by a space; empty: no Metaspace
  bool metaspace_drops_first = false;
  std::string name;  // name of the decoder in errors
};

class ChainDecoder final : public Decoder {
 public:
  explicit ChainDecoder(ChainOptions options) : options_(std::move(options)) {}
  std::unique_ptr<Decoding> start(TextOf text_of) const override {
    return std::make_unique<State>(options_, std::move(text_of));
  }

 private:
  class State final : public Decoding {
   public:
    State(const ChainOptions& options, TextOf text_of)
        : options_(options), text_of_(std::move(text_of)), to_strip_(options.strip_count) {}

    void push(std::int32_t id, std::string& out) override {
      std::string text(text_of_(id));
      const TextBudget budget(text.size());
      for (const auto& [from, to] : options_.replaces)
        text = replace_all(text, from, to, budget, options_.name);
      if (!options_.metaspace.empty()) {
        if (first_ && options_.metaspace_drops_first && text.starts_with(options_.metaspace)) {
          text.erase(0, options_.metaspace.size());
        }
        text = replace_all(text, options_.metaspace, " ", budget, options_.name);
      }
      first_ = false;
      if (options_.byte_fallback && text.size() == 6 && text.starts_with("<0x") && text.ends_with('>')) {
        unsigned char byte = 0;
        const auto result = std::from_chars(text.data() + 3, text.data() + 5, byte, 16);
        if (result.ec == std::errc() && result.ptr == text.data() + 5) {
          bytes_.push_back(static_cast<char>(byte));
          return;
        }
      }
      flush_bytes(out);
      emit(text, out);
    }

    void finish(std::string& out) override {
      flush_bytes(out);
      first_ = true;
      to_strip_ = options_.strip_count;
    }

   private:
    // Appends a run of bytes: as text if the complete run is valid UTF-8, otherwise as replacement
    // characters.
    void flush_bytes(std::string& out) {
      if (bytes_.empty()) return;
      if (unicode::is_valid(bytes_)) {
        emit(bytes_, out);
      } else {
        for (std::size_t i = 0; i < bytes_.size(); ++i) emit(unicode::kReplacement, out);
      }
      bytes_.clear();
    }
    void emit(std::string_view text, std::string& out) {
      while (to_strip_ > 0 && !text.empty()) {
        if (text.starts_with(options_.strip)) {
          text.remove_prefix(options_.strip.size());
          --to_strip_;
        } else {
          to_strip_ = 0;
        }
      }
      out += text;
    }

    const ChainOptions& options_;
    TextOf text_of_;
    std::string bytes_;
    std::size_t to_strip_;
    bool first_ = true;
  };

  ChainOptions options_;
};

std::size_t get_count(const json& object, const char* key) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_number_unsigned())
    throw invalid(fmt::format("\"{}\" is not a count", key));
  return it->get<std::size_t>();
}

void append_step(const json& object, ChainOptions& chain) {
  const std::string type = get_string(object, "type");
  const auto refuse_here = [&] {
    throw unsupported(fmt::format("the decoder '{}' at this place of a Sequence is not supported", type));
  };
  if (type == "Replace") {
    if (chain.byte_fallback || chain.fused || !chain.metaspace.empty()) refuse_here();
    const json pattern = object.value("pattern", json());
    if (pattern.is_object() && pattern.contains("Regex")) {
      throw unsupported("the decoder 'Replace' with a regular expression is not supported");
    }
    chain.replaces.push_back({get_string(pattern, "String"), get_string(object, "content")});
  } else if (type == "Metaspace") {
    if (chain.byte_fallback || chain.fused) refuse_here();
    chain.metaspace = get_string(object, "replacement");
    chain.metaspace_drops_first = object.contains("prepend_scheme")
                                      ? get_string(object, "prepend_scheme") != "never"
                                      : get_bool(object, "add_prefix_space", true);
  } else if (type == "ByteFallback") {
    if (chain.fused) refuse_here();
    chain.byte_fallback = true;
  } else if (type == "Fuse") {
    chain.fused = true;
  } else if (type == "Strip") {
    if (!chain.fused || chain.strip_count > 0 || get_count(object, "stop") > 0) refuse_here();
    chain.strip = get_string(object, "content");
    chain.strip_count = get_count(object, "start");
    if (chain.strip.empty()) throw invalid("the decoder 'Strip' has an empty \"content\"");
  } else {
    throw unsupported(fmt::format("the decoder '{}' is not supported", type));
  }
}

}  // namespace

std::unique_ptr<Decoder> parse_decoder(const json& object, const std::string& file) {
  if (object.is_null()) return std::make_unique<SpacedDecoder>();
  const std::string type = get_string(object, "type");
  const json single = json::array({object});
  const json& steps = type == "Sequence" ? get_list(object, "decoders") : single;
  if (steps.size() == 1 && get_string(steps[0], "type") == "ByteLevel")
    return std::make_unique<ByteLevelDecoder>();
  ChainOptions chain;
  chain.name = fmt::format("the decoder of the tokenizer '{}'", file);
  std::size_t count = 0;
  for (const json& step : steps) {
    count_step(count, "a decoder");
    append_step(step, chain);
  }
  return std::make_unique<ChainDecoder>(std::move(chain));
}

}  // namespace primus::huggingface
