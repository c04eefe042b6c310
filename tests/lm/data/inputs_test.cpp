// Tests input files: which files are read, in which format, and how they are decompressed.
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <zstd.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "data_test_util.h"
#include "gzipped.h"
#include "lm/data/conversation_files.h"
#include "lm/data/corpus.h"
#include "lm/data/json_lines.h"
#include "lm/data/text_check.h"
#include "lm/data/train_tokenizer.h"

namespace primus::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const std::string kLine = "{\"text\": \"a\"}\n";

class Inputs : public testing::Test {
 protected:
  // Returns the unpacked bytes of one file.
  static std::string content_of(const std::string& path) {
    BlockReader reader(find_inputs({path}));
    std::string content;
    for (TextBlock block; reader.next(block);) content += block.text;
    return content;
  }
  std::string error_with(const std::string& pattern) const {
    return error_of([&] { content_of(pattern); });
  }
  TemporaryFolder folder_;
};

// Zeros after a gzip member are padding: gzip -t accepts such files, and Python reads them.
TEST_F(Inputs, ZerosAfterAGzipMemberArePadding) {
  for (const size_t zeros : {0u, 1u, 511u, 300'000u}) {
    const std::string filling(zeros, '\0');
    EXPECT_EQ(content_of(folder_.write("a.jsonl.gz", gzipped(kLine) + filling)), kLine) << zeros;
    EXPECT_EQ(content_of(folder_.write("b.jsonl.gz", gzipped(kLine) + filling + gzipped(kLine) + filling)),
              kLine + kLine)
        << zeros;
  }
  const std::string zeros(3, '\0');
  EXPECT_THAT(error_with(folder_.write("c.jsonl.gz", zeros + gzipped(kLine))), HasSubstr("cannot unpack it"));
  EXPECT_THAT(error_with(folder_.write("d.jsonl.gz", gzipped(kLine) + zeros + "x")),
              HasSubstr("d.jsonl.gz: error"));
}

// By default, zstd accepts windows of up to 2^27 bytes. Dumps have longer windows (--long=31).
TEST_F(Inputs, LongWindowsOfZstdAreRead) {
  const std::unique_ptr<ZSTD_CCtx, size_t (*)(ZSTD_CCtx*)> context(ZSTD_createCCtx(), ZSTD_freeCCtx);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_compressionLevel, 1);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_windowLog, 28);
  std::string packed(1 << 10, '\0');
  ZSTD_outBuffer out{packed.data(), packed.size(), 0};
  ZSTD_inBuffer in{kLine.data(), kLine.size(), 0};
  // The data is written in two steps, so that the file lacks its content size and the window size matters.
  ASSERT_FALSE(ZSTD_isError(ZSTD_compressStream2(context.get(), &out, &in, ZSTD_e_continue)));
  ASSERT_EQ(ZSTD_compressStream2(context.get(), &out, &in, ZSTD_e_end), 0u);
  packed.resize(out.pos);
  EXPECT_EQ(content_of(folder_.write("a.jsonl.zst", packed)), kLine);
}

TEST_F(Inputs, UncompressedTextWithACompressedNameIsReported) {
  for (const char* ending : {"gz", "zst"}) {
    const std::string name = (folder_ / "a.jsonl").string();
    EXPECT_THAT(error_with(folder_.write(std::string("a.jsonl.") + ending, kLine)),
                AllOf(HasSubstr(std::string("the file is text, although its name ends in .") + ending),
                      HasSubstr("rename it: " + name)));
  }
}

TEST_F(Inputs, ExtensionsIgnoreCase) {
  for (const auto& [name, content] : {std::pair("A.JSONL", kLine),
                                      {"B.Json", kLine},
                                      {"C.jsonl.GZ", gzipped(kLine)},
                                      {"D.NDJSON.Gz", gzipped(kLine)}}) {
    const std::string path = folder_.write(name, content);
    EXPECT_EQ(find_inputs({path})[0].kind, InputKind::kJsonLines) << name;
    EXPECT_TRUE(find_inputs({path})[0].known_ending) << name;
    EXPECT_EQ(content_of(path), kLine) << name;
  }
  EXPECT_THAT(error_with(folder_.write("A.TAR.GZ", "x")), HasSubstr("has an unsupported compression"));
  EXPECT_THAT(error_with(folder_.write("A.PARQUET", "x")), HasSubstr("a Parquet file"));
  EXPECT_THAT(error_with(folder_.write("A.ARROW", "x")), HasSubstr("an Arrow file"));
  EXPECT_THAT(error_with(folder_.write("b.feather", "x")), HasSubstr("an Arrow file"));
}

