// Tests that models' own chat templates give the tokens of transformers, and which answers are learned.
#include "lm/data/model_template.h"

#include <gmock/gmock.h>

#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data_test_util.h"
#include "lm/data/chat_template.h"
#include "tiny_tokenizers.h"

namespace primus::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

// Reads a record whose keys stay in order, because templates may print them.
Conversation read_record(const nlohmann::ordered_json& record) {
  const std::string text = record.dump();
  JsonReader json(text, "x", {.python = true});
  Conversation conversation;
  read_conversation(json, conversation, Members::kAll);
  return conversation;
}

class ModelTemplates : public testing::Test {
 protected:
  // Returns a tokenizer whose folder has this chat template.
  std::unique_ptr<const Tokenizer> with_template(const nlohmann::json& jinja) {
    tiny_tokenizer(folder_, {}, {"<eos>", "<s>", "<|im_start|>", "<|im_end|>"});
    folder_.write(
        "tokenizer_config.json",
        nlohmann::json{{"eos_token", "<eos>"}, {"bos_token", {{"content", "<s>"}}}, {"chat_template", jinja}}
            .dump());
    return load_tokenizer("HuggingFaceTokenizer", folder_.path().string());
  }
  // Returns the texts that training reads, with the learned parts in brackets.
  std::vector<std::string> learned_of(const nlohmann::json& jinja, const nlohmann::json& record) {
    const auto tokenizer = with_template(jinja);
    const ConversationStyle style = choose_style("auto", *tokenizer).style;
    EXPECT_TRUE(style.own);
    LearnedTokens tokens;
    ConversationWriter(style, *tokenizer).write(read_record(record), tokens);
    std::vector<std::string> texts(tokens.starts.size());
    std::vector<std::int64_t> ends(tokens.starts.begin() + 1, tokens.starts.end());
    ends.push_back(static_cast<std::int64_t>(tokens.ids.size()));
    for (std::size_t i = 0, t = 0; i < texts.size(); ++i) {
      bool open = false;
      for (; t < static_cast<std::size_t>(ends[i]); ++t) {
        if ((tokens.learned[t] != 0) != open) texts[i] += std::exchange(open, !open) ? "]" : "[";
        texts[i] += tokenizer->decode(std::vector{tokens.ids[t]}, false);
      }
      if (open) texts[i] += "]";
    }
    return texts;
  }

  TemporaryFolder folder_;
};

constexpr const char* kTurns =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
const nlohmann::json kQuestion{{"role", "user"}, {"content", "Q"}};
const nlohmann::json kAnswer{{"role", "assistant"}, {"content", "A"}};

TEST_F(ModelTemplates, TokensAndMasksEqualTransformers) {
  const auto golden =
      nlohmann::ordered_json::parse(read_all(PRIMUS_SOURCE_DIR "/tests/golden/chat/own_templates.json"));
  std::size_t separate = 0;
  for (const auto& one : golden.at("cases")) {
    const std::string name = one.at("tokenizer"), jinja = one.at("template");
    SCOPED_TRACE(name + ", " + jinja + ", " + one.at("record").dump());
    folder_.write("tokenizer.json", golden.at("tokenizers").at(name).dump());
    folder_.write("tokenizer_config.json",
                  nlohmann::json{{"eos_token", "<|endoftext|>"}, {"bos_token", "<s>"}}.dump());
    folder_.write("chat_template.jinja", golden.at("templates").at(jinja).get<std::string>());
    const auto tokenizer = load_tokenizer("HuggingFaceTokenizer", folder_.path().string());
    ConversationWriter writer(choose_style("auto", *tokenizer).style, *tokenizer);
    EXPECT_EQ(tokenizer->token_text(writer.end_id()), jinja == "trimmed" ? "<|endoftext|>" : "<|im_end|>");
    EXPECT_TRUE(writer.ends_answers());
    EXPECT_EQ(writer.answer_prefix(), jinja == "trimmed" ? " " : "");
    Conversation conversation = read_record(one.at("record"));
    LearnedTokens tokens;
    writer.write(conversation, tokens);
    std::vector<std::int32_t> ids;
    std::vector<std::uint8_t> learned;
    std::vector<std::int64_t> starts;
    for (const auto& text : one.at("texts")) {
      starts.push_back(static_cast<std::int64_t>(ids.size()));
      for (const auto& id : text.at("ids")) ids.push_back(id);
      for (const auto& is : text.at("learned")) learned.push_back(is.get<std::uint8_t>());
    }
    EXPECT_EQ(tokens.ids, ids);
    EXPECT_EQ(tokens.learned, learned);
    EXPECT_EQ(tokens.starts, starts);
    if (starts.size() == 1) {
      EXPECT_EQ(writer.training_text(conversation), ids);
    }
    separate += starts.size() > 1 ? 1 : 0;
    if (!conversation.tools.empty()) writer.offer_tools(conversation.tools);
    conversation.messages.pop_back();
    EXPECT_EQ(writer.prompt(conversation.messages), one.at("prompt").get<std::vector<std::int32_t>>());
  }
  EXPECT_GT(separate, 0U);
}

