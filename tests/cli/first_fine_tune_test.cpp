// Tests of a new user's first fine-tune: few chats, a model with a chat template, and only the settings that
// the README names.
#include <filesystem>
#include <fstream>

#include "base/files/file.h"
#include "cli/program_names.h"
#include "cli/runs.h"

namespace primus {
namespace {

using ::testing::Contains;
using ::testing::Not;

constexpr const char* kChatMl =
    "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nYou are terse.<|im_end|>\\n' }}{% "
    "endif %}"
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
    "'<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

class FirstFineTune : public ::testing::Test {
 protected:
  static constexpr int kChats = 40;
  // Makes a small model whose tokenizer has the special tokens of chatml, and 40 chats.
  static void SetUpTestSuite() {
    folder_ = new TemporaryFolder;
    std::string lines, text;
    for (int i = 0; i < kChats; ++i) {
      lines += nlohmann::json{{"messages",
                               {{{"role", "user"}, {"content", question(i)}},
                                {{"role", "assistant"}, {"content", answer(i)}}}},
                              {"id", i}}
                   .dump() +
               "\n";
      text += question(i) + "\n" + answer(i) + "\n";
    }
    write("chats.jsonl", lines);
    write("text.txt", text + text + text);
    const ProgramResult learned =
        run_program({"data", "train-tokenizer", "--input", at("text.txt"), "--vocab-size", "400", "--special",
                     "<|im_start|>", "--special", "<|im_end|>", "--output", at("tokenizer")});
    ASSERT_EQ(learned.exit_code, 0) << learned.err;
    write("tokenizer/chat_template.jinja", kChatMl);
    const ProgramResult base = run_program(test::train(
        folder_->path(),
        {"data_path=" + at("text.txt"), "mock_data=false", "tokenizer_type=null", "split=100,0,0",
         "tokenizer_model=" + at("tokenizer"), "train_iters=20", "lr=1e-3", "eval_iters=0", "num_layers=2",
         "vocab_size=null", "hidden_size=64", "ffn_hidden_size=128", "num_attention_heads=4",
         "num_query_groups=4", "exp_name=base", "max_position_embeddings=512"}));
    ASSERT_EQ(base.exit_code, 0) << base.err;
    const ProgramResult exported = run_program({"model", "export", run("base"), at("hf")});
    ASSERT_EQ(exported.exit_code, 0) << exported.err;
    write("hf/generation_config.json", R"({"eos_token_id": [0, 5], "temperature": 0.5})");
  }
  static void TearDownTestSuite() { delete folder_; }

  static std::string question(int i) {
    constexpr const char* kThings[] = {"a cat",    "the sea", "a stone", "snow",
                                       "an apple", "the sun", "a drum",  "rain"};
    constexpr const char* kAsked[] = {"colour of", "sound of", "size of", "place of", "name for"};
    return std::string("What is the ") + kAsked[i / 8] + " " + kThings[i % 8] + "?";
  }
  static std::string answer(int i) {
    constexpr const char* kFirst[] = {"grey", "blue", "loud", "cold", "sweet", "warm", "deep"};
    constexpr const char* kSecond[] = {"mostly", "never", "at night", "in spring", "by hand", "far away"};
    return std::string("It is ") + kFirst[i % 7] + ", " + kSecond[i % 6] + ".";
  }

