// Tests tokenize_corpus: its output, the order of documents, and its files after an interruption.
#include "lm/data/tokenize.h"

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <new>
#include <set>
#include <utility>

#include "base/address_space.h"
#include "base/error.h"
#include "base/files/file_lock.h"
#include "base/files/partial_folder.h"
#include "data_test_util.h"
#include "gzipped.h"
#include "lm/data/corpus.h"
#include "lm/data/indexed_dataset.h"
#include "lm/tokenizer/decoding.h"
#include "lm/tokenizer/simple.h"

namespace primus::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Tokens = std::vector<int32_t>;

Tokens tokens_of(const std::string& text, bool eod = true) {
  Tokens tokens;
  for (const char byte : text) tokens.push_back(static_cast<unsigned char>(byte));
  if (eod) tokens.push_back(256);
  return tokens;
}

// Returns all documents of a data set, each as a list of its sequences.
std::vector<std::vector<Tokens>> documents_of(const Path& prefix) {
  const auto data = IndexedDataset::open(prefix);
  std::vector<std::vector<Tokens>> documents(static_cast<size_t>(data->documents()));
  for (int64_t d = 0; d < data->documents(); ++d) {
    for (int64_t i = data->document_start(d); i < data->document_start(d + 1); ++i) {
      Tokens tokens(static_cast<size_t>(data->length(i)));
      data->read(i, 0, tokens);
      documents[static_cast<size_t>(d)].push_back(tokens);
    }
  }
  return documents;
}

class Tokenize : public testing::Test {
 protected:
  Tokenize() {
    options_.output_prefix = folder_ / "out";
    options_.append_eod = true;
    options_.workers = 2;
  }
  // Replaces the output of an earlier call in the test.
  TokenizeResult run() {
    TokenizeOptions options = options_;
    options.existing = Existing::kReplace;
    return tokenize_corpus(options, *tokenizer_, progress_);
  }
  std::string error() {
    return error_of([this] { run(); });
  }
  Path output(const std::string& key = "text") const { return tokenized_prefix(options_.output_prefix, key); }
  std::string bytes() const {
    return read_all(output().string() + ".bin") + read_all(output().string() + ".idx");
  }
  // Returns every file in the folder that is not an input.
  std::vector<std::string> left_over() const {
    std::vector<std::string> names;
    for (const std::string& name : Env::posix().list(folder_.path())) {
      if (name.starts_with("out")) names.push_back(name);
    }
    return names;
  }
  // Tokenizes until the first text has been read, with one worker.
  void stop_early();
  // Returns JSON lines of several blocks.
  std::string many_lines() const {
    std::string lines;
    for (int i = 0; i < 20'000; ++i)
      lines += R"({"text": "document )" + std::to_string(i) + std::string(static_cast<size_t>(i % 50), 'x') +
               "\"}\n";
    return lines;
  }

  TemporaryFolder folder_;
  TokenizeOptions options_;
  TokenizeProgressFn progress_;
  std::unique_ptr<const Tokenizer> tokenizer_ = make_byte_tokenizer();
};

TEST_F(Tokenize, EachKeyBecomesADataSet) {
  options_.inputs = {folder_.write("a.jsonl",
                                   "{\"title\": \"A\", \"text\": \"one\", \"n\": 3}\n"
                                   "\n"
                                   "{\"text\": [\"b\", \"\", \"c\"], \"title\": \"\"}\n")};
  options_.json_keys = {"title", "text"};
  const TokenizeResult result = run();
  EXPECT_EQ(result.documents, 2u);
  EXPECT_EQ(documents_of(output("title")), (std::vector<std::vector<Tokens>>{{tokens_of("A")}, {}}));
  EXPECT_EQ(documents_of(output("text")),
            (std::vector<std::vector<Tokens>>{{tokens_of("one")}, {tokens_of("b", false), tokens_of("c")}}));
  EXPECT_EQ(left_over().size(), 6u);
}

