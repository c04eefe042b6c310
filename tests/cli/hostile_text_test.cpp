// Tests that control characters from files and arguments never reach the user's terminal.
#include <filesystem>
#include <string>
#include <vector>

#include "base/files/file.h"
#include "base/text/utf8.h"
#include "cli/program_names.h"
#include "cli/runs.h"

namespace primus {
namespace {

const std::string kGolden = PRIMUS_SOURCE_DIR "/tests/golden/models/llama";
// Sets a window title, clears the screen (by C0 and by C1 codes), and has a backspace and a DEL.
const std::string kHostile =
    "\x1b]0;title\x07\x1b[2J\xc2\x9b"
    "2J\b\x7f";

// Returns whether the text has no control characters except line breaks and tabs.
bool tame(const std::string& text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if ((byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7f) return false;
    if (byte == 0xC2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xA0) return false;
  }
  return unicode::is_valid(text);
}

class HostileText : public ::testing::Test {
 protected:
  // Returns a model folder with `config` as its config.json.
  std::string model(const std::string& config) {
    const std::string path = (folder_.path() / std::to_string(++models_)).string();
    std::filesystem::copy(kGolden, path);
    write_file_atomic(path + "/config.json", config);
    return path;
  }
  std::string model_with(const std::string& key, const json& value) {
    json config = json::parse(read_file(kGolden + "/config.json"));
    config[key] = value;
    return model(config.dump());
  }
  // Returns a model folder whose safetensors header names one tensor.
  std::string model_of_tensor(const std::string& name, const std::string& dtype) {
    std::string path = model(read_file(kGolden + "/config.json"));
    const json tensor = {{"dtype", dtype}, {"shape", {1}}, {"data_offsets", {0, 4}}};
    const std::string header = json{{name, tensor}}.dump();
    std::string file(8, '\0');
    for (int i = 0; i < 8; ++i)
      file[static_cast<std::size_t>(i)] = static_cast<char>(header.size() >> (8 * i));
    write_file_atomic(path + "/model.safetensors", file + header + std::string(4, '\0'));
    return path;
  }

