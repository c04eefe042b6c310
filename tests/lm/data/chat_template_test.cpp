// Tests that conversation formats match the templates of published models, and that the learned text is what
// transformers renders with the saved template.
#include "lm/data/chat_template.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data_test_util.h"
#include "lm/tokenizer/simple.h"
#include "tiny_tokenizers.h"

namespace primus::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

class ChatTemplates : public testing::Test {
 protected:
  // The first token ends a text, and the second token starts a text. tests/golden/write_chat.py has an equal
  // list.
  const std::vector<std::string> special_ = {"<|endoftext|>",     "<s>",        "<|im_start|>",
                                             "<|im_end|>",        "<|im_sep|>", "<|start_header_id|>",
                                             "<|end_header_id|>", "<|eot_id|>", "<start_of_turn>",
                                             "<end_of_turn>",     "<|end|>"};
  // Returns a tokenizer whose folder has this chat template.
  std::unique_ptr<const Tokenizer> with_template(const std::string& jinja, std::vector<std::string> special) {
    const auto bare = tiny_tokenizer(folder_, {}, special);
    nlohmann::json config{{"eos_token", special.front()}, {"bos_token", "<s>"}};
    if (!jinja.empty()) config["chat_template"] = jinja;
    folder_.write("tokenizer_config.json", config.dump());
    return load_tokenizer("HuggingFaceTokenizer", folder_.path().string());
  }
  std::unique_ptr<const Tokenizer> with_template(const std::string& jinja) {
    return with_template(jinja, special_);
  }
  ConversationStyle found(const std::string& jinja) {
    const auto tokenizer = with_template(jinja);
    const auto style = style_of_template(tokenizer->chat_template(), *tokenizer);
    return style.value_or(ConversationStyle{.format = ConversationFormat::kSquad, .default_system = "none"});
  }

  TemporaryFolder folder_;
};

std::vector<Message> messages_of(const nlohmann::json& list) {
  std::vector<Message> messages;
  for (const auto& one : list) messages.push_back({one.at("role"), one.at("content"), {}});
  return messages;
}

// For every format, the template equals the one that transformers rendered. The learned text and the prompts
// equal the output of transformers.
TEST_F(ChatTemplates, TransformersRendersTheTrainedText) {
  const auto tokenizer = with_template("");
  for (const char* name :
       {"alpaca", "squad", "chatml", "llama3", "mistral", "gemma", "phi3", "phi4", "zephyr"}) {
    const auto golden = nlohmann::json::parse(
        read_all(std::string(PRIMUS_SOURCE_DIR "/tests/golden/chat/") + name + ".json"));
    const ConversationWriter writer(*conversation_format(name), *tokenizer);
    const std::string jinja = golden.at("template");
    EXPECT_EQ(template_of(writer.style(), *tokenizer), jinja) << name;
    ASSERT_FALSE(golden.at("cases").empty());
    for (const auto& one : golden.at("cases")) {
      const Conversation conversation{.messages = messages_of(one.at("messages"))};
      LearnedTokens learned;
      writer.write(conversation, learned);
      // Rendered text after the last answer is left out.
      const std::string text = tokenizer->decode(learned.ids, false), rendered = one.at("text");
      EXPECT_THAT(rendered, StartsWith(text)) << name;
      EXPECT_LE(rendered.size() - text.size(), 1U) << name;
      const std::vector<Message> asked(conversation.messages.begin(), conversation.messages.end() - 1);
      EXPECT_EQ(writer.prompt(asked), tokenizer->encode(one.at("prompt").get<std::string>(), false)) << name;
      EXPECT_EQ(learned.learned.back(), 1) << name;
      EXPECT_EQ(learned.ids.back(), writer.end_id()) << name;
    }
    // Reading the template back gives this format again.
    const auto own = with_template(jinja);
    const auto style = style_of_template(own->chat_template(), *own);
    ASSERT_TRUE(style) << name;
    EXPECT_EQ(style->format, writer.style().format) << name;
    EXPECT_EQ(template_of(*style, *own), jinja) << name;
  }
}

TEST_F(ChatTemplates, FormatsOfPublishedTemplatesAreRecognised) {
  const ConversationStyle qwen = found(
      R"({%- if messages[0]['role'] == 'system' %}{{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }})"
      R"({%- else %}{{- '<|im_start|>system\nYou\'re a helper.<|im_end|>\n' }}{%- endif %}{# tools #})");
  EXPECT_EQ(qwen.format, ConversationFormat::kChatMl);
  EXPECT_EQ(qwen.default_system, "You're a helper.");
  EXPECT_EQ(qwen.begins_with_bos, false);
  EXPECT_EQ(found("{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' }}")
                .default_system,
            "");
  const ConversationStyle llama = found(
      "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ "
      "message['content'] | trim + "
      "'<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}");
  EXPECT_EQ(llama.format, ConversationFormat::kLlama3);
  EXPECT_EQ(llama.begins_with_bos, true);
  const ConversationStyle mixtral = found("{{ '[INST] ' + message['content'] + ' [/INST]' }}{{ bos_token }}");
  EXPECT_EQ(mixtral.format, ConversationFormat::kMistral);
  EXPECT_TRUE(mixtral.space_in && mixtral.space_out);
  const ConversationStyle tight = found("{{ '[INST]' + message['content'] + '[/INST]' }}");
  EXPECT_FALSE(tight.space_in || tight.space_out);
  EXPECT_EQ(found("{{ '<start_of_turn>' + role + '\n' }}<end_of_turn>").format, ConversationFormat::kGemma);
  EXPECT_EQ(found("{{ '<|user|>\n' + c + '<|end|>\n<|assistant|>\n' }}").format, ConversationFormat::kPhi3);
  EXPECT_EQ(found("{{ '<|im_start|>user<|im_sep|>' + c + '<|im_end|>' }}").format, ConversationFormat::kPhi4);
  EXPECT_EQ(found("{{ '<|user|>\n' + c + eos_token }}{{ '<|assistant|>\n' }}").format,
            ConversationFormat::kZephyr);
  // Marks that resemble those above, but belong to other formats.
  for (const char* other : {"{{ '[INST] <<SYS>>\n' + s + '\n<</SYS>>\n\n' + c + ' [/INST]' }}",
                            "{{ '[gMASK]<sop><|assistant|>\n' }}",
                            "{{ '[SYSTEM_PROMPT]' + s + '[/SYSTEM_PROMPT][INST]' }}", "{{ messages }}"})
    EXPECT_EQ(found(other).default_system, "none") << other;
}