TEST_F(Tokenize, CompressedFilesGiveTheSameResult) {
  const std::string lines = many_lines();
  options_.inputs = {folder_.write("a.jsonl", lines)};
  run();
  const std::string expected = bytes();

  options_.inputs = {folder_.write("b.jsonl.gz", gzipped(lines))};
  run();
  EXPECT_TRUE(bytes() == expected);

  std::string packed(ZSTD_compressBound(lines.size()), '\0');
  packed.resize(ZSTD_compress(packed.data(), packed.size(), lines.data(), lines.size(), 3));
  options_.inputs = {folder_.write("c.jsonl.zst", packed)};
  run();
  EXPECT_TRUE(bytes() == expected);

  options_.inputs = {folder_.write("d.jsonl.zst", packed.substr(0, packed.size() / 2))};
  EXPECT_THAT(error(), AllOf(HasSubstr("d.jsonl.zst: error: cannot unpack it: it ends in the middle"),
                             HasSubstr("'zstd -t'")));
  options_.inputs = {folder_.write("e.jsonl.gz", lines)};
  EXPECT_THAT(error(), HasSubstr("e.jsonl.gz: error: the file is text, although its name ends in .gz"));
}

TEST_F(Tokenize, TheNumberOfWorkersDoesNotMatter) {
  options_.inputs = {folder_.write("a.jsonl", many_lines()), folder_.write("b.txt", std::string(3000, 'b'))};
  options_.workers = 1;
  run();
  const std::string one = bytes();
  options_.workers = 5;
  run();
  EXPECT_TRUE(bytes() == one);
}

TEST_F(Tokenize, ProgressCountsTheBytesOfAllFiles) {
  options_.inputs = {folder_.write("a.jsonl", many_lines()), folder_.write("b.txt", std::string(3000, 'b')),
                     folder_.write("c.jsonl", many_lines())};
  options_.progress_seconds = 0;
  // Maps each file to the total size of the files read before it.
  std::map<std::string, uint64_t> before;
  uint64_t total = 0, last = 0;
  for (const std::string& input : options_.inputs) {
    before[input] = total;
    total += std::filesystem::file_size(input);
  }
  std::set<std::string> inputs;
  progress_ = [&](const TokenizeProgress& p) {
    const std::string input(p.input);
    EXPECT_EQ(p.bytes_total, total);
    EXPECT_GE(p.bytes_done, last);
    EXPECT_GT(p.bytes_done, before.at(input)) << input;
    EXPECT_LE(p.bytes_done, before.at(input) + std::filesystem::file_size(input)) << input;
    last = p.bytes_done;
    inputs.insert(input);
  };
  run();
  EXPECT_EQ(last, total);
  EXPECT_EQ(inputs.size(), 3u);
}

// Text without line ends or blanks is cut between two characters, at any alignment.
TEST(PartEnd, CutsNoCharacter) {
  for (const std::string character : {"\u00e9", "\u20ac", "\U0001F600"}) {
    for (size_t shift = 0; shift < 4; ++shift) {
      std::string text(shift, 'a');
      for (int i = 0; i < 100; ++i) text += character;
      const size_t end = part_end(text, 50);
      EXPECT_EQ((end - shift) % character.size(), 0u) << character << " after " << shift;
      EXPECT_GT(end, 100 - character.size());
      EXPECT_LE(end, 100u);
    }
  }
}

TEST_F(Tokenize, PartitionsDivideDocumentsAsMegatronDoes) {
  std::string lines;
  for (const char c : std::string("abcdefg")) lines += std::string("{\"text\": \"") + c + "\"}\n";
  options_.inputs = {folder_.write("a.jsonl", lines)};
  options_.partitions = 3;
  EXPECT_EQ(run().documents, 7u);
  std::string order;
  for (const auto& document : documents_of(output())) order += static_cast<char>(document[0][0]);
  EXPECT_EQ(order, "adgbecf");
  EXPECT_EQ(left_over().size(), 3u);  // .bin, .idx, and the record of the tokenizer
}