  TemporaryFolder folder_;
  int models_ = 0;
};

TEST_F(HostileText, InModelsIsEscaped) {
  const std::vector<std::string> models = {model_with("model_type", kHostile),
                                           model_with("model_type", "lama" + kHostile),
                                           model_with("hidden_act", kHostile),
                                           model_with("rope_scaling", {{"rope_type", kHostile}}),
                                           model("{\"" + kHostile + "\": 1}"),
                                           model("{\"model_type\": \xff\xfe}"),
                                           model("{\"\\u009b\\u001b\": 1, \"\\u009b\\u001b\": 2}"),
                                           model_of_tensor(kHostile, "F32"),
                                           model_of_tensor("model.embed_tokens.weight" + kHostile, "F32"),
                                           model_of_tensor("x", kHostile)};
  for (const std::string& path : models) {
    for (const char* option : {"--json", "--tensors"}) {
      const ProgramResult result = run_program({"model", "info", path, option});
      EXPECT_EQ(result.exit_code, 2);
      EXPECT_TRUE(tame(result.err)) << result.err;
      EXPECT_THAT(result.out, Not(HasSubstr("\x1b")));
      EXPECT_THAT(result.err, HasSubstr("error: "));
    }
  }
  EXPECT_THAT(run_program({"model", "info", models[0]}).err,
              HasSubstr("\\x1b]0;title\\x07\\x1b[2J\\xc2\\x9b2J\\x08\\x7f"));
  // An unknown key gives a note instead of an error. The note is escaped, too.
  const ProgramResult noted = run_program({"model", "info", model_with("a" + kHostile, 1)});
  EXPECT_EQ(noted.exit_code, 0);
  EXPECT_TRUE(tame(noted.err + noted.out)) << noted.err;
  EXPECT_THAT(noted.err, HasSubstr("note: "));
}

TEST_F(HostileText, InExperimentsAndFileNamesIsEscaped) {
  const std::string file = (folder_.path() / "exp.yaml").string();
  write_file(file, "\"ke\\e[2J\\u009by\": 1\nwork_group: 'caf\xc3\xa9'\n");
  const ProgramResult key = run_program({"config", "validate", "--config", file});
  EXPECT_EQ(key.exit_code, 2);
  EXPECT_TRUE(tame(key.err)) << key.err;
  const ProgramResult missing =
      run_program({"config", "validate", "--config", file + kHostile + "\xff\xc3\xa9"});
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_TRUE(tame(missing.err)) << missing.err;
  EXPECT_THAT(missing.err, HasSubstr("\\xff\xc3\xa9"));  // valid UTF-8 is kept
}

// A NUL byte does not cut off a message.
TEST_F(HostileText, WithZeroBytesIsShownCompletely) {
  const std::string zero("x\0y", 3);
  for (const std::string& path :
       {model_with("model_type", zero), model_with("rope_scaling", {{"rope_type", zero}}),
        model_with("rope_scaling", {{zero, json::object()}, {"factor", 2}}),
        model_with("hidden_act", zero)}) {
    const ProgramResult result = run_program({"model", "info", path});
    EXPECT_EQ(result.exit_code, 2) << result.out;
    EXPECT_THAT(result.err, ::testing::ContainsRegex("x(\\\\x00|\\\\u0000)y.+"));
  }
}

// JSON output is valid UTF-8, even if file names are not.
TEST_F(HostileText, InNamesIsReplacedInJson) {
  const std::string model = (folder_.path() / "m\xff").string(),
                    text = (folder_.path() / "t\xff.txt").string();
  std::filesystem::copy(kGolden, model);
  write_file(text, "1 2 3 4 5 6 7 8");
  const std::vector<std::string> tokenizer = {"--tokenizer-type", "NullTokenizer", "--tokenizer", "60"};
  const std::vector<std::vector<std::string>> commands = {
      {"model", "info", model},
      {"model", "verify", model, "--inputs", model + "/io.safetensors"},
      {"model", "export", model, (folder_.path() / "out\xff").string()},
      {"data", "train-tokenizer", "-i", text, "-o", (folder_.path() / "tokenizer\xff").string(),
       "--vocab-size", "258"},
      {"data", "tokenize", "-i", text, "-o", (folder_.path() / "data\xff").string(), "--tokenizer-type",
       "ByteTokenizer"},
      {"eval", "loss", model, "-d", text, "--tokenizer-type", "NullTokenizer", "--tokenizer", "60"},
      {"generate", model, "-p", "1 2", "-n", "2", "--tokenizer-type", "NullTokenizer", "--tokenizer", "60"}};
  for (std::vector<std::string> words : commands) {
    words.emplace_back("--json");
    const ProgramResult result = run_program(words);
    EXPECT_EQ(result.exit_code, 0) << words[0] << " " << words[1] << ": " << result.err << result.out;
    EXPECT_TRUE(json::accept(result.out)) << words[0] << " " << words[1] << ": " << result.out;
  }
}

TEST_F(HostileText, InTheLogIsEscaped) {
  auto words = test::train(folder_.path() / "work", {"train_iters=1", "load=" + model_with("a\x1b[2J", 1)});
  const ProgramResult result = run_program(words);
  EXPECT_NE(result.exit_code, 0);
  EXPECT_TRUE(tame(result.err)) << result.err;
}

// `data decode` writes decoded bytes unchanged to a pipe, and escaped to a terminal.
TEST_F(HostileText, IsEscapedOnlyForTerminals) {
  const std::vector<std::string> decode = {"data", "decode", "--tokenizer-type", "ByteTokenizer"};
  const std::string ids = "104 195 169 27 91 50 74 127 10";
  EXPECT_EQ(run_program(decode, {.input = ids}).out, "h\xc3\xa9\x1b[2J\x7f\n\n");
  const ProgramResult shown = run_program(decode, {.input = ids, .terminal = true});
  EXPECT_EQ(shown.exit_code, 0) << shown.err;
  EXPECT_EQ(shown.out, "h\xc3\xa9\\x1b[2J\\x7f\r\n\r\n");  // the terminal adds \r
}

}  // namespace
}  // namespace primus