  static std::string at(const std::string& name) { return (folder_->path() / name).string(); }
  static void write(const std::string& name, const std::string& content) {
    std::ofstream(folder_->path() / name, std::ios::binary) << content;
  }
  static std::string run(const std::string& name) { return test::run_folder(folder_->path(), name).string(); }
  static nlohmann::json json(const std::string& name) {
    return nlohmann::json::parse(read_file(folder_->path() / name));
  }
  // Runs `train posttrain` without an experiment file.
  static ProgramResult tune(const std::string& name, std::vector<std::string> more = {},
                            const std::string& data = "chats.jsonl") {
    std::vector<std::string> words = {"train",
                                      "posttrain",
                                      "load=" + at("hf"),
                                      "sft_dataset_name=" + at(data),
                                      "workspace=" + folder_->path().string(),
                                      "work_group=w",
                                      "user_name=u",
                                      "exp_name=" + name,
                                      "num_threads=1",
                                      "--plain"};
    words.insert(words.end(), more.begin(), more.end());
    return run_program(words);
  }
  static int answered(const std::string& model, const std::vector<std::string>& more = {}) {
    std::string questions;
    for (int i = 0; i < kChats; ++i) questions += nlohmann::json(question(i)).dump() + "\n";
    write("questions.jsonl", questions);
    std::vector<std::string> words = {
        "generate", model, "--template", "auto", "--prompts", at("questions.jsonl"), "-t", "0", "-n", "40"};
    words.insert(words.end(), more.begin(), more.end());
    const ProgramResult said = run_program(words);
    EXPECT_EQ(said.exit_code, 0) << said.err;
    int right = 0;
    std::istringstream lines(said.out);
    for (std::string line; std::getline(lines, line);) {
      const auto one = nlohmann::json::parse(line);
      right += one.at("text") == answer(one.at("index").get<int>()) ? 1 : 0;
    }
    return right;
  }
  // Returns the newest checkpoint's folder, relative to the test's folder.
  static std::string checkpoint(const std::string& name) {
    std::string newest;
    for (const std::string& one : Env::posix().list(Path(run(name)) / "checkpoints"))
      if (one.starts_with("iter_")) newest = std::max(newest, one);
    return "w/u/" + name + "/checkpoints/" + newest;
  }

