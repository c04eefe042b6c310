// Tests that ids and decoded texts equal those of Hugging Face tokenizers and of SentencePiece.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "lm/tokenizer/tokenizer.h"

namespace primus {
namespace {

using nlohmann::json;

const std::string kGolden = PRIMUS_SOURCE_DIR "/tests/golden/tokenizers/";

const json& reference() {
  static const json loaded = json::parse(std::ifstream(kGolden + "reference.json"));
  return loaded;
}

struct Case {
  const char* name;
  const char* file;
};

class Golden : public testing::TestWithParam<Case> {
 protected:
  const json& cases() const { return reference().at(GetParam().name); }
  const std::unique_ptr<const Tokenizer> tokenizer_ = load_tokenizer("", kGolden + GetParam().file);
};

TEST_P(Golden, Encodes) {
  ASSERT_EQ(cases().size(), 342u);
  for (const json& item : cases()) {
    const auto text = item.at("text").get<std::string>();
    EXPECT_EQ(tokenizer_->encode(text, true), item.at("ids").get<std::vector<int32_t>>()) << text;
    if (!item.contains("ids_no_special")) continue;
    EXPECT_EQ(tokenizer_->encode(text, false), item.at("ids_no_special").get<std::vector<int32_t>>()) << text;
  }
}

TEST_P(Golden, Decodes) {
  for (const json& item : cases()) {
    const auto ids = item.at("ids").get<std::vector<int32_t>>();
    EXPECT_EQ(tokenizer_->decode(ids), item.at("decoded").get<std::string>()) << item.dump();
  }
}

TEST_P(Golden, StreamingEqualsDecoding) {
  for (const json& item : cases()) {
    const auto ids = item.at("ids").get<std::vector<int32_t>>();
    StreamDecoder stream(*tokenizer_);
    std::string text;
    for (const int32_t id : ids) {
      const std::string part = stream.push(id);
      EXPECT_NO_THROW((void)json(part).dump()) << "not whole characters";
      text += part;
    }
    text += stream.finish();
    EXPECT_EQ(text, tokenizer_->decode(ids));
  }
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, Golden,
                         testing::Values(Case{"gpt2", "gpt2.tokenizer.json"},
                                         Case{"llama3", "llama3.tokenizer.json"},
                                         Case{"qwen2", "qwen2.tokenizer.json"},
                                         Case{"sp_bpe", "sp_bpe.model"},
                                         Case{"sp_unigram", "sp_unigram.model"}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace primus
