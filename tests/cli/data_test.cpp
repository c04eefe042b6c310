// Tests of the data commands, called as a user calls them.
#include <algorithm>
#include <chrono>
#include <fstream>

#include "base/files/file.h"
#include "base/small_disk.h"
#include "cli/program_names.h"

namespace primus {
namespace {

const std::string kGolden = PRIMUS_SOURCE_DIR "/tests/golden/";
const std::string kLlama3 = kGolden + "tokenizers/llama3.tokenizer.json";

// Returns JSON lines: each has key `to` with the item's value at `from`.
std::string lines(const json& items, const char* from, const char* to) {
  std::string text;
  for (const json& item : items) text += json{{to, item.at(from)}}.dump() + "\n";
  return text;
}

json values(const std::string& text, const char* key) {
  json list = json::array();
  for (size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1)
    list.push_back(json::parse(text.substr(begin, end - begin)).at(key));
  return list;
}

json column(const json& items, const char* key) {
  json list = json::array();
  for (const json& item : items) list.push_back(item.at(key));
  return list;
}

TEST(DataText, EncodesAndDecodesTheReferenceTexts) {
  const json reference = json::parse(std::ifstream(kGolden + "tokenizers/reference.json"));
  json items = reference.at("llama3");
  items.erase(items.begin() + 60, items.end());  // the rest fits into a pipe's buffer
  const ProgramResult ids = run_program({"data", "encode", "--tokenizer", kLlama3, "--jsonl"},
                                        {.input = lines(items, "text", "text")});
  ASSERT_EQ(ids.exit_code, 0) << ids.err;
  EXPECT_EQ(values(ids.out, "ids"), column(items, "ids"));
  const ProgramResult plain = run_program({"data", "encode", "-t", kLlama3, "--jsonl", "--no-special-tokens"},
                                          {.input = lines(items, "text", "text")});
  EXPECT_EQ(values(plain.out, "ids"), column(items, "ids_no_special"));
  const ProgramResult texts = run_program({"data", "decode", "--tokenizer", kLlama3, "--jsonl"},
                                          {.input = lines(items, "ids", "ids")});
  ASSERT_EQ(texts.exit_code, 0) << texts.err;
  EXPECT_EQ(values(texts.out, "text"), column(items, "decoded"));
}

TEST(DataText, PlainTextAndMistakes) {
  const std::vector<std::string> bytes = {"--tokenizer-type", "ByteTokenizer"};
  const auto run = [&bytes](std::vector<std::string> words, const std::string& input) {
    words.insert(words.end(), bytes.begin(), bytes.end());
    return run_program(words, {.input = input});
  };
  EXPECT_EQ(run({"data", "encode"}, "Hi").out, "72 105\n");
  EXPECT_EQ(run({"data", "decode"}, "72, 105").out, "Hi\n");
  EXPECT_EQ(run({"data", "decode", "--special-tokens"}, "72 256").out, "H<|endoftext|>\n");
  const ProgramResult no_number = run({"data", "decode"}, "72\nx");
  EXPECT_EQ(no_number.exit_code, 2);
  EXPECT_THAT(no_number.err, HasSubstr("<standard input>:2: error"));
  EXPECT_EQ(run({"data", "decode"}, "257").exit_code, 2);
  const ProgramResult latin = run({"data", "encode"}, "a\nb\xE9");
  EXPECT_EQ(latin.exit_code, 2);
  EXPECT_THAT(latin.err, HasSubstr("<standard input>:2:2: error: not valid UTF-8 (byte 0xE9)"));
  EXPECT_THAT(run({"data", "encode", "--jsonl"}, "{\"text\": \"\xE9\"}\n").err,
              HasSubstr("<standard input>:1:11"));
  const ProgramResult no_text = run({"data", "encode", "--jsonl"}, "{\"text\": \"a\"}\n{\"t\": 1}\n");
  EXPECT_EQ(no_text.exit_code, 2);
  EXPECT_THAT(no_text.err, HasSubstr("<standard input>:2: error: the line has no key 'text'; it has 't'"));
  EXPECT_THAT(run({"data", "encode", "--jsonl"}, "{\"text\": 5}\n").err,
              HasSubstr("<standard input>:1:10: error: the value of 'text' is a number, not a string"));
  EXPECT_THAT(run({"data", "decode", "--jsonl"}, "{\"ids\": [\"5\"]}\n").err,
              HasSubstr("an element of 'ids' is a string, not a number"));
  for (const char* id : {"257", "99999999999"}) {
    EXPECT_THAT(run({"data", "decode", "--jsonl"}, "{\"ids\": [" + std::string(id) + "]}\n").err,
                HasSubstr("<standard input>:1: error"));
  }
  EXPECT_EQ(run({"data", "encode", "--jsonl"}, "\xEF\xBB\xBF{\"text\": \"a\"}\n").out, "{\"ids\":[97]}\n");
}

TEST(DataRender, ComparesTemplatesWithExpectedTexts) {
  const TemporaryFolder folder;
  const std::string file = (folder.path() / "cases.json").string();
  const std::vector<std::string> words{"data", "render", "--templates", file};
  write_file(file, R"([{"template": "{{ a + 1 }}", "data": {"a": 1}, "text": "2"}])");
  const ProgramResult held = run_program(words);
  EXPECT_EQ(held.exit_code, 0) << held.err;
  EXPECT_EQ(held.out, "1 of 1 cases hold\n");
  write_file(file, R"({"conversations": {"hello": {"messages": [{"role": "user", "content": "Hi"}]}},
                       "templates": {"t": {"template": "{{ messages[0].content }}",
                                           "renders": [{"conversation": "hello", "text": "Ho"}]}}})");
  const ProgramResult failed = run_program(words);
  EXPECT_EQ(failed.exit_code, 1);
  EXPECT_EQ(failed.out, "t, conversation hello\nexpected: Ho\nfound: Hi\n\n0 of 1 cases hold\n");
  auto as_json = words;
  as_json.emplace_back("--json");
  EXPECT_EQ(json::parse(run_program(as_json).out).at("failed").at(0).at("found"), "Hi");
  write_file(file, "{}");
  const ProgramResult refused = run_program(words);
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr(file), HasSubstr("docs/formats/conversations.md")));
}