  inline static TemporaryFolder* folder_ = nullptr;
};

TEST_F(FirstFineTune, TheTunedModelAnswersFortyChatsWordForWord) {
  const ProgramResult tuned = tune("tuned");
  ASSERT_EQ(tuned.exit_code, 0) << tuned.err;
  EXPECT_THAT(tuned.err,
              AllOf(HasSubstr("conversations are written as template (the model's own, 'default' in " +
                              at("hf/chat_template.jinja") + ")"),
                    HasSubstr("chosen for 40 conversations"), HasSubstr("ignored keys"), HasSubstr("id (40)"),
                    Not(HasSubstr("hardly learns"))));
  // The first step's learning rate is above 0.
  const std::string metrics = read_file(Path(run("tuned")) / "metrics.jsonl");
  EXPECT_GT(nlohmann::json::parse(metrics.substr(0, metrics.find('\n'))).at("learning_rate").get<double>(),
            0);
  EXPECT_EQ(answered(run("tuned")), kChats);
  // The exported folder gives the same answers by its template, in eval and in chat.
  ASSERT_EQ(run_program({"model", "export", run("tuned"), at("out")}).exit_code, 0);
  EXPECT_EQ(answered(at("out")), kChats);
  const ProgramResult chat =
      run_program({"chat", at("out"), "-t", "0"}, {.input = question(0) + "\nexit\nnever\n"});
  EXPECT_EQ(chat.out, answer(0) + "\n") << chat.err;
  // The exported files have the model's template, unchanged, and the end-of-turn tokens for other programs.
  const auto end = json("out/tokenizer.json").at("added_tokens").at(2);
  ASSERT_EQ(end.at("content"), "<|im_end|>");
  EXPECT_THAT(json("out/generation_config.json").at("eos_token_id").get<std::vector<int>>(),
              AllOf(Contains(0), Contains(5), Contains(end.at("id").get<int>())));
  EXPECT_EQ(json("out/generation_config.json").at("temperature"), 0.5);
  for (const char* const file : {"chat_template.jinja", "tokenizer_config.json"})
    EXPECT_EQ(read_file(folder_->path() / "out" / file), read_file(folder_->path() / "hf" / file)) << file;
}

// A dry run chooses the same settings as the run.
TEST_F(FirstFineTune, ARunWithoutStepsEndsAtOnce) {
  const ProgramResult result = tune("no_steps", {"train_iters=0"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.signal, 0);
  EXPECT_THAT(result.out + result.err, HasSubstr("the run has no steps"));
}

// The model reads at most 512 tokens.
TEST_F(FirstFineTune, AnswersLongerThanTheModelReadsAreRefused) {
  write("prompts.jsonl", R"({"prompt": "3+4=", "answer": "7"})");
  for (const char* more : {"--dry-run", "--plain"}) {
    const ProgramResult result = run_program(
        {"train", "grpo", "load=" + at("hf"), "data=" + at("prompts.jsonl"), "reward=exact:answer",
         "max_completion_length=600", "workspace=" + folder_->path().string(), "exp_name=long", more});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, AllOf(HasSubstr("an answer of 600 tokens (max_completion_length)"),
                                  HasSubstr("512 tokens, the maximum of the loaded model"),
                                  HasSubstr("decrease max_completion_length below 512")));
  }
}

TEST_F(FirstFineTune, AForecastMakesTheSameChoices) {
  const ProgramResult planned = tune("planned", {"--dry-run", "--json"});
  ASSERT_EQ(planned.exit_code, 0) << planned.err;
  const nlohmann::json forecast = nlohmann::json::parse(planned.out);
  const nlohmann::json& chosen = forecast.at("experiment").at("trainer");
  EXPECT_GT(chosen.at("train_epochs").get<double>(), 3);
  EXPECT_EQ(chosen.at("eval_iters"), 0);
  EXPECT_GT(forecast.at("steps").get<int>(), 20);
  // `config show` prints the chosen settings, too.
  const ProgramResult shown =
      run_program({"config", "show", "--json", "load=" + at("hf"), "sft_dataset_name=" + at("chats.jsonl")});
  ASSERT_EQ(shown.exit_code, 0) << shown.err;
  const nlohmann::json settings = nlohmann::json::parse(shown.out).at("trainer");
  for (const char* key : {"train_epochs", "lr", "seq_length", "global_batch_size", "eval_iters"})
    EXPECT_EQ(settings.at(key), chosen.at(key)) << key;
  // The chosen rate is at least min_lr, which a preset's rate does not limit.
  const ProgramResult flat = tune("flat", {"min_lr=0.5", "train_iters=1"});
  ASSERT_EQ(flat.exit_code, 0) << flat.err;
  EXPECT_THAT(flat.out + flat.err,
              AllOf(HasSubstr("lr=0.5"), HasSubstr("min_lr (0.5) is above the usual peak")));
  // A validation file is evaluated even if it has only few conversations.
  std::filesystem::create_directory(folder_->path() / "divided");
  for (const char* name : {"divided/train.jsonl", "divided/validation.jsonl"})
    write(name, read_file(folder_->path() / "chats.jsonl"));
  const ProgramResult divided = tune("planned", {"--dry-run", "--json"}, "divided");
  ASSERT_EQ(divided.exit_code, 0) << divided.err;
  EXPECT_GT(nlohmann::json::parse(divided.out).at("experiment").at("trainer").at("eval_iters"), 0);
  EXPECT_THAT(divided.err, Not(HasSubstr("no conversation is held out")));
}

// A dry run needs no data to state the number of epochs, but refuses data that exist and cannot be read.
TEST_F(FirstFineTune, AForecastOfEpochsRefusesDamagedConversations) {
  write("damaged.jsonl", read_file(folder_->path() / "chats.jsonl") + "{\"messages\": [\n");
  const auto plan = [](const char* data) {
    return tune("planned", {"--dry-run", "sft_fit_to_data=false", "train_epochs=2", "lr=1e-4"}, data);
  };
  EXPECT_EQ(plan("chats.jsonl").exit_code, 0);
  const ProgramResult damaged = plan("damaged.jsonl");
  EXPECT_EQ(damaged.exit_code, 2);
  EXPECT_THAT(damaged.err, HasSubstr("damaged.jsonl:"));
  for (const char* missing : {"missing.jsonl", "missing-*.jsonl"}) {
    const ProgramResult planned = plan(missing);
    EXPECT_EQ(planned.exit_code, 0) << planned.err;
    EXPECT_THAT(planned.out, HasSubstr("as many as 2 epochs need"));
  }
}

// The run resumes from its own checkpoint after the folder of `load` was renamed.
TEST_F(FirstFineTune, ContinuesAfterItsBaseModelWasMoved) {
  std::filesystem::copy(folder_->path() / "hf", folder_->path() / "lent");
  const std::vector<std::string> lent = {"load=" + at("lent"), "train_iters=4"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), lent.begin(), lent.end());
    return tune("borrowed", std::move(more));
  };
  ASSERT_EQ(with({"exit_interval=2"}).exit_code, 0);
  std::filesystem::rename(folder_->path() / "lent", folder_->path() / "moved");
  const ProgramResult further = with({});
  EXPECT_EQ(further.exit_code, 0) << further.err;
  EXPECT_THAT(further.out, HasSubstr("done after iteration 4"));
}