// A line that is too long is refused before all of it is read, with the place where it starts. A small
// compressed file may contain gigabytes.
TEST_F(Tokenize, LongLinesAreRefusedByPlace) {
  options_.max_line_bytes = 1 << 20;
  const std::string head = "{\"text\": \"x\"}\n",
                    small = "{\"text\": \"" + std::string(1 << 20, 'a') + "\"}\n";
  const std::string longest = "{\"text\": \"" + std::string((1 << 20) - 12, 'a') + "\"}";
  ASSERT_EQ(longest.size(), size_t{1} << 20);
  const auto zstd = [](const std::string& text) {
    std::string packed(ZSTD_compressBound(text.size()), '\0');
    packed.resize(ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 1));
    return packed;
  };
  const std::string huge = head + "{\"text\": \"" + std::string(8 << 20, 'a');
  const std::vector<std::pair<std::string, std::string>> files = {
      {"a.jsonl", head + small},
      {"b.jsonl", head + small + head},
      {"c.jsonl.gz", gzipped(huge)},
      {"d.jsonl.zst", zstd(huge)},
      {"e.jsonl", head + std::string(3 << 20, ' ')}};
  for (const auto& [name, content] : files) {
    options_.inputs = {folder_.write(name, content)};
    for (const bool skip_bad : {false, true}) {
      options_.skip_bad = skip_bad;
      EXPECT_THAT(error(), AllOf(HasSubstr(name + ":2: error: the line has more than 1.00 MiB"),
                                 HasSubstr("'--max-line-mib' reads longer ones")));
    }
    EXPECT_TRUE(left_over().empty());
  }
  // The long line is not the first line of its block, and an empty line precedes it.
  options_.max_line_bytes = 1 << 10;
  options_.inputs = {folder_.write("h.jsonl", head + "\n" + std::string(2 << 10, ' ') + "\n" + head)};
  EXPECT_THAT(error(), HasSubstr("h.jsonl:3: error: the line has more than 1.00 KiB"));
  options_.max_line_bytes = 1 << 20;
  options_.skip_bad = false;
  options_.inputs = {folder_.write("f.jsonl", longest + "\n" + head + longest)};
  EXPECT_EQ(run().documents, 3u);
  // Text without line ends is cut and accepted.
  options_.inputs = {folder_.write("g.txt", std::string(3 << 20, 'a'))};
  EXPECT_EQ(run().documents, 1u);
}

TEST_F(Tokenize, ALongLineStaysWithinTheMemoryLimit) {
  options_.max_line_bytes = 1 << 20;
  std::string block = "{\"text\": \"" + std::string(1 << 20, 'a');
  const std::string path = folder_ / "bomb.jsonl.gz";
  gzFile file = gzopen(path.c_str(), "wb1");
  for (int i = 0; i < 128; ++i) gzwrite(file, block.data(), static_cast<unsigned>(block.size()));
  gzclose(file);
  options_.inputs = {path};
  rusage before{}, after{};
  ::getrusage(RUSAGE_SELF, &before);
  EXPECT_THAT(error(), HasSubstr("bomb.jsonl.gz:1: error: the line has more than 1.00 MiB"));
  ::getrusage(RUSAGE_SELF, &after);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 32 << 10);  // KiB; the line has 128 MiB
}