// If a user names the format of a fine-tune, such as chatml, the chat template saved with the model is
// recognized as this format and gives the same tokens.
TEST_F(ModelTemplates, TemplatesOfTheFormatsAreWrittenByTheFormats) {
  for (const char* const name : {"alpaca", "chatml", "zephyr"}) {
    const auto bare = with_template(nullptr);
    const ConversationStyle style{.format = *conversation_format(name)};
    const auto own = with_template(template_of(style, *bare));
    const ChosenStyle chosen = choose_style("auto", *own);
    EXPECT_EQ(name_of(chosen.style.format), name);
    EXPECT_EQ(chosen.why, "the model's chat template");
    LearnedTokens before, after;
    const Conversation one = read_record({{"messages", {kQuestion, kAnswer, kQuestion, kAnswer}}});
    ConversationWriter(style, *bare).write(one, before);
    ConversationWriter(chosen.style, *own).write(one, after);
    EXPECT_EQ(before.ids, after.ids) << name;
    EXPECT_EQ(before.learned, after.learned) << name;
  }
}

TEST_F(ModelTemplates, AnswersThatAreNotLearnedAreLeftOut) {
  const nlohmann::json silent{{"role", "assistant"}, {"content", "B"}, {"weight", 0}},
      blank{{"role", "assistant"}, {"content", " \n"}};
  const nlohmann::json record{{"messages", {kQuestion, silent, kQuestion, kAnswer, kQuestion, blank}}};
  const std::string turn = "<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n";
  const std::string expected = turn + "B<|im_end|>\n" + turn + "[A<|im_end|>]\n" + turn + " \n<|im_end|>\n";
  EXPECT_THAT(learned_of(kTurns, record), ElementsAre(expected));
  const std::string marked =
      "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{% if m.role == 'assistant' %}"
      "{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}{% else %}{{ m.content + "
      "'<|im_end|>' "
      "}}"
      "{% endif %}{{ '\\n' }}{% endfor %}";
  EXPECT_THAT(learned_of(marked, record), ElementsAre(expected));
}

TEST_F(ModelTemplates, NamedTemplatesAndArgumentsAreUsed) {
  const nlohmann::json named{
      {{"name", "tool_use"}, {"template", std::string("{{ tools[0].name }}") + kTurns}},
      {{"name", "rag"}, {"template", "{{ nothing() }}"}},
      {{"name", "default"}, {"template", std::string("{{ bos_token }}{{ mood }}") + kTurns}}};
  const nlohmann::json messages{kQuestion, kAnswer};
  EXPECT_THAT(learned_of(named, {{"messages", messages}, {"chat_template_kwargs", {{"mood", "calm"}}}}),
              ElementsAre(testing::StartsWith("<s>calm<|im_start|>user")));
  EXPECT_THAT(learned_of(named, {{"messages", messages}, {"tools", R"([{"name": "add"}])"}}),
              ElementsAre(testing::StartsWith("add<|im_start|>user")));
  const auto tokenizer = with_template(named);
  const ChosenStyle chosen = choose_style("auto", *tokenizer);
  EXPECT_THAT(chosen.why, AllOf(HasSubstr("'default' in " + folder_.path().string()), HasSubstr("tool_use")));
  EXPECT_EQ(template_of(chosen.style, *tokenizer), tokenizer->chat_template());
}