TEST_F(Inputs, SkippedFilesOfFoldersAreNoted) {
  for (const char* name :
       {"in/a.txt", "in/b.MD", "in/x.py", "in/deep/y.py", "in/deep/z.man", "in/deep/README", "in/.hidden"})
    folder_.write(name, "text");
  const std::string in = (folder_ / "in").string();
  SkippedFiles skipped;
  const std::vector<InputFile> files = find_inputs({in}, &skipped);
  EXPECT_EQ(files.size(), 2u);
  EXPECT_EQ(skipped.counts, (std::map<std::string, int64_t>{{"", 1}, {".man", 1}, {".py", 2}}));
  EXPECT_THAT(remarks_on(files, skipped),
              testing::ElementsAre(AllOf(HasSubstr("2 files are read; '" + in +
                                                   "' has other files, which were skipped: "
                                                   "2 .py, 1 without an ending, 1 .man, "
                                                   "1 whose name begins with a dot"),
                                         HasSubstr("/**/*.py' reads them as plain text"))));
  EXPECT_THAT(error_with(in + "/deep"),
              AllOf(HasSubstr("contains no text or JSON-lines file, but 1 without an ending, 1 .man, 1 .py"),
                    HasSubstr("reads them as plain text")));
}

// Data are read more than once, so a pipe would look empty.
TEST_F(Inputs, APipeIsRefused) {
  const std::string pipe = (folder_ / "pipe").string();
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(error_with(pipe), AllOf(HasSubstr("is a pipe"), HasSubstr("to a file first")));
}

TEST_F(Inputs, AByteOrderMarkIsNoText) {
  BlockReader reader(find_inputs({folder_.write("a.txt", "\xEF\xBB\xBFWords\n")}));
  TextBlock block;
  ASSERT_TRUE(reader.next(block));
  require_utf8(block, "a.txt", false, "");
  EXPECT_EQ(block.text, "Words\n");
  EXPECT_EQ(block.parts.back(), block.text.size());
}

// The model would learn the syntax of JSON.
TEST_F(Inputs, JsonLinesInATextFileAreNoted) {
  const std::string json = "{\"text\": \"words\"}\n", in = (folder_ / "in").string();
  folder_.write("in/a.txt", json + json);
  folder_.write("in/b.txt", "\n " + json);
  folder_.write("in/c.txt", "{this is not JSON}\n" + json);
  folder_.write("in/d.jsonl", json);
  EXPECT_THAT(remarks_on({in}),
              testing::ElementsAre(
                  "'" + in +
                  "/a.txt' and 1 more are files of JSON lines, but read as plain text, "
                  "with the JSON syntax, because of the file name: names of JSON lines end in .jsonl"));
}

// The tokenizer would learn tokens with a CR, and the model would write it.
TEST_F(Inputs, WindowsLineEndsInATextAreNoted) {
  const std::string in = (folder_ / "in").string();
  folder_.write("in/a.txt", "one\r\ntwo\r\n");
  folder_.write("in/b.txt", "one\ntwo\n");
  folder_.write("in/c.jsonl", "{\"text\": \"words\"}\r\n");
  EXPECT_THAT(remarks_on({in}),
              testing::ElementsAre(HasSubstr("/a.txt' has the line ends of Windows (CR LF)")));
  folder_.write("in/d.txt", "one\r\n");
  EXPECT_THAT(remarks_on({in}), testing::ElementsAre(HasSubstr("/a.txt' and 1 more have the line ends")));
}

TEST_F(Inputs, SkippedFilesWhoseNamesBeginWithADotAreNoted) {
  for (const char* name : {"in/a.txt", "in/.notes.txt", "in/deep/.git/x.txt", "in/.primus-cache/x.txt"})
    folder_.write(name, "text");
  const std::string in = (folder_ / "in").string();
  EXPECT_THAT(remarks_on({in}),
              testing::ElementsAre("1 file is read; '" + in +
                                   "' has other files, which were skipped: 2 whose name begins with a dot "
                                   "(a file that is named itself is read)"));
  EXPECT_THAT(error_with(in + "/deep"), HasSubstr("file, but 1 whose name begins with a dot"));
}

// A compressed text is cut at the same positions as the uncompressed text.
TEST_F(Inputs, ACompressedTextHasTheSamePieces) {
  std::string text;
  for (int i = 0; i < 3000; ++i) text += "Paragraph " + std::to_string(i) + " says what it says.\n\n";
  const auto parts = [](const std::string& path) {
    std::vector<std::string> parts;
    BlockReader reader(find_inputs({path}), 16 << 10);
    for (TextBlock block; reader.next(block);) {
      std::size_t begin = 0;
      for (const std::size_t end : block.parts) {
        parts.push_back(block.text.substr(begin, end - begin));
        begin = end;
      }
    }
    return parts;
  };
  const std::vector<std::string> plain = parts(folder_.write("a.txt", text));
  EXPECT_GT(plain.size(), 20u);
  EXPECT_EQ(parts(folder_.write("b.txt.gz", gzipped(text))), plain);
}