TEST_F(ChatTemplates, TheModelsOwnFormatIsUsed) {
  const std::string chatml = "{{ '<|im_start|>system\\nBe kind.<|im_end|>\\n' }}";
  EXPECT_EQ(choose_style("auto", *with_template(chatml)).style.format, ConversationFormat::kTemplate);
  EXPECT_EQ(choose_style("chatml", *with_template(chatml)).style.default_system, "Be kind.");
  EXPECT_EQ(choose_style("alpaca", *with_template(chatml)).style.format, ConversationFormat::kAlpaca);
  // Without a template, chatml is chosen if the tokenizer has its marks, otherwise alpaca.
  EXPECT_EQ(choose_style("auto", *with_template("")).style.format, ConversationFormat::kChatMl);
  EXPECT_EQ(choose_style("auto", *with_template("", {"<|endoftext|>", "<s>"})).style.format,
            ConversationFormat::kAlpaca);
  EXPECT_EQ(choose_style("auto", *make_byte_tokenizer()).style.format, ConversationFormat::kAlpaca);
  EXPECT_EQ(choose_style("auto", *with_template("{{ messages }}")).style.format,
            ConversationFormat::kTemplate);
  EXPECT_THAT(error_of([&] { choose_style("auto", *with_template("{{ messages")); }),
              AllOf(HasSubstr("the chat template 'default' is broken: TemplateSyntaxError"),
                    HasSubstr("tokenizer_config.json")));
  EXPECT_THAT(error_of([&] { choose_style("llama", *make_byte_tokenizer()); }),
              HasSubstr("unknown conversation format 'llama'"));
}

// The template's default system text precedes conversations without a system message, and is part of the
// saved template.
TEST_F(ChatTemplates, TheDefaultSystemTextComesFirst) {
  const auto tokenizer = with_template("{{ '<|im_start|>system\\nBe kind.<|im_end|>\\n' }}");
  const ConversationWriter writer(choose_style("chatml", *tokenizer).style, *tokenizer);
  EXPECT_EQ(tokenizer->decode(writer.prompt({{"user", "a", {}}}), false),
            "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(tokenizer->decode(writer.prompt({{"system", "S", {}}, {"user", "a", {}}}), false),
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n");
  const auto again = with_template(template_of(writer.style(), *tokenizer));
  EXPECT_EQ(choose_style("auto", *again).style.default_system, "Be kind.");
}

// In SmolLM2, the token that starts a text also starts a turn. The token is written once.
TEST_F(ChatTemplates, ABosTokenThatOpensATurnIsNotDoubled) {
  const auto bare = tiny_tokenizer(folder_, {}, special_);
  folder_.write("tokenizer_config.json",
                nlohmann::json{{"eos_token", "<|im_end|>"},
                               {"bos_token", "<|im_start|>"},
                               {"chat_template", "{{ '<|im_start|>' + role + '\n' + c + '<|im_end|>' }}"}}
                    .dump());
  const auto tokenizer = load_tokenizer("HuggingFaceTokenizer", folder_.path().string());
  const ConversationWriter writer(choose_style("chatml", *tokenizer).style, *tokenizer);
  EXPECT_THAT(tokenizer->decode(writer.prompt({{"user", "a", {}}}), false), StartsWith("<|im_start|>user"));
}

TEST_F(ChatTemplates, FormatsRefuseUnsupportedConversations) {
  const auto tokenizer = with_template("");
  const auto refusal = [&](ConversationFormat format, const std::vector<Message>& messages) {
    return error_of([&] { ConversationWriter(format, *tokenizer).prompt(messages); });
  };
  EXPECT_THAT(refusal(ConversationFormat::kMistral, {{"tool", "x", {}}}), HasSubstr("role 'tool'"));
  EXPECT_THAT(refusal(ConversationFormat::kGemma, {{"tool", "x", {}}}), HasSubstr("role 'tool'"));
  EXPECT_THAT(refusal(ConversationFormat::kGemma, {{"system", "S", {}}, {"assistant", "x", {}}}),
              HasSubstr("before the first question"));
  EXPECT_THAT(refusal(ConversationFormat::kMistral, {{"user", "x", {}}, {"system", "S", {}}}),
              HasSubstr("role 'system'"));
  EXPECT_THAT(error_of([] { ConversationWriter(ConversationFormat::kLlama3, *make_byte_tokenizer()); }),
              HasSubstr("<|start_header_id|>"));
}

}  // namespace
}  // namespace primus::data