// If the system cannot start all workers, fewer workers do the work. If none starts, this thread does the
// work.
TEST_F(Tokenize, UsesTheAllowedNumberOfThreads) {
  if (!kAddressSpaceCanBeLimited) GTEST_SKIP();
  options_.inputs = {folder_.write("a.jsonl", many_lines())};
  run();
  const std::string expected = bytes();
  options_.workers = 1000;
  EXPECT_EXIT(
      {
        limit_address_space(std::size_t{400} << 20);  // 1000 stacks need 8 GB
        try {
          run();
        } catch (const std::bad_alloc&) {
          std::exit(0);  // the stacks left too little memory: an error, not an abort
        }
        std::exit(bytes() == expected ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
  options_.workers = 100'000;
  EXPECT_THAT(error(), HasSubstr("ask for at most 4096"));
}

TEST_F(Tokenize, SkipsAndCountsBrokenLines) {
  options_.inputs = {
      folder_.write("a.jsonl", "{\"text\": \"x\"}\n{\"text\": }\nnothing\n{\"text\": \"y\"}\n")};
  EXPECT_THAT(error(), HasSubstr("a.jsonl:2:10: error"));
  EXPECT_TRUE(left_over().empty());
  options_.skip_bad = true;
  const TokenizeResult result = run();
  EXPECT_EQ(result.skipped_lines, 2u);
  EXPECT_THAT(result.first_skipped, HasSubstr("a.jsonl:2:10"));
  EXPECT_EQ(documents_of(output()).size(), 2u);
}

TEST_F(Tokenize, ReportsTheTypeOfAValueThatIsNoText) {
  const auto error_for = [this](const std::string& line) {
    options_.inputs = {folder_.write("a.jsonl", line + "\n")};
    return error();
  };
  const std::string skip = "'--skip-bad' skips such lines";
  EXPECT_THAT(error_for(R"({"text": 5})"),
              AllOf(HasSubstr("a.jsonl:1:10: error: the value of 'text' is a number, not a string"),
                    HasSubstr(skip)));
  EXPECT_THAT(error_for(R"({"text": null})"), HasSubstr("the value of 'text' is null, not a string"));
  EXPECT_THAT(error_for(R"({"text": {"a": 1}})"), HasSubstr("is an object, not a string"));
  EXPECT_THAT(error_for(R"({"text": ["a", true]})"),
              HasSubstr("a.jsonl:1:16: error: an element of 'text' is a truth value, not a string"));
  EXPECT_THAT(error_for(R"({"text": tru})"), HasSubstr("a.jsonl:1:10: error: broken JSON"));
  EXPECT_THAT(error_for(R"({"text": "a", "id": 1, "text": "b"})"),
              HasSubstr("error: the key 'text' occurs twice in one object"));
  EXPECT_THAT(error_for("[1]"), HasSubstr("a.jsonl:1:1: error: the line is a list, not an object"));
  EXPECT_THAT(error_for(R"({"body": "a", "id": 1})"),
              AllOf(HasSubstr("a.jsonl:1: error: the line has no key 'text'; it has 'body', 'id'"),
                    HasSubstr("'--json-keys KEY'"), HasSubstr(skip)));
  EXPECT_THAT(
      error_for(R"({"id": 1, "messages": [{"role": "user", "content": "a"}]})"),
      AllOf(HasSubstr("it has 'id', 'messages'"), HasSubstr("train on them with 'primus train posttrain'"),
            testing::Not(HasSubstr("--json-keys"))));
  EXPECT_THAT(error_for("{]"), AllOf(HasSubstr("broken JSON"), HasSubstr(skip)));
  EXPECT_THAT(error_for("{\"text\": \"\xE9\"}"), AllOf(HasSubstr("not valid UTF-8"), HasSubstr(skip)));
  // Each of these lines begins a JSON list of objects, or an object over several lines.
  for (const char* begin : {"[{\"text\": \"a\"},", "[", "{", "[{\"text\": \"a\"}]"}) {
    EXPECT_THAT(error_for(begin),
                AllOf(HasSubstr("a.jsonl:1:"), HasSubstr("'jq -c .[]'"), testing::Not(HasSubstr(skip))));
  }
  options_.skip_bad = true;
  options_.inputs = {folder_.write("a.jsonl", "{\"text\": 5}\n{\"text\": null}\n{}\n{\"text\": \"x\"}\n")};
  EXPECT_EQ(run().skipped_lines, 3u);
}

// Python's json module reads such lines, but tokenizers then fail.
TEST_F(Tokenize, HalfASurrogatePairIsRefused) {
  for (const char* half : {"\\ud800", "\\udc00", "\\ud800\\u0041", "\\ud800\\ud800"}) {
    options_.inputs = {folder_.write("a.jsonl", R"({"text": "x)" + std::string(half) + "y\"}\n")};
    EXPECT_THAT(error(), AllOf(HasSubstr("a.jsonl:1:12: error"), HasSubstr("half of a surrogate pair"),
                               HasSubstr("--skip-bad")));
  }
  const std::string bad = R"({"text": "x\ud83d"})"
                          "\n";
  const std::string good = R"({"text": "\ud83d\ude00", "other": "\ud800"})"
                           "\n";
  options_.inputs = {folder_.write("a.jsonl", bad + good)};
  options_.skip_bad = true;
  const TokenizeResult result = run();
  EXPECT_EQ(result.skipped_lines, 1u);
  EXPECT_THAT(result.first_skipped, HasSubstr("a.jsonl:1:12: "));
  EXPECT_EQ(documents_of(output()), (std::vector<std::vector<Tokens>>{{tokens_of("\xF0\x9F\x98\x80")}}));
}

TEST_F(Tokenize, AByteOrderMarkIsSkippedAtTheBeginningOfAFile) {
  const std::string mark = "\xEF\xBB\xBF", line = "{\"text\": \"x\"}\n";
  options_.inputs = {folder_.write("a.jsonl", mark + line), folder_.write("b.txt", mark + "b")};
  run();
  EXPECT_EQ(documents_of(output()), (std::vector<std::vector<Tokens>>{{tokens_of("x")}, {tokens_of("b")}}));
  options_.inputs = {folder_.write("c.jsonl", line + mark + line)};
  EXPECT_THAT(error(), HasSubstr("c.jsonl:2:1: error: broken JSON: unexpected byte-order mark here"));
}

TEST_F(Tokenize, EveryWorkerNamesTheFirstBrokenLine) {
  std::string lines = many_lines();
  lines.insert(lines.find('\n', lines.size() / 2) + 1, "{]\n");
  lines += "{]\n";
  options_.inputs = {folder_.write("a.jsonl", lines)};
  options_.workers = 4;
  const auto line =
      std::count(lines.begin(), lines.begin() + static_cast<ptrdiff_t>(lines.find("{]")), '\n') + 1;
  EXPECT_THAT(error(), HasSubstr("a.jsonl:" + std::to_string(line) + ":2: error"));
}

TEST_F(Tokenize, InvalidUtf8IsBroken) {
  options_.inputs = {folder_.write("a.jsonl", "{\"text\": \"x\"}\n{\"n\": \"\xE9\", \"text\": \"y\"}\n")};
  EXPECT_THAT(error(), HasSubstr("a.jsonl:2:8: error: not valid UTF-8 (byte 0xE9)"));
  EXPECT_TRUE(left_over().empty());
  options_.inputs.push_back(folder_.write("b.txt",
                                          "one\ntw\xFFo\nthr\xC3\xA9"
                                          "e\n\xC3"));
  options_.skip_bad = true;
  const TokenizeResult result = run();
  EXPECT_EQ(result.skipped_lines, 3u);
  EXPECT_THAT(result.first_skipped, HasSubstr("a.jsonl:2:8: not valid UTF-8 (byte 0xE9)"));
  EXPECT_EQ(documents_of(output()), (std::vector<std::vector<Tokens>>{{tokens_of("x")},
                                                                      {tokens_of("one\nthr\xC3\xA9"
                                                                                 "e\n")}}));
  options_.inputs.erase(options_.inputs.begin());
  options_.skip_bad = false;
  EXPECT_THAT(error(), HasSubstr("b.txt:2:3: error: not valid UTF-8 (byte 0xFF)"));
  // Each paragraph is a sequence. The first paragraph loses all bytes and keeps only the end-of-document
  // token.
  options_.inputs = {folder_.write("c.txt", std::string(1500, '\xFF') + "\n\n" + std::string(1500, 'c'))};
  options_.skip_bad = true;
  EXPECT_EQ(run().skipped_lines, 1u);
}

std::string in_utf16(std::string_view ascii) {
  std::string text;
  for (const char c : ascii) text += {c, '\0'};
  return text;
}

TEST_F(Tokenize, FilesOfOtherEncodingsAreNamed) {
  const std::string text = in_utf16("one\ntwo\n");
  for (const bool skip_bad : {false, true}) {
    options_.skip_bad = skip_bad;
    options_.inputs = {folder_.write("a.txt", text)};
    EXPECT_THAT(error(), AllOf(HasSubstr("a.txt:1: error: at least a quarter of the bytes are NUL"),
                               HasSubstr("iconv -f UTF-16 -t UTF-8"), Not(HasSubstr("skip-bad"))));
    for (const char* name : {"b.txt", "b.jsonl"}) {
      options_.inputs = {folder_.write(name, "\xFF\xFE" + text)};
      EXPECT_THAT(error(), AllOf(HasSubstr(":1: error: the file is UTF-16 text"),
                                 HasSubstr("iconv -f UTF-16 -t UTF-8"), Not(HasSubstr("skip-bad"))));
    }
    options_.inputs = {folder_.write("c.txt", "one\n" + std::string(50'000, '\0'))};
    EXPECT_THAT(error(), HasSubstr("c.txt:2: error: "));
    options_.inputs = {folder_.write("d.txt", "%PDF-1.7\n\xE9\n")};
    EXPECT_THAT(error(), AllOf(HasSubstr("d.txt:1: error: the file is a PDF"), Not(HasSubstr("skip-bad"))));
    options_.inputs = {folder_.write("e.txt", "\x1F\x8B\x08\xFF")};
    EXPECT_THAT(error(), HasSubstr("rename it to end in .gz"));
    options_.inputs = {folder_.write("g.txt", std::string("ARROW1\0\0\xE0", 9))};
    EXPECT_THAT(error(), HasSubstr("the file is in Arrow's file format"));
  }
  // One NUL makes only its line invalid.
  options_.inputs = {folder_.write("f.txt", std::string("first\nsec\0nd\nthird\n", 19))};
  EXPECT_EQ(run().skipped_lines, 1u);
  options_.skip_bad = false;
  EXPECT_THAT(error(), HasSubstr("f.txt:2: error: a NUL byte"));
}

TEST_F(Tokenize, RefusesUnreadableInputs) {
  options_.inputs = {folder_.write("a.parquet", "PAR1")};
  EXPECT_THAT(error(), HasSubstr("a Parquet file"));
  options_.inputs = {(folder_ / "nothing*").string()};
  EXPECT_THAT(error(), AllOf(HasSubstr("no file matches"), HasSubstr("matches within one folder")));
  options_.inputs = {"a.txt,b.txt"};
  EXPECT_THAT(error(), HasSubstr("data_path='[A, B]'"));
  options_.inputs = {"https://host/a.txt"};
  EXPECT_THAT(error(), HasSubstr("nothing is downloaded: fetch it first (curl -LO https://host/a.txt)"));
  options_.inputs = {"roneneldan/TinyStories"};
  EXPECT_THAT(error(), HasSubstr("'hf download roneneldan/TinyStories --repo-type dataset"));
  options_.inputs = {(folder_ / "nothing").string()};
  EXPECT_THAT(error(), AllOf(HasSubstr("does not exist"), HasSubstr("hint: ")));
  options_.inputs = {folder_.write("a.jsonl", "{}\n")};
  EXPECT_THAT(error(), HasSubstr("no key 'text'"));
  options_.json_keys = {"text", "text"};
  EXPECT_THAT(error(), HasSubstr("named twice"));
  options_.json_keys = {"text"};
  options_.partitions = 0;
  EXPECT_THAT(error(), HasSubstr("partitions"));
}

TEST_F(Tokenize, TwoProcessesDoNotWriteOneDataSet) {
  options_.inputs = {folder_.write("a.jsonl", "{\"text\": \"x\"}\n")};
  make_folders(PartialFolder::path_for(options_.output_prefix));
  const auto lock =
      FileLock::attempt(PartialFolder::path_for(options_.output_prefix) / PartialFolder::kLockFile);
  ASSERT_TRUE(lock);
  EXPECT_THAT(error(), HasSubstr("another process writes"));
}

// The byte tokenizer, which calls a function at each text.
class Watched final : public Tokenizer {
 public:
  explicit Watched(std::function<void()> at_each_text) : at_each_text_(std::move(at_each_text)) {}
  std::string_view name() const override { return bytes_->name(); }
  int32_t vocab_size() const override { return bytes_->vocab_size(); }
  const SpecialIds& special_ids() const override { return bytes_->special_ids(); }
  std::string token_text(int32_t id) const override { return bytes_->token_text(id); }
  std::optional<int32_t> token_id(std::string_view token) const override { return bytes_->token_id(token); }
  bool is_special(int32_t id) const override { return bytes_->is_special(id); }
  uint64_t fingerprint() const override { return bytes_->fingerprint(); }
  void save(const Path& folder) const override { bytes_->save(folder); }

 protected:
  void encode_text(std::string_view text, std::vector<int32_t>& ids) const override {
    at_each_text_();
    bytes_->encode(text, false, ids);
  }
  std::unique_ptr<Decoding> new_decoding() const override { return nullptr; }

 private:
  std::unique_ptr<const Tokenizer> bytes_ = make_byte_tokenizer();
  std::function<void()> at_each_text_;
};

void Tokenize::stop_early() {
  std::atomic<bool> stop = false;
  TokenizeOptions options = options_;
  options.workers = options_.workers = 1;
  options.stop = &stop;
  EXPECT_FALSE(tokenize_corpus(options, Watched([&] { stop = true; })).complete);
}

struct Interruption {
  const char* name;
  const char* extension;
  int partitions;
};

class Interrupted : public Tokenize, public testing::WithParamInterface<Interruption> {
 protected:
  Interrupted() {
    const std::string extension = GetParam().extension;
    const std::string content = extension == ".txt" ? std::string(2'000'000, 'a') : many_lines();
    folder_.write("a" + extension, extension.ends_with(".gz") ? gzipped(content) : content);
    options_.inputs = {(folder_ / ("a" + extension)).string(), folder_.write("b.jsonl", many_lines())};
    options_.partitions = GetParam().partitions;
    options_.workers = 1;
    run();
    expected_ = bytes();
    options_.output_prefix = folder_ / "out2";
    options_.save_seconds = 0;  // saves after every block
  }
  std::string expected_;
};

// After a process is killed, the next call uses everything that the process had saved.
TEST_P(Interrupted, WorkIsContinuedAfterAKill) {
  const pid_t child = ::fork();
  if (child == 0) {
    const auto begin = std::chrono::steady_clock::now();
    int texts = 0;
    const int last = std::string(GetParam().extension) == ".txt" ? 25 : 15'000;
    const Watched tokenizer([&] {
      if (++texts == last || std::chrono::steady_clock::now() - begin > std::chrono::seconds(20)) ::_exit(9);
    });
    tokenize_corpus(options_, tokenizer);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_EQ(WEXITSTATUS(status), 9);
  EXPECT_FALSE(IndexedDataset::exists(output()));
  const TokenizeResult result = run();
  EXPECT_TRUE(result.complete);
  EXPECT_GT(result.resumed_bytes, 0u);
  EXPECT_TRUE(bytes() == expected_);
  EXPECT_FALSE(Env::posix().status(PartialFolder::path_for(options_.output_prefix)));
}

TEST_P(Interrupted, WorkIsContinuedAfterRepeatedRequests) {
  options_.save_seconds = 1000;
  std::atomic<bool> stop = false;
  options_.stop = &stop;
  const Watched tokenizer([&] { stop = true; });  // stops after each block
  TokenizeResult result;
  int calls = 0;
  do {
    stop = false;
    const uint64_t before = result.bytes;
    result = tokenize_corpus(options_, tokenizer);
    EXPECT_EQ(result.resumed_bytes, before);
    EXPECT_EQ(result.complete, IndexedDataset::exists(output()));
    ASSERT_LT(++calls, 100);
  } while (!result.complete);
  EXPECT_GT(calls, 5);
  EXPECT_TRUE(bytes() == expected_);
}

INSTANTIATE_TEST_SUITE_P(Inputs, Interrupted,
                         testing::Values(Interruption{"lines", ".jsonl", 1},
                                         Interruption{"partitions", ".jsonl", 3},
                                         Interruption{"packed", ".jsonl.gz", 1},
                                         Interruption{"text", ".txt", 1}),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_F(Tokenize, ExistingFilesAreReplacedOnlyOnRequest) {
  options_.inputs = {folder_.write("a.jsonl", many_lines())};
  run();
  const std::string before = bytes();
  EXPECT_THAT(error_of([this] { tokenize_corpus(options_, *tokenizer_); }),
              testing::AllOf(HasSubstr("out_text_document.bin' already exists"), HasSubstr("--overwrite")));
  EXPECT_EQ(bytes(), before);
  EXPECT_EQ(left_over().size(), 3u);  // .bin, .idx, and the record of the tokenizer
  options_.append_eod = false;
  options_.existing = Existing::kReplace;
  run();
  EXPECT_NE(bytes(), before);
}

// After a process was killed while renaming its final files, the command resumes. A command with other
// options is still refused and leaves the unfinished work unchanged.
TEST_F(Tokenize, ItsOwnPartiallyRenamedFilesAreNoError) {
  options_.inputs = {folder_.write("a.jsonl", many_lines())};
  stop_early();
  folder_.write("out_text_document.bin", "named before the process was killed");
  const auto unfinished = [&] { return read_all(folder_ / "out.partial/progress.json"); };
  const std::string progress = unfinished();
  options_.append_eod = false;
  EXPECT_THAT(error_of([this] { tokenize_corpus(options_, *tokenizer_); }), HasSubstr("already exists"));
  EXPECT_EQ(unfinished(), progress);
  options_.append_eod = true;
  EXPECT_GT(run().resumed_bytes, 0u);
  EXPECT_EQ(IndexedDataset::open(output())->documents(), std::ssize(documents_of(output())));
}

TEST_F(Tokenize, WorkWithOtherOptionsIsNotContinued) {
  options_.inputs = {folder_.write("a.jsonl", many_lines())};
  stop_early();
  options_.append_eod = false;
  const TokenizeResult result = run();
  EXPECT_EQ(result.resumed_bytes, 0u);
  EXPECT_EQ(documents_of(output())[0][0], tokens_of("document 0", false));
}

// An invalid line has its correct line number, even if an earlier call read the lines before it.
TEST_F(Tokenize, ResumedWorkContinuesTheLineNumbers) {
  options_.inputs = {folder_.write("a.jsonl", "{\"text\": \"x\"}\n"),
                     folder_.write("b.jsonl", many_lines() + "{]\n")};
  options_.workers = 1;
  std::atomic<bool> stop = false;
  options_.stop = &stop;
  int texts = 0;
  const Watched until_second_file([&] { stop = ++texts > 1; });
  EXPECT_FALSE(tokenize_corpus(options_, until_second_file).complete);
  const int before = std::exchange(texts, 0);
  EXPECT_GT(before, 1);
  stop = false;
  const Watched rest([&] { ++texts; });
  EXPECT_THAT(error_of([&] { tokenize_corpus(options_, rest); }), HasSubstr("b.jsonl:20001:2: error"));
  EXPECT_GT(texts, 0);
  EXPECT_LE(texts, 20'001 - before) << "the call must resume, not start again";
}

// Inputs that were rewritten count as other inputs, even with an equal size.
TEST_F(Tokenize, WorkOnOtherInputsIsNotContinued) {
  std::string lines = many_lines();
  const Path input = folder_.write("a.jsonl", lines);
  options_.inputs = {input.string()};
  stop_early();
  std::ranges::replace(lines, 'd', 'D');
  folder_.write("a.jsonl", lines);
  std::filesystem::last_write_time(input, std::filesystem::last_write_time(input) + std::chrono::seconds(5));
  const TokenizeResult result = run();
  EXPECT_EQ(result.resumed_bytes, 0u);
  EXPECT_EQ(documents_of(output())[0][0], tokens_of("Document 0"));
}

}  // namespace
}  // namespace primus::data