// The JSON files of runs and models are not read as text.
TEST_F(Inputs, RunAndModelFoldersAreNoText) {
  folder_.write("run/experiment.yaml", "exp_name: x\n");
  folder_.write("run/metrics.jsonl", kLine);
  folder_.write("checkpoints/latest", "iter_0000005\n");
  folder_.write("checkpoints/iter_0000005/config.json", "{}\n");
  for (const char* name : {"run", "checkpoints"}) {
    const std::string folder = (folder_ / name).string();
    EXPECT_THAT(error_with(folder), AllOf(HasSubstr("'" + folder + "' holds a training run, not text"),
                                          HasSubstr("to train this model, set load=" + folder)));
  }
  folder_.write("model/config.json", "{}\n");
  folder_.write("model/model.safetensors", "x");
  EXPECT_THAT(error_with((folder_ / "model").string()), HasSubstr("holds a model, not text"));
  // A text file may have the name of a file of a run or a model.
  folder_.write("text/latest", "x");
  folder_.write("text/manifest.json", kLine);
  folder_.write("text/config.json", kLine);
  folder_.write("text/experiment.yaml", "x");
  EXPECT_EQ(content_of((folder_ / "text").string()), kLine + kLine);
}

// A link to a disk that is not mounted is an error. Otherwise, the data would be left out without a message.
TEST_F(Inputs, LinksToMissingFilesAreRefused) {
  folder_.write("d/a.txt", "hello");
  const std::string folder = (folder_ / "d").string();
  std::filesystem::create_symlink("/nowhere/readme", folder_ / "d/README");
  EXPECT_EQ(content_of(folder), "hello") << "a link to no data may dangle";
  std::filesystem::create_symlink("/nowhere/b.txt", folder_ / "d/b.txt");
  for (const std::string& pattern : {folder, folder + "/*.txt", folder + "/**/*.txt", folder + "/b.txt"})
    EXPECT_THAT(error_with(pattern), HasSubstr("b.txt' is a link to a missing file")) << pattern;

  folder_.write("chats/train.jsonl", kLine);
  std::filesystem::create_symlink("/nowhere/v.jsonl", folder_ / "chats/validation.jsonl");
  EXPECT_THAT(error_of([&] { find_conversations((folder_ / "chats").string(), "train"); }),
              HasSubstr("validation.jsonl' is a link to a missing file"));
}

TEST_F(Inputs, TwoStarsMatchFoldersAtAnyDepth) {
  for (const char* name : {"in/x.py", "in/deep/y.py", "in/deep/er/z.py", "in/z.c", "in/.git/a.py"})
    folder_.write(name, name);
  const std::string in = (folder_ / "in").string();
  SkippedFiles skipped;
  const std::vector<InputFile> files = find_inputs({in + "/**/*.py"}, &skipped);
  ASSERT_EQ(files.size(), 3u);
  EXPECT_EQ(files[0].path, folder_ / "in/deep/er/z.py");
  EXPECT_EQ(files[2].path, folder_ / "in/x.py");
  EXPECT_TRUE(skipped.counts.empty());
  EXPECT_EQ(find_inputs({in + "/**"}).size(), 4u);
  EXPECT_THAT(error_with(in + "/**/*.md"), HasSubstr("no file matches"));
  EXPECT_EQ(find_inputs({in + "/**/*.PY"}).size(), 3u);
  EXPECT_EQ(find_inputs({in + "/**.py"}).size(), 1u);  // glob(3) reads ** as *
  EXPECT_THAT(error_with(in + "/**/deep/*.py"), HasSubstr("names a folder after **"));
}

// Hints name the options of the command that is running.
TEST_F(Inputs, HintsNameTheCommandsOptions) {
  TrainTokenizerOptions options;
  options.inputs = {folder_.write("a.jsonl", "{\"body\": \"a\"}\n")};
  options.bpe.vocab_size = 300;
  EXPECT_THAT(error_of([&] { train_tokenizer(options); }),
              AllOf(HasSubstr("'--json-key KEY'"), HasSubstr("'--skip-bad'"),
                    testing::Not(HasSubstr("data tokenize"))));
}

}  // namespace
}  // namespace primus::data
