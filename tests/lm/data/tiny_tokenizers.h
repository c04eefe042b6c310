// Small tokenizers in Hugging Face's format, with merges that a test chooses.
#pragma once

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "data_test_util.h"
#include "lm/tokenizer/tokenizer.h"

namespace primus::data {

using Merges = std::vector<std::pair<std::string, std::string>>;

// Returns the character for an ASCII byte in byte-level vocabularies (GPT-2's table).
inline std::string byte_symbol(char c) {
  if (c > ' ' && c < '\x7f') return std::string(1, c);
  const int code = 256 + static_cast<unsigned char>(c);  // bytes 0 to 32 in order
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
}

inline std::string byte_symbols(const std::string& text) {
  std::string symbols;
  for (const char c : text) symbols += byte_symbol(c);
  return symbols;
}

// Makes a tokenizer whose ids are one per ASCII byte, then the merges, then the special tokens. Merges may
// cross words. The first special token ends a text. With `sentencepiece`, a space is put before each text,
// and spaces are written as U+2581.
inline std::unique_ptr<const Tokenizer> tiny_tokenizer(const TemporaryFolder& folder, const Merges& merges,
                                                       const std::vector<std::string>& special,
                                                       bool sentencepiece = false) {
  const std::string space = "\xE2\x96\x81";
  const auto symbols = [&](const std::string& text) {
    if (!sentencepiece) return byte_symbols(text);
    std::string all;
    for (const char c : text) all += c == ' ' ? space : std::string(1, c);
    return all;
  };
  nlohmann::json vocab, rules = nlohmann::json::array(), added = nlohmann::json::array();
  int id = 0;
  for (char c = 0; c < '\x7f'; ++c) {
    if (sentencepiece && c == 0) continue;
    vocab[symbols(std::string(1, c))] = id++;
  }
  for (const auto& [left, right] : merges) {
    vocab[symbols(left + right)] = id++;
    rules.push_back({symbols(left), symbols(right)});
  }
  for (const std::string& token : special) {
    added.push_back({{"id", id++},
                     {"content", token},
                     {"special", true},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false}});
  }
  nlohmann::json json{{"version", "1.0"},
                      {"added_tokens", added},
                      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", rules}}}};
  if (sentencepiece) {
    json["normalizer"] = {{"type", "Sequence"},
                          {"normalizers",
                           {{{"type", "Prepend"}, {"prepend", space}},
                            {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", space}}}}};
  } else {
    json["pre_tokenizer"] = {
        {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
    json["decoder"] = json["pre_tokenizer"];
  }
  folder.write("tokenizer.json", json.dump());
  folder.write("tokenizer_config.json", nlohmann::json{{"eos_token", special.front()}}.dump());
  return load_tokenizer("HuggingFaceTokenizer", folder.path().string());
}

}  // namespace primus::data