// Settings in a file are kept, and an exported file describes the same run.
TEST_F(FirstFineTune, AFileKeepsItsSettings) {
  const std::string file = at("exported.yaml");
  const ProgramResult planned =
      tune("exported", {"train_epochs=2", "lr=1e-4", "--dry-run", "--json", "--export-config", file});
  ASSERT_EQ(planned.exit_code, 0) << planned.err;
  const auto chosen = [](const ProgramResult& plan) {
    const nlohmann::json forecast = nlohmann::json::parse(plan.out);
    std::string text;
    for (const char* key : {"train_epochs", "lr", "seq_length", "global_batch_size", "eval_iters"})
      text += std::string(" ") + key + " " + forecast.at("experiment").at("trainer").at(key).dump();
    return text;
  };
  const auto plan_of = [&] {
    return run_program({"train", "posttrain", "--config", file, "--dry-run", "--json"});
  };
  const ProgramResult again = plan_of();
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(chosen(again), chosen(planned));
  EXPECT_THAT(chosen(again), Not(HasSubstr("steps 0")));
  // Settings in the file are also kept if sft_fit_to_data is true.
  std::string text = read_file(file);
  const std::string off = "sft_fit_to_data: false";
  ASSERT_NE(text.find(off), std::string::npos);
  write("exported.yaml", text.replace(text.find(off), off.size(), "sft_fit_to_data: true"));
  const ProgramResult by_hand = plan_of();
  ASSERT_EQ(by_hand.exit_code, 0) << by_hand.err;
  EXPECT_EQ(chosen(by_hand), chosen(planned));
}

// A resumed run keeps the batch size that was chosen at its start, even if seq_length changes, because the
// run's position in the data is the number of steps times the batch size.
TEST_F(FirstFineTune, AContinuedRunKeepsItsBatchSize) {
  const std::vector<std::string> settings = {"train_epochs=25", "exit_interval=2"};
  const auto with = [&](const char* length) {
    std::vector<std::string> words = settings;
    words.emplace_back(length);
    return words;
  };
  const ProgramResult begun = tune("kept", with("seq_length=512"));
  ASSERT_EQ(begun.exit_code, 0) << begun.err;
  EXPECT_THAT(begun.err, HasSubstr("global_batch_size=1,"));
  const ProgramResult other = tune("other", with("seq_length=64"));
  ASSERT_EQ(other.exit_code, 0) << other.err;
  EXPECT_THAT(other.err, Not(HasSubstr("global_batch_size=1,")));
  std::vector<std::string> on_purpose = with("seq_length=64");
  const ProgramResult refused = tune("kept", on_purpose);
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("was trained with seq_length: 512"));
  on_purpose.emplace_back("allow_data_change=true");
  const ProgramResult resumed = tune("kept", on_purpose);
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_THAT(resumed.err, AllOf(HasSubstr("global_batch_size=1 (as when the run was started)"),
                                 HasSubstr("seq_length was 512, and is 64")));
}

// If a run without evaluation resumes with a `split`, it evaluates, as a new run with a `split` does.
TEST_F(FirstFineTune, AContinuedRunWithASplitEvaluates) {
  const ProgramResult begun = tune("divided", {"train_iters=2"});
  ASSERT_EQ(begun.exit_code, 0) << begun.err;
  EXPECT_THAT(begun.err, AllOf(HasSubstr("eval_iters=0"), Not(HasSubstr("(validation)"))));
  const std::vector<std::string> more = {"train_iters=4", "eval_interval=2", "split=80,20,0",
                                         "allow_data_change=true"};
  const ProgramResult resumed = tune("divided", more);
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_THAT(resumed.err, AllOf(HasSubstr("(validation): 8 conversations"), Not(HasSubstr("eval_iters=0"))));
  // An evaluation that the user turns off stays off, with a warning.
  std::vector<std::string> off = more;
  off.front() = "train_iters=6";
  off.emplace_back("eval_iters=0");
  const ProgramResult unevaluated = tune("divided", off);
  ASSERT_EQ(unevaluated.exit_code, 0) << unevaluated.err;
  EXPECT_THAT(unevaluated.err, HasSubstr("split 80,20,0 holds out 8 conversations, but no evaluation"));
}

// If validation data are added to the folder of a run without evaluation, the resumed run evaluates them.
TEST_F(FirstFineTune, AContinuedRunEvaluatesAddedValidationData) {
  std::filesystem::create_directory(folder_->path() / "grown");
  const std::string chats = read_file(folder_->path() / "chats.jsonl");
  write("grown/train.jsonl", chats);
  const ProgramResult begun = tune("grown", {"train_iters=2"}, "grown");
  ASSERT_EQ(begun.exit_code, 0) << begun.err;
  write("grown/validation.jsonl", chats.substr(0, chats.find('\n') + 1));
  const ProgramResult resumed = tune("grown", {"train_iters=4", "eval_interval=2"}, "grown");
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_THAT(resumed.err, AllOf(HasSubstr("(validation): 1 conversation"), Not(HasSubstr("eval_iters=0"))));
}