TEST_F(ModelTemplates, WhatCannotBeLearnedIsRefused) {
  const nlohmann::json record{{"messages", {kQuestion, kAnswer}}};
  const auto refusal = [&](const std::string& jinja, const nlohmann::json& one) {
    return error_of([&] { learned_of(jinja, one); });
  };
  // The template begins a prompt for an answer with <think>, but writes answers without <think>.
  const std::string thinking =
      "{% for m in messages %}{{ m.role + m.content }}{% endfor %}"
      "{% if add_generation_prompt %}{{ 'assistant<think>' }}{% endif %}";
  EXPECT_THAT(refusal(thinking, record), AllOf(HasSubstr("does not write message 2 after the beginning"),
                                               HasSubstr("'A' instead of '<think>'")));
  // A reward model can still read the conversation.
  const auto tokenizer = with_template(thinking);
  const ConversationWriter writer(choose_style("auto", *tokenizer).style, *tokenizer);
  EXPECT_EQ(tokenizer->decode(writer.training_text(read_record(record))), "userQassistantA");
  EXPECT_THAT(refusal("{{ raise_exception('no questions') }}", record),
              HasSubstr("refuses the conversation: TemplateError: no questions"));
  EXPECT_THAT(refusal("{% for m in messages %}", record),
              AllOf(HasSubstr("tokenizer_config.json"), HasSubstr("TemplateSyntaxError")));
  EXPECT_THAT(refusal(kTurns, {{"messages", {kQuestion, kAnswer}}, {"tools", "[{"}}),
              HasSubstr("'tools' is not JSON"));
  EXPECT_THAT(refusal(kTurns, {{"messages", {kQuestion, kAnswer}}, {"tools", {{"a", 1}}}}),
              HasSubstr("'tools' is not a list"));
  EXPECT_THAT(
      refusal("{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
              {{"messages",
                {kQuestion, {{"role", "assistant"}, {"content", "B"}, {"weight", 0}}, kQuestion, kAnswer}}}),
      HasSubstr("marks 4 texts as answers"));
  EXPECT_THAT(refusal(kTurns, {{"messages", {kQuestion, {{"role", "assistent"}, {"content", "x"}}}}}),
              HasSubstr("did you mean 'assistant'"));
  EXPECT_THAT(refusal(kTurns, {{"messages",
                                {kQuestion, {{"role", "assistant"}, {"content", "x"}, {"images", {1}}}}}}),
              HasSubstr("Primus trains on text only"));
}

// A template that ignores a key would train on another text than the record's.
TEST_F(ModelTemplates, WhatTheTemplateLeavesOutIsRefused) {
  const auto refusal = [&](const std::string& jinja, const nlohmann::json& one) {
    return error_of([&] { learned_of(jinja, one); });
  };
  const auto answer = [](const char* key, const nlohmann::json& value) {
    return nlohmann::json{{"role", "assistant"}, {"content", "A"}, {key, value}};
  };
  const nlohmann::json call = answer("tool_calls", {{{"function", {{"name", "f"}}}}}),
                       thought = answer("reasoning_content", "because");
  EXPECT_THAT(refusal(kTurns, {{"messages", {kQuestion, kAnswer}}, {"tools", {{{"name", "f"}}}}}),
              HasSubstr("has 'tools', which the model's chat template does not write"));
  EXPECT_THAT(refusal(kTurns, {{"messages", {kQuestion, kAnswer}}, {"documents", {{{"text", "d"}}}}}),
              HasSubstr("'documents'"));
  EXPECT_THAT(refusal(kTurns, {{"messages", {kQuestion, call}}}), HasSubstr("message 2 has 'tool_calls'"));
  EXPECT_THAT(refusal(kTurns, {{"messages", {kQuestion, thought, kQuestion, kAnswer}}}),
              HasSubstr("message 2 has 'reasoning_content'"));
  // Keys without content, and keys that the template writes, are no reason.
  const nlohmann::json nothing{{"messages", {kQuestion, answer("tool_calls", nlohmann::json::array())}},
                               {"tools", "[]"}};
  EXPECT_EQ(learned_of(kTurns, nothing).size(), 1U);
  // A template that writes the reasoning of the last turn only.
  const std::string last =
      "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{% if loop.last and m.reasoning_content %}"
      "{{ m.reasoning_content }}{% endif %}{{ m.content + '<|im_end|>\\n' }}{% endfor %}"
      "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
  EXPECT_EQ(learned_of(last, {{"messages", {kQuestion, thought, kQuestion, kAnswer}}}).size(), 2U);
}