TEST(DataInspect, PrintsTheOrderOfMegatron) {
  for (const json& run : json::parse(std::ifstream(kGolden + "megatron/order.json"))) {
    std::vector<std::string> words = {"data", "inspect"};
    const auto path = [](const json& name) {
      return kGolden + "megatron/" + name.get<std::string>() + "_text_document";
    };
    if (run["weights"].is_null()) {
      words.push_back(path(run["blend"][0]));
    } else {
      words.emplace_back("--blend");
      for (size_t i = 0; i < run["blend"].size(); ++i) {
        words.push_back(run["weights"][i].dump());
        words.push_back(path(run["blend"][i]));
      }
    }
    const json& n = run["n"];
    words.insert(words.end(), {"--order", "--seq-length", run["seq"].dump(), "--seed", run["seed"].dump(),
                               "--split", run["split"].get<std::string>(), "--samples",
                               n[0].dump() + "," + n[1].dump() + "," + n[2].dump(), "--json"});
    const ProgramResult result = run_program(words);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const json splits = json::parse(result.out).at("splits");
    const char* const names[] = {"train", "valid", "test"};
    for (size_t split = 0; split < 3; ++split) {
      const json& expected = run["splits"][split];
      json samples = splits.at(names[split]).at("samples");
      EXPECT_EQ(splits.at(names[split]).at("len"), expected.at("len"));
      EXPECT_EQ(samples.size(), expected.at("len"));
      samples.erase(samples.begin() + static_cast<ptrdiff_t>(expected["samples"].size()), samples.end());
      EXPECT_EQ(samples, expected.at("samples"));
    }
  }
}

class DataFiles : public testing::Test {
 protected:
  DataFiles() {
    std::string text;
    for (int i = 0; i < 10; ++i)
      text += json{{"text", "Text " + std::to_string(i)}, {"title", "T"}}.dump() + "\n";
    write_file(folder_.path() / "a.jsonl", text);
    write_file(folder_.path() / "b.jsonl", text);
  }
  ProgramResult run(std::vector<std::string> words) const {
    words.insert(words.begin(), "data");
    return run_program(words, {.folder = folder_.path().string()});
  }
  std::string content(const std::string& name) const { return read_file(folder_.path() / name); }

  const TemporaryFolder folder_;
};

