// load_tokenizer: which implementation reads what the user named.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "base/error.h"
#include "base/file.h"
#include "lm/tokenizer/huggingface.h"
#include "lm/tokenizer/simple.h"
#include "lm/tokenizer/tokenizer.h"

namespace primus {

namespace {

// Megatron's names, then those that Primus adds for its models.
constexpr std::array<std::string_view, 16> kFileTypes = {
    "HuggingFaceTokenizer", "SentencePieceTokenizer", "GPTSentencePieceTokenizer", "TikTokenizer",
    "GPT2BPETokenizer",     "Llama2Tokenizer",        "Llama3Tokenizer",           "Llama4Tokenizer",
    "DeepSeekV2Tokenizer",  "DeepSeekV3Tokenizer",    "MixtralTokenizer",          "MistralTokenizer",
    "Qwen2Tokenizer",       "Qwen3Tokenizer",         "GptOssTokenizer",           "MultimodalTokenizer"};

std::unique_ptr<const Tokenizer> load_null(const std::string& model) {
  int32_t size = 0;
  const auto result = std::from_chars(model.data(), model.data() + model.size(), size);
  if (result.ec != std::errc() || result.ptr != model.data() + model.size()) {
    throw invalid(fmt::format("NullTokenizer needs a vocabulary size, not '{}'", model),
                  "set tokenizer_model to a number, e.g. 131072");
  }
  return make_null_tokenizer(size);
}

}  // namespace

std::unique_ptr<const Tokenizer> load_tokenizer(std::string_view type, const std::string& model) {
  if (type == "ByteTokenizer" || type == "byte" || (type.empty() && model.empty()))
    return make_byte_tokenizer();
  if (type == "NullTokenizer") return load_null(model);
  if (!type.empty() && std::find(kFileTypes.begin(), kFileTypes.end(), type) == kFileTypes.end()) {
    throw invalid(fmt::format("unknown tokenizer_type '{}'", type),
                  fmt::format("it is one of ByteTokenizer, NullTokenizer, {}", fmt::join(kFileTypes, ", ")));
  }
  if (model.empty()) {
    throw invalid(fmt::format("{} needs a tokenizer_model", type),
                  "set it to a tokenizer file or a model folder");
  }
  if (!Env::posix().status(model)) {
    throw invalid(fmt::format("the tokenizer_model '{}' is not there", model),
                  "nothing is downloaded: give a tokenizer file, or a model folder on this machine");
  }
  return make_huggingface_tokenizer(read_huggingface_files(model),
                                    type.empty() ? "HuggingFaceTokenizer" : std::string(type));
}

}  // namespace primus