// Without a special token behind an answer, the model does not learn to stop.
TEST_F(ModelTemplates, AMissingEndIsReported) {
  const auto tokenizer = with_template("{% for m in messages %}{{ m.content }}{% endfor %}");
  const ConversationWriter writer(choose_style("auto", *tokenizer).style, *tokenizer);
  EXPECT_FALSE(writer.ends_answers());
  EXPECT_EQ(tokenizer->token_text(writer.end_id()), "<eos>");
}

// Training reads a fixed day, so that data do not change at midnight.
TEST_F(ModelTemplates, TheDayOfTrainingIsFixed) {
  EXPECT_THAT(learned_of("{{ strftime_now('%A, %d %B %Y, %j') }}", {{"messages", {kQuestion, kAnswer}}}),
              ElementsAre("Friday, 26 July 2024, 208"));
  const auto tokenizer = with_template("{{ strftime_now('%Y') }}");
  const ConversationWriter writer(choose_style("auto", *tokenizer).style, *tokenizer);
  EXPECT_NE(tokenizer->decode(writer.prompt({{"user", "Q", {}}})), "2024");
}

// The continuation of a generated answer is the text by which the rendering with the new messages extends the
// answer, for templates that do not change earlier answers.
TEST_F(ModelTemplates, ContinuationsExtendTheRenderedConversation) {
  const auto golden =
      nlohmann::json::parse(read_all(PRIMUS_SOURCE_DIR "/tests/golden/templates/templates.json"))
          .at("templates");
  const std::string tool = "tool", user(kUser);
  for (const auto& [name, role] :
       std::map<std::string, std::string>{{"Qwen-Qwen3-0.6B", tool},
                                          {"NousResearch-Hermes-3-Llama-3.1-8B-tool_use", tool},
                                          {"LFM2-8B-A1B", tool},
                                          {"trl_llama3_training", user},
                                          {"mistral_v1", user},
                                          {"google-gemma-2-2b-it", user}}) {
    SCOPED_TRACE(name);
    const nlohmann::json& one = golden.at(name);
    ChatTemplates templates{.all = {{"default", one.at("template")}}, .file = {}, .tokens = {}};
    for (const char* key : {"bos_token", "eos_token"})
      if (one.at(key).is_string()) templates.set_token(key, one.at(key));
    const ModelTemplate own(templates);
    Conversation conversation{.messages = {{user, "What is 6 * 7?", {}}}};
    if (role == tool)
      conversation.tools =
          R"([{"type": "function", "function": {"name": "f", "description": "d", "parameters": )"
          R"({"type": "object", "properties": {}}, "return": {"description": "r"}}}])";
    std::string text = own.training_prompt(conversation);
    // Hermes' template writes the last result of a tool in another way than earlier ones.
    const int turns = name.starts_with("NousResearch") ? 1 : 2;
    for (int turn = 0; turn < turns; ++turn) {
      const std::string answer = turn == 0 ? "Let me see." : "answer0";
      conversation.messages.push_back({std::string(kAssistant), answer, {}});
      const std::size_t index = conversation.messages.size() - 1;
      conversation.messages.push_back({role, "answer1 is 42", {}});
      if (role == tool) conversation.messages.push_back({role, "43", {}});
      const std::string continuation = own.continuation(conversation, index);
      text += (name == "mistral_v1" ? " " : "") + answer + continuation;  // that model begins with a space
      EXPECT_EQ(text, own.training_prompt(conversation));
      EXPECT_THAT(continuation, HasSubstr("answer1 is 42"));
      // The generated text has no effect.
      conversation.messages[index].text = "<think>a</think>b";
      EXPECT_EQ(own.continuation(conversation, index), continuation);
      conversation.messages[index].text = answer;
    }
  }
}