// The length of a finished run is a number of epochs, so adding chats does not add steps. The message names
// the setting that trains on the added chats.
TEST_F(FirstFineTune, AFinishedRunNamesTheLengthThatTrainsOnMoreChats) {
  const std::string chats = read_file(folder_->path() / "chats.jsonl");
  write("later.jsonl", chats);
  std::vector<std::string> settings = {"train_epochs=1", "global_batch_size=64"};
  const ProgramResult begun = tune("finished", settings, "later.jsonl");
  ASSERT_EQ(begun.exit_code, 0) << begun.err;
  const std::size_t line = chats.find('\n') + 1;
  write("later.jsonl", chats + chats.substr(0, line));
  settings.emplace_back("allow_data_change=true");
  const ProgramResult again = tune("finished", settings, "later.jsonl");
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.out,
              AllOf(HasSubstr("later.jsonl' has changed, which does not change a finished run: 1 epoch "
                              "of the data is "),
                    HasSubstr("or train this run longer, on the present data (train_epochs=..., above 1)")));
  settings.front() = "train_epochs=50";
  const ProgramResult longer = tune("finished", settings, "later.jsonl");
  ASSERT_EQ(longer.exit_code, 0) << longer.err;
  EXPECT_THAT(longer.out, Not(HasSubstr("nothing left to do")));
}

// If chats are added to the file, the run keeps the seq_length that was chosen at its start, so the error
// names the chats. If the change is permitted, warnings say what changed.
TEST_F(FirstFineTune, MoreChatsAreNamedAndNotTheChosenLength) {
  const std::string chats = read_file(folder_->path() / "chats.jsonl");
  std::string longer = chats;
  for (int i = 0; i < kChats; ++i) {
    std::string lengthy = question(i);
    for (int times = 0; times < 12; ++times) lengthy += " " + question(i);
    longer += nlohmann::json{{"messages",
                              {{{"role", "user"}, {"content", lengthy}},
                               {{"role", "assistant"}, {"content", answer(i)}}}}}
                  .dump() +
              "\n";
  }
  std::vector<std::string> settings = {"exit_interval=2", "eval_iters=1"};
  write("growing.jsonl", chats);
  const ProgramResult begun = tune("growing", settings, "growing.jsonl");
  ASSERT_EQ(begun.exit_code, 0) << begun.err;
  write("growing.jsonl", longer);
  const ProgramResult fresh = tune("fresh", {"--dry-run"}, "growing.jsonl");
  ASSERT_THAT(fresh.err, Not(HasSubstr("seq_length=64,"))) << "the longer chats need longer sequences";
  const ProgramResult refused = tune("growing", settings, "growing.jsonl");
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err,
              AllOf(HasSubstr("was trained with another set of conversations"),
                    HasSubstr("whose content has changed"), Not(HasSubstr("trained with seq_length"))));
  settings.emplace_back("allow_data_change=true");
  const ProgramResult resumed = tune("growing", settings, "growing.jsonl");
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_THAT(resumed.err, AllOf(HasSubstr("whose content has changed since then; allow_data_change permits"),
                                 HasSubstr("the validation data is a part of the changed data"),
                                 HasSubstr("(as when the run was started)")));
}

TEST_F(FirstFineTune, AnotherFormatReplacesTheModelsTemplate) {
  const ProgramResult tuned = tune("alpaca", {"sft_conversation_format=alpaca", "train_iters=2"});
  ASSERT_EQ(tuned.exit_code, 0) << tuned.err;
  EXPECT_THAT(tuned.err, AllOf(HasSubstr("written as alpaca (chosen)"),
                               HasSubstr("the model's own template, which writes chatml, is replaced"),
                               HasSubstr("only 2 steps: the model hardly learns")));
  const std::string folder = checkpoint("alpaca");
  const std::string jinja = read_file(folder_->path() / folder / "chat_template.jinja");
  EXPECT_THAT(jinja, AllOf(HasSubstr("### Response:"), Not(HasSubstr("im_start"))));
  EXPECT_EQ(json(folder + "/tokenizer_config.json").at("chat_template"), jinja);
  // A resumed run keeps its conversation format if none is given.
  const ProgramResult on = tune("alpaca", {"train_iters=4"});
  ASSERT_EQ(on.exit_code, 0) << on.err;
  EXPECT_THAT(on.err, HasSubstr("written as alpaca (as when the run was started)"));
}