TEST_F(DataFiles, OptionsOfMegatronsScript) {
  const ProgramResult result =
      run({"tokenize", "--input", "a.jsonl", "b.jsonl", "--output-prefix", "out/x", "--tokenizer-type",
           "HuggingFaceTokenizer", "--tokenizer-model", kLlama3, "--json-keys", "title", "text",
           "--append-eod", "--workers", "2", "--partitions", "2", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(json::parse(result.out).at("documents"), 20);
  EXPECT_EQ(json::parse(result.out).at("prefixes"), (json{"out/x_title_document", "out/x_text_document"}));
  const json found = json::parse(run({"inspect", "out/x_text_document", "-t", kLlama3, "--json"}).out);
  EXPECT_EQ(found.at("documents"), 20);
  EXPECT_EQ(found.at("documents_ended_by_eod"), 20);
  EXPECT_EQ(found.at("tokens_beyond_vocabulary"), 0);
  EXPECT_THAT(found.at("samples").at(0).get<std::string>(), HasSubstr("Text 0"));
  // Ids beyond the tokenizer's vocabulary are an error with exit code 2.
  const ProgramResult wrong = run({"inspect", "out/x_text_document", "--tokenizer-type", "ByteTokenizer"});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.out, HasSubstr("OUTSIDE the vocabulary of 257"));
  EXPECT_THAT(wrong.err, HasSubstr("was tokenized with another tokenizer"));
}

TEST_F(DataFiles, TokensBeyondTheVocabularyAreErrorsWithTheirLocation) {
  write_file(folder_.path() / "n.jsonl", "{\"text\": \"1 2\"}\n{\"text\": [\"3\", \"4 9 5 8\"]}\n");
  // As in preprocess_data.py, --vocab-size sets the size, and the last id ends documents.
  const ProgramResult made = run({"tokenize", "-i", "n.jsonl", "-o", "n", "--tokenizer-type", "NullTokenizer",
                                  "--vocab-size", "12", "--append-eod"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const std::vector<std::string> inspect = {"inspect", "n_text_document", "--tokenizer-type", "NullTokenizer",
                                            "-t"};
  const auto with = [this, inspect](std::initializer_list<const char*> more) {
    std::vector<std::string> words = inspect;
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  };
  EXPECT_EQ(with({"12"}).exit_code, 0);
  EXPECT_EQ(json::parse(with({"12", "--json"}).out).at("documents_ended_by_eod"), 2);
  const ProgramResult text = with({"11"});
  EXPECT_EQ(text.exit_code, 2);
  EXPECT_THAT(text.err,
              HasSubstr("n_text_document: error: document 0 has the token 11 at position 2, outside "
                        "the vocabulary of 11; in all, 2 of 9 tokens are"));
  EXPECT_THAT(text.err, HasSubstr("hint: check that the data was made with this tokenizer"));
  const ProgramResult as_json = with({"9", "--json"});
  EXPECT_EQ(as_json.exit_code, 2);
  EXPECT_EQ(json::parse(as_json.out).at("first_beyond_vocabulary"),
            (json{{"document", 0}, {"position", 2}, {"id", 11}}));
  EXPECT_THAT(json::parse(as_json.out).at("error").get<std::string>(), HasSubstr("document 0"));
  EXPECT_THAT(as_json.err, HasSubstr("error: document 0"));
}

TEST_F(DataFiles, EveryOtherOptionOfMegatronsScriptIsRefusedByName) {
  const std::string documentation = read_file(PRIMUS_SOURCE_DIR "/docs/data.md");
  const std::vector<std::string> words = {
      "tokenize", "-i", "a.jsonl", "-o", "x", "--tokenizer-type", "ByteTokenizer", "--overwrite"};
  for (const char* option : {"--split-sentences",
                             "--keep-newlines",
                             "--lang",
                             "--find-optimal-num-workers",
                             "--workers-to-check",
                             "--max-documents",
                             "--performance-dir",
                             "--dataset-impl",
                             "--padded-vocab-size",
                             "--pad-vocab-size",
                             "--vocab-extra-ids",
                             "--null-tokenizer-eod-id",
                             "--null-tokenizer-pad-id",
                             "--tokenizer-metadata",
                             "--tokenizer-special-tokens",
                             "--tiktoken-special-tokens",
                             "--tokenizer-sentencepiece-legacy",
                             "--tokenizer-sentencepiece-ignore-extra-whitespaces",
                             "--tokenizer-hf-use-fast",
                             "--tokenizer-hf-no-use-fast",
                             "--tokenizer-hf-include-special-tokens",
                             "--use-gigatoken",
                             "--trust-remote-code",
                             "--chat-template"}) {
    std::vector<std::string> with = words;
    with.insert(with.end(), {option, "1"});
    const ProgramResult refused = run(with);
    EXPECT_EQ(refused.exit_code, 2);
    EXPECT_THAT(refused.err, HasSubstr("has no option '" + std::string(option) + "': "));
    EXPECT_THAT(refused.err, HasSubstr("hint: "));
    EXPECT_THAT(refused.err, testing::Not(HasSubstr("did you mean")));
    EXPECT_THAT(documentation, HasSubstr("`" + std::string(option) + "`"));
  }
  const auto result_of = [this, words](const char* option, const char* value) {
    std::vector<std::string> with = words;
    with.insert(with.end(), {option, value});
    return run(with);
  };
  EXPECT_EQ(result_of("--tiktoken-pattern", "v2").exit_code, 0);
  EXPECT_EQ(result_of("--tiktoken-num-special-tokens", "1000").exit_code, 0);
  EXPECT_THAT(result_of("--tiktoken-pattern", "v1").err, HasSubstr("--tiktoken-pattern v1 is not supported"));
  EXPECT_EQ(result_of("--vocab-size", "257").exit_code, 0);
  EXPECT_THAT(result_of("--vocab-size", "300").err, HasSubstr("the tokenizer has 257 ids"));
  EXPECT_THAT(result_of("--workers", "-3").err,
              HasSubstr("--workers cannot be -3\n  hint: set it to 0 or more"));
  EXPECT_THAT(result_of("--workers", "5000").err,
              HasSubstr("the number of workers is 5000\n  hint: ask for at most 4096"));
  EXPECT_THAT(result_of("--tokenizer", "tokenizer.json").err, testing::Not(HasSubstr("has no option")));
  EXPECT_THAT(result_of("--output", "x").err,
              HasSubstr("has no option '--output'\n  hint: did you mean '--output-prefix'?"));
  EXPECT_THAT(result_of("--tiktoken", "v2").err,
              HasSubstr("did you mean '--tiktoken-pattern' or '--tiktoken-num-special-tokens'?"));
  EXPECT_THAT(result_of("--partitions", "0").err, HasSubstr("--partitions cannot be 0\n  hint: "));
  EXPECT_THAT(result_of("--log-interval", "0").err, HasSubstr("--log-interval cannot be 0\n  hint: "));
}

TEST_F(DataFiles, ProgressByDocuments) {
  std::string text;
  for (int i = 0; i < 50'000; ++i) text += "{\"text\": \"about as long as twenty bytes\"}\n";
  write_file(folder_.path() / "many.jsonl", text);  // 8 blocks of input
  const auto reports = [this](const char* interval) {
    const ProgramResult result = run({"tokenize", "-i", "many.jsonl", "-o", "m", "--tokenizer-type",
                                      "ByteTokenizer", "--log-interval", interval, "--overwrite"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return std::count(result.err.begin(), result.err.end(), '\n');
  };
  EXPECT_GE(reports("1000"), 5);
  EXPECT_THAT(reports("25000"), testing::AllOf(testing::Ge(2), testing::Le(4)));
  EXPECT_EQ(reports("100000"), 1);
}

TEST_F(DataFiles, MistakesAreErrorsWithTheNextStep) {
  ASSERT_EQ(run({"tokenize", "-i", "a.jsonl", "-o", "a", "--tokenizer-type", "ByteTokenizer"}).exit_code, 0);
  write_file(folder_.path() / "a.csv", "a,b\n");
  write_file(folder_.path() / "a.tar.gz", "x");
  const auto error_of = [this](const std::vector<std::string>& words) {
    const ProgramResult result = run(words);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr("hint: "));
    return result.err;
  };
  const std::vector<std::string> order = {"inspect",   "--order", "--seq-length", "4",
                                          "--samples", "1",       "--blend"};
  const auto blend = [&](std::initializer_list<const char*> list) {
    std::vector<std::string> words = order;
    words.insert(words.end(), list.begin(), list.end());
    return error_of(words);
  };
  const char* a = "a_text_document";
  EXPECT_THAT(blend({"0.7", a, "0.3"}), HasSubstr("the path after the weight 0.3 is missing"));
  EXPECT_THAT(blend({"0.7", "0.3", a}), HasSubstr("the path after the weight 0.7 is missing"));
  EXPECT_THAT(blend({a, "0.7", a, "0.3"}), HasSubstr("the weight of 'a_text_document' is missing"));
  EXPECT_THAT(blend({"0.7", a, a}), HasSubstr("the weight of 'a_text_document' is missing"));
  EXPECT_THAT(error_of({"inspect", a, "--order", "--samples", "1"}), HasSubstr("--order needs --seq-length"));
  EXPECT_THAT(error_of({"inspect", a, "--order", "--seq-length", "4"}), HasSubstr("--order needs --samples"));
  EXPECT_THAT(error_of({"inspect", a, "--order", "--seq-length", "0", "--samples", "1"}),
              HasSubstr("--seq-length cannot be 0"));
  EXPECT_THAT(error_of({"inspect", a, "--seed", "1"}), HasSubstr("--seed needs --order"));
  EXPECT_THAT(error_of({"inspect", a, "--split", "1,1,1"}), HasSubstr("--split needs --order"));
  EXPECT_THAT(error_of({"inspect", a, "--samples", "1"}), HasSubstr("--samples needs --order"));
  EXPECT_THAT(error_of({"inspect", a, "--seq-length", "4"}), HasSubstr("--seq-length needs --order"));
  EXPECT_THAT(error_of({"inspect", a, "--show", "1"}), HasSubstr("--show needs a tokenizer"));
  EXPECT_THAT(error_of({"inspect", a, "--order", "--seq-length", "4", "--samples", "1", "--quick"}),
              HasSubstr("--quick and --order exclude each other"));
  const std::vector<std::string> bytes = {"--tokenizer-type", "ByteTokenizer", "-t", "nowhere"};
  for (std::vector<std::string> words :
       std::initializer_list<std::vector<std::string>>{{"tokenize", "-i", "a.jsonl", "-o", "x"},
                                                       {"encode"},
                                                       {"inspect", a},
                                                       {"conversations", "a.jsonl"}}) {
    words.insert(words.end(), bytes.begin(), bytes.end());
    EXPECT_THAT(error_of(words), HasSubstr("ByteTokenizer reads no file, but 'nowhere' is given"));
  }
  EXPECT_THAT(error_of({"split", a, "-o", "s", "--parts", "100"}),
              HasSubstr("documents are not cut, and 'a_text_document' has 10\n  hint: choose 1 to 10 parts"));
  EXPECT_THAT(error_of({"split", a, "-o", "s"}), HasSubstr("needs --split or --parts"));
  EXPECT_THAT(error_of({"inspect", "a_text_document.bin"}),
              HasSubstr("leave out the extension: a_text_document"));
  EXPECT_THAT(error_of({"train-tokenizer", "-i", "a.jsonl", "-o", "a.csv"}), HasSubstr("File exists"));
  EXPECT_THAT(error_of({"tokenize", "-i", "a.jsonl", "-o", "a.csv/x", "--tokenizer-type", "ByteTokenizer"}),
              HasSubstr("File exists"));
  EXPECT_THAT(error_of({"tokenize", "-i", "a.tar.gz", "-o", "x", "--tokenizer-type", "ByteTokenizer"}),
              HasSubstr("'a.tar.gz' has an unsupported compression"));
  const ProgramResult csv = run({"tokenize", "-i", "a.csv", "-o", "x", "--tokenizer-type", "ByteTokenizer"});
  EXPECT_EQ(csv.exit_code, 0);
  EXPECT_THAT(csv.err, HasSubstr("note: 'a.csv' is read as plain text"));
  write_file(folder_.path() / "b.csv", "x");
  write_file(folder_.path() / "c.csv", "x");
  const ProgramResult more =
      run({"tokenize", "-i", "a.csv", "b.csv", "c.csv", "-o", "y", "--tokenizer-type", "ByteTokenizer"});
  EXPECT_THAT(more.err, HasSubstr("note: 'a.csv' and 2 more are read as plain text"));
}

TEST_F(DataFiles, DataWithoutTokensIsReported) {
  write_file(folder_.path() / "empty.txt", "");
  write_file(folder_.path() / "latin1.txt", "\xE9t\xE9\n\xE0\n");
  const auto note_of = [this](const std::vector<std::string>& files) {
    std::vector<std::string> words = {"tokenize",      "-o",         "e",           "--tokenizer-type",
                                      "ByteTokenizer", "--skip-bad", "--overwrite", "-i"};
    words.insert(words.end(), files.begin(), files.end());
    return run(words).err;
  };
  EXPECT_THAT(note_of({"empty.txt"}),
              HasSubstr("warning: the input has no text, so the output has no training data"));
  EXPECT_THAT(note_of({"latin1.txt"}), HasSubstr("error: the input has no line that could be read, so"));
  write_file(folder_.path() / "broken.jsonl", "{\n{\n");
  const ProgramResult broken =
      run({"tokenize", "-i", "broken.jsonl", "-o", "n", "--tokenizer-type", "ByteTokenizer", "--skip-bad"});
  EXPECT_EQ(broken.exit_code, 2);
  EXPECT_THAT(broken.err, HasSubstr("warning: 2 broken lines were left out, the first: broken.jsonl:1:"));
  EXPECT_THAT(note_of({"a.jsonl"}), testing::Not(HasSubstr("no training data")));
}

TEST_F(DataFiles, TrainsATokenizerAndReadsATokenizerOfTwoFiles) {
  const ProgramResult learnt =
      run({"train-tokenizer", "-i", "a.jsonl", "-o", "t", "--vocab-size", "260", "--gpt2", "--json"});
  ASSERT_EQ(learnt.exit_code, 0) << learnt.err;
  EXPECT_EQ(learnt.err, "");
  const json said = json::parse(learnt.out);
  EXPECT_EQ(said.at("file"), "t/tokenizer.json");
  EXPECT_EQ(said.at("vocab_size"), 260);
  EXPECT_EQ(said.at("bytes"), content("a.jsonl").size());
  const json model = json::parse(content("t/tokenizer.json")).at("model");
  std::string merges = "#version: 0.2\n";
  for (const json& merge : model.at("merges"))
    merges += merge.at(0).get<std::string>() + " " + merge.at(1).get<std::string>() + "\n";
  write_file(folder_.path() / "vocab.json", model.at("vocab").dump());
  write_file(folder_.path() / "merges.txt", merges);
  ASSERT_EQ(run({"tokenize", "-i", "a.jsonl", "-o", "one", "-t", "t", "--append-eod"}).exit_code, 0);
  const ProgramResult two =
      run({"tokenize", "-i", "a.jsonl", "-o", "two", "--tokenizer-type", "GPT2BPETokenizer", "--vocab-file",
           "vocab.json", "--merge-file", "merges.txt", "--append-eod"});
  ASSERT_EQ(two.exit_code, 0) << two.err;
  EXPECT_EQ(content("two_text_document.bin"), content("one_text_document.bin"));
  EXPECT_EQ(content("two_text_document.idx"), content("one_text_document.idx"));
  const ProgramResult half = run({"tokenize", "-i", "a.jsonl", "-o", "x", "--vocab-file", "vocab.json"});
  EXPECT_EQ(half.exit_code, 2);
  EXPECT_THAT(half.err, HasSubstr("a vocabulary file is given without a merge file"));
}

TEST_F(DataFiles, TrainsATokenizerWithSpecialTokens) {
  ASSERT_EQ(run({"train-tokenizer", "-i", "a.jsonl", "-o", "s", "--vocab-size", "264", "--special",
                 "<|im_start|>", "--special", "<|im_end|>"})
                .exit_code,
            0);
  const json added = json::parse(content("s/tokenizer.json")).at("added_tokens");
  ASSERT_EQ(added.size(), 3U);
  EXPECT_EQ(added[0].at("content"), "<|endoftext|>");
  EXPECT_EQ(added[2].at("content"), "<|im_end|>");
  EXPECT_EQ(added[2].at("special"), true);
  // A conversation in chatml needs both special tokens.
  write_file(folder_.path() / "chat.jsonl", R"({"question": "q", "answer": "a"})");
  const ProgramResult shown = run({"conversations", "chat.jsonl", "--tokenizer", "s", "-f", "chatml"});
  EXPECT_EQ(shown.exit_code, 0) << shown.err;
  write_file(folder_.path() / "empty.jsonl", "");
  const ProgramResult empty = run({"conversations", "empty.jsonl", "--tokenizer", "s", "-f", "chatml"});
  EXPECT_EQ(empty.exit_code, 2);
  EXPECT_THAT(empty.err, HasSubstr("'empty.jsonl' has no conversation"));
  const ProgramResult twice =
      run({"train-tokenizer", "-i", "a.jsonl", "-o", "u", "--special", "<|endoftext|>"});
  EXPECT_EQ(twice.exit_code, 2);
  EXPECT_THAT(twice.err, HasSubstr("it is another token already"));
  EXPECT_THAT(run({"train-tokenizer", "-i", "a.jsonl", "-o", "u", "--special", "x", "--special", "x"}).err,
              HasSubstr("--special 'x' is given twice"));
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "u"));  // a failed command leaves no empty folder
}

TEST_F(DataFiles, ConversationsShowsPairsLabelsAndPromptsAsTrainingReadsThem) {
  const auto show = [&](const std::string& text, std::vector<std::string> more = {}) {
    write_file(folder_.path() / "p.jsonl", text);
    more.insert(more.begin(), {"conversations", "p.jsonl", "--tokenizer-type", "ByteTokenizer"});
    return run(more);
  };
  const std::string pair = R"({"prompt": "Greet", "chosen": "Hello", "rejected": "Go"})";
  const ProgramResult pairs = show(pair, {"-f", "squad"});
  EXPECT_EQ(pairs.exit_code, 0) << pairs.err;
  EXPECT_THAT(pairs.out, AllOf(HasSubstr("shown as 'train dpo' reads the file"), HasSubstr("1, chosen: "),
                               HasSubstr("1, rejected: "), HasSubstr("\u27E6 Hello"), HasSubstr("1 pair; ")));
  // Pairs of equal answers teach nothing, and do not count.
  const ProgramResult equal =
      show(pair + "\n" + R"({"prompt": "Greet", "chosen": "Go", "rejected": "Go"})", {"-f", "squad"});
  EXPECT_EQ(equal.out.substr(equal.out.rfind("1 pair;")),
            pairs.out.substr(pairs.out.rfind("1 pair;")) + "left out: 1 pair with two equal answers\n");
  const json shown = json::parse(show(pair, {"-f", "squad", "--json"}).out);
  EXPECT_EQ(shown.at("pairs"), 1);
  EXPECT_EQ(shown.at("shown")[0].at("rejected").at("parts").back().at("learned"), true);
  const ProgramResult labelled = show(R"({"prompt": "Greet", "completion": "Go", "label": false})");
  EXPECT_THAT(labelled.out,
              AllOf(HasSubstr("'train kto'"), HasSubstr("1, bad: "), HasSubstr("0 good, 1 bad")));
  const ProgramResult prompts = show(R"({"prompt": "Count to 3", "answer": "6"})", {"--stage", "grpo"});
  EXPECT_EQ(prompts.exit_code, 0) << prompts.err;
  EXPECT_THAT(prompts.out,
              AllOf(HasSubstr("'train grpo'"), HasSubstr("Count to 3\n"), HasSubstr("1 prompt,")));
  const ProgramResult cut = show(pair, {"--seq-length", "8"});
  EXPECT_EQ(cut.exit_code, 2);
  EXPECT_THAT(cut.err, HasSubstr("--seq-length cuts only conversations"));
}

TEST_F(DataFiles, ConversationsWarnsOfEmptyQuestions) {
  write_file(folder_.path() / "p.jsonl", R"({"instruction": "Add", "input": "1 2", "output": "3"})"
                                         "\n"
                                         R"({"instruction": "", "output": "a"})"
                                         "\n");
  const ProgramResult shown = run({"conversations", "p.jsonl", "--tokenizer-type", "ByteTokenizer"});
  EXPECT_EQ(shown.exit_code, 0) << shown.err;
  EXPECT_THAT(shown.err, HasSubstr("p.jsonl: 1 of 2 conversations have an empty question, after which an "
                                   "answer is learned (the first: p.jsonl:2)"));
}

TEST_F(DataFiles, ConversationsNamesFilesThatAreNotUtf8) {
  write_file(folder_.path() / "packed.jsonl", "\x1F\x8B\b");
  EXPECT_THAT(run({"conversations", "packed.jsonl", "--tokenizer-type", "ByteTokenizer"}).err,
              HasSubstr("gzip-compressed, but its name does not end in .gz"));
  write_file(folder_.path() / "wide.jsonl", std::string("\xFF\xFE{\0\n\0", 6));
  EXPECT_THAT(run({"conversations", "wide.jsonl", "--tokenizer-type", "ByteTokenizer"}).err,
              HasSubstr("the file is UTF-16 text"));
}

// A hint names an option that the command itself has.
TEST_F(DataFiles, AMissingKeyIsReportedWithTheOptionThatNamesIt) {
  write_file(folder_.path() / "other.jsonl", "{\"content\": \"a\"}\n");
  const ProgramResult learned = run({"train-tokenizer", "-i", "other.jsonl", "-o", "t"});
  EXPECT_EQ(learned.exit_code, 2);
  EXPECT_THAT(learned.err, AllOf(HasSubstr("has no key 'text'"), HasSubstr("--json-key KEY"),
                                 Not(HasSubstr("--json-keys"))));
  EXPECT_THAT(run({"tokenize", "-i", "other.jsonl", "-o", "t", "--tokenizer-type", "ByteTokenizer"}).err,
              HasSubstr("--json-keys KEY"));
  write_file(folder_.path() / "chats.jsonl", R"({"messages": []})"
                                             "\n");
  EXPECT_THAT(run({"train-tokenizer", "-i", "chats.jsonl", "-o", "t"}).err,
              HasSubstr("jq -r '.messages[].content' FILE > texts.txt"));
}

TEST_F(DataFiles, SplitAndMerge) {
  write_file(folder_.path() / "empty.jsonl", "");
  EXPECT_THAT(run({"tokenize", "-i", "empty.jsonl", "-o", "e", "--tokenizer-type", "ByteTokenizer"}).err,
              HasSubstr("has no document"));
  ASSERT_EQ(run({"tokenize", "-i", "a.jsonl", "-o", "a", "--tokenizer-type", "ByteTokenizer"}).exit_code, 0);
  ASSERT_EQ(run({"split", "a_text_document", "-o", "parts/p", "--parts", "3"}).exit_code, 0);
  ASSERT_EQ(run({"merge", "parts", "-o", "again"}).exit_code, 0);
  const ProgramResult none = run({"split", "a_text_document", "-o", "parts/p", "--parts", "0"});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.err, HasSubstr("--parts is 0"));
  EXPECT_EQ(content("again.bin"), content("a_text_document.bin"));
  EXPECT_EQ(content("again.idx"), content("a_text_document.idx"));
  const ProgramResult shares = run({"split", "a_text_document", "-o", "s", "--split", "80,20"});
  EXPECT_THAT(shares.out, HasSubstr("s_train.bin, .idx: 8 documents"));
  EXPECT_THAT(shares.out, HasSubstr("s_valid.bin, .idx: 2 documents"));
  EXPECT_EQ(run({"split", "a_text_document", "-o", "s"}).exit_code, 2);
  // A part that would have no documents is an error. It is also an error if an earlier split made files of a
  // part that this split does not make.
  const ProgramResult nothing = run({"split", "a_text_document", "-o", "t", "--split", "1000000,1,0"});
  EXPECT_EQ(nothing.exit_code, 2);
  EXPECT_NE(nothing.err.find("leaves none for valid"), std::string::npos) << nothing.err;
  const ProgramResult stale = run({"split", "a_text_document", "-o", "s", "--split", "100,0.0,0"});
  EXPECT_EQ(stale.exit_code, 2);
  EXPECT_NE(stale.err.find("'s_valid' already exists from another split"), std::string::npos) << stale.err;
  EXPECT_EQ(run({"merge", "-o", "s"}).exit_code, 2);
}

TEST_F(DataFiles, ABrokenLineLeavesNothing) {
  write_file(folder_.path() / "bad.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\n");
  const ProgramResult result = run(
      {"tokenize", "--input", "bad.jsonl", "--output-prefix", "bad", "--tokenizer-type", "ByteTokenizer"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("bad.jsonl:2:"));
  EXPECT_EQ(Env::posix().list(folder_.path()), (std::vector<std::string>{"a.jsonl", "b.jsonl", "bad.jsonl"}));
  EXPECT_EQ(run({"tokenize", "--input", "bad.jsonl", "--output-prefix", "bad", "--tokenizer-type",
                 "ByteTokenizer", "--skip-bad"})
                .exit_code,
            0);
}

class FullDisk : public DataFiles {
 protected:
  FullDisk() {
    write_file(input_, json{{"text", std::string(40'000, 'x')}}.dump() + "\n");  // 80 KB of tokens
    EXPECT_EQ(run({"tokenize", "-i", "long.jsonl", "-o", "d", "--tokenizer-type", "ByteTokenizer"}).exit_code,
              0);
  }
  // Expects that each command fails with `reason`, because it writes more than `folder` has room for.
  void expect_no_space(const Path& folder, const std::string& reason,
                       const test::ProgramOptions& options) const {
    const std::string set = folder_.path() / "d_text_document", out = folder / "out";
    for (const std::vector<std::string>& words : std::initializer_list<std::vector<std::string>>{
             {"data", "tokenize", "-i", input_, "-o", out, "--tokenizer-type", "ByteTokenizer"},
             {"data", "merge", set, set, "-o", out},
             {"data", "split", set, "-o", out, "--parts", "1"}}) {
      const auto before = Env::posix().list(folder);
      const ProgramResult result = run_program(words, options);
      EXPECT_EQ(result.exit_code, 2) << result.err;
      EXPECT_THAT(result.err, HasSubstr("cannot write"));
      EXPECT_THAT(result.err, HasSubstr(reason));
      EXPECT_THAT(result.err, HasSubstr("hint: "));
      EXPECT_EQ(Env::posix().list(folder), before) << "files left by " << words[1];
    }
  }
  const Path input_ = folder_.path() / "long.jsonl";
};

TEST_F(FullDisk, LeavesNothing) {
  const bool mounted = test::on_small_disk(60'000, [this](const Path& folder) {
    expect_no_space(folder, "No space left on device", {});
    EXPECT_EQ(
        run({"tokenize", "-i", "a.jsonl", "-o", folder / "a", "--tokenizer-type", "ByteTokenizer"}).exit_code,
        0);
  });
  if (!mounted) GTEST_SKIP() << "this system does not permit mounting a small disk";
}

TEST_F(FullDisk, AFileSizeLimitLeavesNothing) {
  expect_no_space(folder_.path(), "File too large", {.file_size_limit = 60'000});
}

// Without --split, the command prints the order that a training without the key `split` uses, and notes the
// split.
TEST_F(DataFiles, TheOrderIsTheOneOfTraining) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += "{\"text\": \"document " + std::to_string(i) + "\"}\n";
  write_file(folder_.path() / "many.jsonl", text);
  ASSERT_EQ(run({"tokenize", "-i", "many.jsonl", "-o", "m", "--tokenizer-type", "ByteTokenizer"}).exit_code,
            0);
  const auto order = [this](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"inspect", "m_text_document", "--order", "--seq-length",
                                      "8",       "--samples",       "20,1"};
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  };
  const ProgramResult usual = order({});
  ASSERT_EQ(usual.exit_code, 0) << usual.err;
  EXPECT_THAT(usual.err, HasSubstr("note: --split is not given: 99,1,0, as in training"));
  EXPECT_EQ(json::parse(usual.out).at("split"), "99,1,0");
  EXPECT_EQ(usual.out, order({"--split", "99,1,0"}).out);
  EXPECT_NE(json::parse(usual.out).at("splits"),
            json::parse(order({"--split", "969,30,1"}).out).at("splits"));
}

TEST_F(DataFiles, ImpossibleOrdersAreErrors) {
  ASSERT_EQ(run({"tokenize", "-i", "a.jsonl", "-o", "a", "--tokenizer-type", "ByteTokenizer"}).exit_code, 0);
  const auto order = [this](const std::string& split, const std::string& length, const std::string& samples) {
    return run({"inspect", "a_text_document", "--order", "--seq-length", length, "--split", split,
                "--samples", samples, "--json"});
  };
  EXPECT_EQ(order("90,10,0", "4", "5,1").exit_code, 0);
  const ProgramResult empty = order("100,0,0", "4", "5,1");
  EXPECT_EQ(empty.exit_code, 2);
  EXPECT_THAT(empty.err, HasSubstr("the split '100,0,0' has no valid data"));
  EXPECT_EQ(order("90,10", "4", "a").exit_code, 2);
  EXPECT_EQ(order("90,10", "100000", "5").exit_code, 2);
}

}  // namespace
}  // namespace primus