TEST_F(ModelTemplates, ContinuationsAreTokensBehindTheEndOfTheAnswer) {
  const auto tokenizer = with_template(kTurns);
  const ConversationWriter writer(choose_style("auto", *tokenizer).style, *tokenizer);
  const Conversation conversation{
      .messages = {{std::string(kUser), "Q", {}}, {std::string(kAssistant), "A", {}}, {"tool", "T", {}}}};
  std::vector<std::int32_t> ids = writer.training_prompt({.messages = {conversation.messages[0]}});
  tokenizer->encode("A<|im_end|>", false, ids);
  const std::vector<std::int32_t> behind = writer.continuation(conversation, 1);
  EXPECT_EQ(tokenizer->decode(behind, false), "\n<|im_start|>tool\nT<|im_end|>\n<|im_start|>assistant\n");
  ids.insert(ids.end(), behind.begin(), behind.end());
  EXPECT_EQ(ids, writer.training_prompt(conversation));
  // A named format writes the same tokens.
  EXPECT_EQ(ConversationWriter(ConversationFormat::kChatMl, *tokenizer).continuation(conversation, 1),
            behind);
}

TEST_F(ModelTemplates, TemplatesThatDropOrRepeatAnswersHaveNoContinuation) {
  const auto problem = [&](const std::string& jinja) {
    const auto tokenizer = with_template(jinja);
    const ConversationWriter writer(choose_style("auto", *tokenizer).style, *tokenizer);
    const Conversation conversation{
        .messages = {{std::string(kUser), "Q", {}}, {std::string(kAssistant), "A", {}}, {"tool", "T", {}}}};
    try {
      return tokenizer->decode(writer.continuation(conversation, 1), false);
    } catch (const Error& error) {
      return std::string(error.what());
    }
  };
  const std::string last = "{% if messages | length < 3 %}" + std::string(kTurns) + "{% else %}";
  EXPECT_THAT(problem(last + "{{ messages[0].content }}{% endif %}"), HasSubstr("an answer exactly once"));
  EXPECT_THAT(problem(last + "{{ messages[1].content + messages[1].content }}{% endif %}"),
              HasSubstr("an answer exactly once"));
  EXPECT_THAT(problem(last + "{{ messages[1].content }}{% endif %}"), HasSubstr("does not write <|im_end|>"));
  EXPECT_EQ(problem(last + "{{ messages[1].content + '<|im_end|>' + messages[2].content }}{% endif %}"), "T");
}

// If a tokenizer changes letters, its tokens do not spell the text, so the parts are encoded separately.
TEST_F(ModelTemplates, TokensThatDoNotSpellTheTextAreStillMarked) {
  with_template(kTurns);
  auto settings = nlohmann::json::parse(read_all((folder_.path() / "tokenizer.json").string()));
  settings["normalizer"] = {{"type", "Lowercase"}};
  folder_.write("tokenizer.json", settings.dump());
  const auto tokenizer = load_tokenizer("HuggingFaceTokenizer", folder_.path().string());
  const ConversationWriter writer(choose_style("auto", *tokenizer).style, *tokenizer);
  LearnedTokens tokens;
  writer.write(read_record({{"messages", {kQuestion, kAnswer}}}), tokens);
  EXPECT_EQ(tokens.ids,
            tokenizer->encode("<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n"));
  std::string learned;
  for (std::size_t i = 0; i < tokens.ids.size(); ++i)
    if (tokens.learned[i] != 0) learned += tokenizer->decode(std::vector{tokens.ids[i]}, false);
  EXPECT_EQ(learned, "a<|im_end|>");
}

}  // namespace
}  // namespace primus::data