// A model's own template is used with its tools and its named templates, in training, listings and prompts.
TEST_F(FirstFineTune, AnUnusualTemplateIsTaught) {
  std::filesystem::copy(folder_->path() / "hf", folder_->path() / "own");
  const std::string turns =
      "{% for m in messages %}{{ '<turn>' + (m.content or '') }}{{ m.tool_calls | tojson if m.tool_calls "
      "}}{% endfor %}";
  write("own/chat_template.jinja", turns);
  std::filesystem::create_directory(folder_->path() / "own/additional_chat_templates");
  write("own/additional_chat_templates/tool_use.jinja", "{{ tools | tojson }}" + turns);
  write("calls.jsonl", R"({"tools": [{"name": "add"}], "messages": [{"role": "user", "content": "1 + 2?"}, )"
                       R"({"role": "assistant", "tool_calls": [{"name": "add"}]}]})");
  const ProgramResult listed =
      run_program({"data", "conversations", at("calls.jsonl"), "--tokenizer", at("own")});
  EXPECT_EQ(listed.exit_code, 0) << listed.err;
  EXPECT_THAT(listed.out,
              AllOf(HasSubstr(at("own/chat_template.jinja") + ", and 'tool_use'"),
                    HasSubstr("[{\"name\": \"add\"}]<turn>1 + 2?\u27E6<turn>[{\"name\": \"add\"}]\u27E7")));
  const ProgramResult named = run_program(
      {"data", "conversations", at("calls.jsonl"), "--tokenizer", at("own"), "--format", "chatml"});
  EXPECT_THAT(named.err, HasSubstr("the conversation has tools ('tools'), which is not supported"));
  const ProgramResult tuned = tune("own", {"load=" + at("own"), "train_iters=2"}, "calls.jsonl");
  ASSERT_EQ(tuned.exit_code, 0) << tuned.err;
  EXPECT_THAT(tuned.err, HasSubstr("the model does not learn to stop"));
  // A checkpoint has no folder of templates, so its configuration has a list of templates. An export of a
  // published model copies the template files.
  const nlohmann::json saved = json(checkpoint("own") + "/tokenizer_config.json").at("chat_template");
  EXPECT_EQ(saved.at(0), (nlohmann::json{{"name", "default"}, {"template", turns}}));
  EXPECT_EQ(saved.at(1).at("name"), "tool_use");
  ASSERT_EQ(run_program({"model", "export", at("own"), at("copy")}).exit_code, 0);
  for (const char* const file : {"chat_template.jinja", "additional_chat_templates/tool_use.jinja"})
    EXPECT_EQ(read_file(folder_->path() / "copy" / file), read_file(folder_->path() / "own" / file)) << file;
  // A resumed run keeps the template.
  const ProgramResult on = tune("own", {"load=" + at("own"), "train_iters=3"}, "calls.jsonl");
  EXPECT_EQ(on.exit_code, 0) << on.err;
  EXPECT_THAT(on.err, HasSubstr("written as template (as when the run was started)"));

  write("tools.json", R"([{"name": "add"}])");
  const auto prompt_tokens = [&](std::vector<std::string> more) {
    std::vector<std::string> words{"generate", run("own"), "--template", "auto",  "-p",
                                   "Hi",       "-n",       "1",          "--json"};
    words.insert(words.end(), more.begin(), more.end());
    const ProgramResult said = run_program(words);
    EXPECT_EQ(said.exit_code, 0) << said.err;
    return nlohmann::json::parse(said.out).at("prompt_tokens").get<int>();
  };
  EXPECT_GT(prompt_tokens({"--tools", at("tools.json")}), prompt_tokens({}));
  EXPECT_THAT(
      run_program({"generate", run("own"), "--template", "chatml", "-p", "Hi", "--tools", at("tools.json")})
          .err,
      HasSubstr("the format chatml does not support tools"));
  EXPECT_THAT(run_program({"generate", run("own"), "-p", "Hi", "--tools", at("tools.json")}).err,
              HasSubstr("tools need a format of turns"));
}

