// The data commands, as a user calls them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/small_disk.h"
#include "base/temporary_folder.h"
#include "cli/program.h"

namespace primus {
namespace {

using nlohmann::json;
using test::ProgramResult;
using test::run_program;
using test::TemporaryFolder;
using ::testing::HasSubstr;

const std::string kGolden = PRIMUS_SOURCE_DIR "/tests/golden/";
const std::string kLlama3 = kGolden + "tokenizers/llama3.tokenizer.json";

// One line per item, each an object with one key.
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
  items.erase(items.begin() + 60, items.end());  // as much as a pipe's buffer takes
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
  EXPECT_THAT(latin.err, HasSubstr("<standard input>:2:2: error: the byte 0xE9 here is no UTF-8"));
  EXPECT_THAT(run({"data", "encode", "--jsonl"}, "{\"text\": \"\xE9\"}\n").err,
              HasSubstr("<standard input>:1:11"));
  const ProgramResult no_text = run({"data", "encode", "--jsonl"}, "{\"text\": \"a\"}\n{\"t\": 1}\n");
  EXPECT_EQ(no_text.exit_code, 2);
  EXPECT_THAT(no_text.err, HasSubstr("<standard input>:2: error: the line has no key 'text'; it has 't'"));
  EXPECT_THAT(run({"data", "encode", "--jsonl"}, "{\"text\": 5}\n").err,
              HasSubstr("<standard input>:1:10: error: the value of 'text' is a number, not a string"));
  EXPECT_THAT(run({"data", "decode", "--jsonl"}, "{\"ids\": [\"5\"]}\n").err,
              HasSubstr("an element of 'ids' is a string, not a number"));
  EXPECT_EQ(run({"data", "encode", "--jsonl"}, "\xEF\xBB\xBF{\"text\": \"a\"}\n").out, "{\"ids\":[97]}\n");
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
  // With another tokenizer the ids make no sense, which the exit code says.
  const ProgramResult wrong = run({"inspect", "out/x_text_document", "--tokenizer-type", "ByteTokenizer"});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.out, HasSubstr("BEYOND the vocabulary of 257"));
}

TEST_F(DataFiles, LearnsATokenizerAndReadsOneInTwoFiles) {
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
  EXPECT_THAT(half.err, HasSubstr("a vocabulary file without a merge file"));
}

TEST_F(DataFiles, SplitAndMerge) {
  write_file(folder_.path() / "empty.jsonl", "");
  EXPECT_THAT(run({"tokenize", "-i", "empty.jsonl", "-o", "e", "--tokenizer-type", "ByteTokenizer"}).err,
              HasSubstr("has no document"));
  ASSERT_EQ(run({"tokenize", "-i", "a.jsonl", "-o", "a", "--tokenizer-type", "ByteTokenizer"}).exit_code, 0);
  ASSERT_EQ(run({"split", "a_text_document", "-o", "parts/p", "--parts", "3"}).exit_code, 0);
  ASSERT_EQ(run({"merge", "parts", "-o", "again"}).exit_code, 0);
  EXPECT_EQ(content("again.bin"), content("a_text_document.bin"));
  EXPECT_EQ(content("again.idx"), content("a_text_document.idx"));
  const ProgramResult shares = run({"split", "a_text_document", "-o", "s", "--split", "80,20"});
  EXPECT_THAT(shares.out, HasSubstr("s_train.bin, .idx: 8 documents"));
  EXPECT_THAT(shares.out, HasSubstr("s_valid.bin, .idx: 2 documents"));
  EXPECT_EQ(run({"split", "a_text_document", "-o", "s"}).exit_code, 2);
  // A share that gets nothing is an error, and so is what an earlier split left in its place.
  const ProgramResult nothing = run({"split", "a_text_document", "-o", "t", "--split", "1000000,1,0"});
  EXPECT_EQ(nothing.exit_code, 2);
  EXPECT_NE(nothing.err.find("leaves none for valid"), std::string::npos) << nothing.err;
  const ProgramResult stale = run({"split", "a_text_document", "-o", "s", "--split", "100,0.0,0"});
  EXPECT_EQ(stale.exit_code, 2);
  EXPECT_NE(stale.err.find("'s_valid' is there from another split"), std::string::npos) << stale.err;
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
  // Each command writes more than fits into `folder`.
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
      EXPECT_EQ(Env::posix().list(folder), before) << "left behind by " << words[1];
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
  if (!mounted) GTEST_SKIP() << "this system lets nobody mount a small disk";
}

TEST_F(FullDisk, SoDoesALimitOfFileSizes) {
  expect_no_space(folder_.path(), "File too large", {.file_size_limit = 60'000});
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
  EXPECT_THAT(empty.err, HasSubstr("holds no tokens"));
  EXPECT_EQ(order("90,10", "4", "a").exit_code, 2);
  EXPECT_EQ(order("90,10", "100000", "5").exit_code, 2);
}

}  // namespace
}  // namespace primus