TEST_F(FirstFineTune, ABrokenTemplateIsRefused) {
  std::filesystem::copy(folder_->path() / "hf", folder_->path() / "odd");
  write("odd/chat_template.jinja", "{% for m in messages %}");
  const ProgramResult refused = tune("odd", {"load=" + at("odd")});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(
      refused.err,
      AllOf(HasSubstr("the chat template 'default' is broken"), HasSubstr("sft_conversation_format=NAME"),
            HasSubstr(at("odd/chat_template.jinja") + ": error:"), Not(HasSubstr("sft_trainer.yaml"))));
  const ProgramResult listed =
      run_program({"data", "conversations", at("chats.jsonl"), "--tokenizer", at("odd")});
  EXPECT_EQ(listed.exit_code, 2);
  EXPECT_THAT(listed.err, AllOf(HasSubstr(at("odd/chat_template.jinja") + ": error:"),
                                HasSubstr("--format NAME"), Not(HasSubstr("sft_"))));
  for (const char* command : {"chat", "generate"}) {
    const ProgramResult asked = run_program({command, at("odd"), "--template", "auto"}, {.input = "x\n"});
    EXPECT_EQ(asked.exit_code, 2) << asked.out;
    EXPECT_THAT(asked.err, AllOf(HasSubstr("is broken"), HasSubstr("with one of alpaca, squad, chatml"),
                                 Not(HasSubstr("llama3"))));
  }
  EXPECT_EQ(tune("odd", {"load=" + at("odd"), "sft_conversation_format=chatml", "train_iters=1"}).exit_code,
            0);
}

TEST_F(FirstFineTune, ListsShowWhetherALengthWasApplied) {
  const std::vector<std::string> words{"data", "conversations", at("chats.jsonl"), "--tokenizer", at("hf")};
  EXPECT_THAT(run_program(words).out, HasSubstr("these counts are without the cut at seq_length"));
  auto cut = words;
  cut.insert(cut.end(), {"--seq-length", "16"});
  EXPECT_THAT(run_program(cut).out,
              AllOf(HasSubstr("longer than a sequence of 16"), Not(HasSubstr("without the cut"))));
}

// A hint names an option of the command that was called.
TEST_F(FirstFineTune, HintsOnFormatsFitTheCommand) {
  write("roles.jsonl",
        R"({"messages": [{"role": "tool", "content": "a"}, {"role": "assistant", "content": "b"}]})");
  const ProgramResult listed = run_program(
      {"data", "conversations", at("roles.jsonl"), "--tokenizer", at("hf"), "--format", "alpaca"});
  EXPECT_EQ(listed.exit_code, 2);
  EXPECT_THAT(listed.err, AllOf(HasSubstr("set --format chatml"), Not(HasSubstr("sft_conversation_format"))));
  const ProgramResult evaluated =
      run_program({"eval", "loss", at("hf"), "--conversations", at("roles.jsonl"), "--template", "alpaca"});
  EXPECT_EQ(evaluated.exit_code, 2);
  EXPECT_THAT(evaluated.err,
              AllOf(HasSubstr("set --template chatml"), Not(HasSubstr("sft_conversation_format"))));
  const ProgramResult asked = run_program({"chat", at("hf"), "--template", "llama3"}, {.input = "x\n"});
  EXPECT_EQ(asked.exit_code, 2);
  EXPECT_THAT(asked.err, AllOf(HasSubstr("set --template alpaca"), Not(HasSubstr("sft_"))));
  // A base model without a template is evaluated in the format that training would use.
  std::filesystem::copy(folder_->path() / "hf", folder_->path() / "base");
  std::filesystem::remove(folder_->path() / "base/chat_template.jinja");
  auto settings = json("base/tokenizer_config.json");
  settings.erase("chat_template");
  write("base/tokenizer_config.json", settings.dump());
  const auto loss = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words{"eval", "loss", at("base"), "--conversations", at("chats.jsonl")};
    words.insert(words.end(), more.begin(), more.end());
    return run_program(words);
  };
  const ProgramResult unsure = loss({});
  EXPECT_EQ(unsure.exit_code, 2);
  EXPECT_THAT(unsure.err, HasSubstr("--template chatml, the default of 'train posttrain' for this model"));
  EXPECT_EQ(loss({"--template", "chatml"}).exit_code, 0);
  // The answers exist, but the context ends before them.
  const ProgramResult cut = loss({"--template", "chatml", "--seq-length", "1"});
  EXPECT_EQ(cut.exit_code, 2);
  EXPECT_THAT(cut.err, AllOf(HasSubstr("no answer begins within 1 tokens"), HasSubstr("--seq-length ")));
}

// The batch depends on the tokens that are trained, and the end of a long record is not trained.
TEST_F(FirstFineTune, ALongRecordDoesNotEnlargeTheBatch) {
  std::string words;
  for (int i = 0; i < 100000; ++i) words += "word ";
  write("long.jsonl", read_file(folder_->path() / "chats.jsonl") + "{\"prompt\": \"a\", \"response\": \"" +
                          words + "\"}\n");
  const ProgramResult tuned = tune("long", {"train_iters=1"}, "long.jsonl");
  EXPECT_EQ(tuned.exit_code, 0) << tuned.err;
  EXPECT_THAT(tuned.err, AllOf(HasSubstr("truncated 1 of 41 conversations"),
                               HasSubstr("global_batch_size=1,"), Not(HasSubstr("repeats samples"))));
}

TEST_F(FirstFineTune, BrokenRecordsMayBeSkipped) {
  write("broken.jsonl", read_file(folder_->path() / "chats.jsonl") + "{\"messages\": [\n" +
                            R"({"prompt": "a", "response": "b", "images": ["f"]})" + "\n");
  const ProgramResult refused = tune("broken", {}, "broken.jsonl");
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("broken.jsonl:41:"), HasSubstr("--skip-bad")));
  const ProgramResult tuned = tune("broken", {"--skip-bad", "train_iters=1"}, "broken.jsonl");
  EXPECT_EQ(tuned.exit_code, 0) << tuned.err;
  EXPECT_THAT(tuned.err, HasSubstr("skipped 2 of 42 records (skip_bad); the first: "));
  const ProgramResult shown =
      run_program({"data", "conversations", at("broken.jsonl"), "--tokenizer", at("hf"), "--skip-bad"});
  EXPECT_EQ(shown.exit_code, 0) << shown.err;
  EXPECT_THAT(shown.err, HasSubstr("skipped 2 of 42 records"));
  EXPECT_THAT(shown.out, AllOf(HasSubstr("format: template (the model's own"), HasSubstr("You are terse.")));
}

// Tokens that the length limit cuts off a conversation are neither marked nor counted as learned.
TEST_F(FirstFineTune, TruncatedTextIsNotShownAsTrained) {
  const auto learned = [&](const std::string& length) {
    std::vector<std::string> words = {"data",   "conversations", at("chats.jsonl"), "--tokenizer",
                                      at("hf"), "--json",        "--show",          "40"};
    if (!length.empty()) words.insert(words.end(), {"--seq-length", length});
    return nlohmann::json::parse(run_program(words).out);
  };
  const auto whole = learned(""), cut = learned("30");
  EXPECT_LT(cut.at("learned_tokens"), whole.at("learned_tokens"));
  std::int64_t marked = 0;
  for (const auto& one : cut.at("shown")) {
    const auto flags = one.at("learned").get<std::vector<int>>();
    for (std::size_t i = 0; i < flags.size(); ++i) {
      marked += flags[i];
      EXPECT_TRUE(i <= 30 || flags[i] == 0);
    }
  }
  EXPECT_EQ(marked, cut.at("learned_tokens").get<std::int64_t>());
}

TEST_F(FirstFineTune, ChatHasCommands) {
  const std::string input = "/help\n/nonsense\n/other words\n/clear now\n/system Be brief.\n/quit\nnever\n";
  const ProgramResult chat = run_program({"chat", at("hf"), "-t", "0", "-n", "2"}, {.input = input});
  EXPECT_EQ(chat.exit_code, 0) << chat.err;
  EXPECT_EQ(chat.out, "");
  EXPECT_THAT(chat.err, AllOf(HasSubstr("/clear"), HasSubstr("there is no command /nonsense"),
                              HasSubstr("there is no command /other;"),
                              HasSubstr("the command /clear has no words after it"),
                              HasSubstr("'primus chat --system TEXT'")));
  const ProgramResult bytes = run_program({"chat", at("hf"), "-n", "2"}, {.input = "\xff\nexit\n"});
  EXPECT_THAT(bytes.err, HasSubstr("the line has bytes that are not UTF-8"));
  for (const char* end : {"exit", "quit", "/exit", "/bye"}) {
    EXPECT_EQ(run_program({"chat", at("hf")}, {.input = std::string(end) + "\nnever\n"}).out, "") << end;
  }
}

}  // namespace
}  // namespace primus
