// primus data encode | decode: standard input to standard output.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <nlohmann/json.hpp>

#include "base/checked.h"
#include "base/error.h"
#include "base/files/file.h"
#include "base/system/thread_pool.h"
#include "base/text/json_reader.h"
#include "base/text/json_text.h"
#include "base/text/unique_keys.h"
#include "cli/command.h"
#include "cli/options/line_reader.h"
#include "lm/data/json_lines.h"
#include "lm/generate/model_folder.h"
#include "lm/tokenizer/text/unicode.h"
#include "lm/tokenizer/tokenizer.h"

namespace primus::cli {
namespace {

constexpr std::string_view kInput = "<standard input>";
constexpr std::size_t kBufferBytes = 256 << 10;

std::string read_all() {
  std::string text;
  for (std::size_t size = 0;; size = text.size()) {
    text.resize(size + kBufferBytes);
    ssize_t count;
    do count = ::read(STDIN_FILENO, text.data() + size, kBufferBytes);
    while (count < 0 && errno == EINTR);
    if (count < 0) throw FileError("cannot read standard input", errno);
    text.resize(size + static_cast<std::size_t>(count));
    if (count == 0) return text;
  }
}

struct Line {
  std::string_view text;
  std::int64_t number;
};

// Calls use(line) for each line that is not blank. Skips a byte-order mark at the beginning.
void for_each_line(FunctionRef<void(const Line&)> use) {
  LineReader input(STDIN_FILENO, std::string(kInput));
  for (std::string_view line; input.next(line);) {
    if (input.number() == 1 && line.starts_with(unicode::kByteOrderMark))
      line.remove_prefix(unicode::kByteOrderMark.size());
    if (line.find_first_not_of(" \t\r") != std::string_view::npos) use({line, input.number()});
  }
}

// Buffers output into large writes.
class Output {
 public:
  explicit Output(const Console& console) : console_(console) {}
  void add(std::string_view text) {
    buffer_ += text;
    if (buffer_.size() >= kBufferBytes) flush();
  }
  void flush() {
    console_.write(buffer_);
    buffer_.clear();
  }

 private:
  const Console& console_;
  std::string buffer_;
};

// The arguments that both commands share.
class TextCommand : public Command {
 public:
  void declare(Arguments& args) override {
    args.option("--tokenizer,-t", "FILE", &model_, "tokenizer file, or the folder of a model or a run");
    args.option("--tokenizer-type", "TYPE", &type_, "kind of tokenizer, as in experiments");
    args.flag("--jsonl", jsonl_, R"(JSON lines: {"text": ...} and {"ids": ...})");
  }

  int run(Console& console) override {
    if (type_.empty() && model_.empty()) {
      throw invalid("there is no tokenizer",
                    "name its file with --tokenizer; --tokenizer-type ByteTokenizer needs none");
    }
    const auto tokenizer = load_named_tokenizer({type_, model_, {}, {}});
    console.notes(tokenizer->notes());
    Output output(console);
    if (jsonl_) {
      for_each_line([&](const Line& line) {
        unicode::require_valid(line.text, kInput, line.number);
        try {
          output.add(convert_line(*tokenizer, line));
        } catch (Error& error) {  // an error of the tokenizer
          if (error.location().empty()) error.at(fmt::format("{}:{}", kInput, line.number));
          throw;
        }
      });
    } else {
      const std::string input = read_all();
      unicode::require_valid(input, kInput, 1);
      output.add(convert(*tokenizer, input));
    }
    output.flush();
    return 0;
  }

 private:
  virtual std::string convert_line(const Tokenizer& tokenizer, const Line& line) = 0;
  virtual std::string convert(const Tokenizer& tokenizer, const std::string& input) = 0;

  std::string model_, type_;
  bool jsonl_ = false;
};

// Parses an object; read(reader) consumes the value of key `wanted`. Other keys are skipped.
template <class Read>
void read_object(const Line& line, std::string_view wanted, const Read& read) {
  JsonReader reader(line.text, kInput, {.first_line = line.number, .python = true});
  reader.require(JsonReader::Kind::kObject, "the line");
  reader.begin_object();
  std::string key;
  bool found = false;
  UniqueKeys unique;
  while (reader.next_key(key)) {
    unique.add(reader, key);
    if (key != wanted) {
      reader.skip();
      continue;
    }
    read(reader);
    found = true;
  }
  reader.finish();
  if (!found) throw data::missing_key(line.text, wanted).at(fmt::format("{}:{}", kInput, line.number));
}

class DataEncode final : public TextCommand {
 public:
  void declare(Arguments& args) override {
    TextCommand::declare(args);
    args.flag(
        "--no-special-tokens", no_special_,
        "leave out the special tokens that the tokenizer puts around a text (Llama 3: <|begin_of_text|>)");
  }

 private:
  std::string convert_line(const Tokenizer& tokenizer, const Line& line) override {
    read_object(line, "text", [&](JsonReader& reader) {
      reader.require(JsonReader::Kind::kString, "the value of", "text");
      reader.read_string(text_);
    });
    return fmt::format("{{\"ids\":[{}]}}\n", fmt::join(encode(tokenizer, text_), ","));
  }
  std::string convert(const Tokenizer& tokenizer, const std::string& input) override {
    return fmt::format("{}\n", fmt::join(encode(tokenizer, input), " "));
  }
  const std::vector<std::int32_t>& encode(const Tokenizer& tokenizer, std::string_view text) {
    ids_.clear();
    tokenizer.encode(text, !no_special_, ids_);
    return ids_;
  }

  bool no_special_ = false;
  std::string text_;
  std::vector<std::int32_t> ids_;
};

class DataDecode final : public TextCommand {
 public:
  void declare(Arguments& args) override {
    TextCommand::declare(args);
    args.flag("--special-tokens", special_, "also write special tokens");
    args.flag("--no-special-tokens", no_special_, "leave special tokens out (the default)");
  }

 private:
  std::string convert_line(const Tokenizer& tokenizer, const Line& line) override {
    ids_.clear();
    read_object(line, "ids", [&](JsonReader& reader) {
      reader.require(JsonReader::Kind::kArray, "the value of", "ids");
      reader.begin_array();
      while (reader.next_element()) {
        reader.require(JsonReader::Kind::kNumber, "an element of", "ids");
        ids_.push_back(checked_cast<std::int32_t>(reader.read_int(), "token id"));
      }
    });
    const nlohmann::json object = {{"text", decode(tokenizer)}};
    return json_text(object, -1) + "\n";
  }
  // Parses numbers separated by anything but digits.
  std::string convert(const Tokenizer& tokenizer, const std::string& input) override {
    ids_.clear();
    std::size_t at = 0;
    while ((at = input.find_first_not_of(" ,[]\t\r\n", at)) != std::string::npos) {
      std::int32_t id = 0;
      const auto result = std::from_chars(input.data() + at, input.data() + input.size(), id);
      if (result.ec != std::errc()) {
        const auto line =
            std::count(input.begin(), input.begin() + static_cast<std::ptrdiff_t>(at), '\n') + 1;
        throw invalid("this is not a token id", "ids are numbers with spaces or commas between them")
            .at(fmt::format("{}:{}", kInput, line));
      }
      ids_.push_back(id);
      at = static_cast<std::size_t>(result.ptr - input.data());
    }
    return decode(tokenizer) + "\n";
  }
  std::string decode(const Tokenizer& tokenizer) const {
    return tokenizer.decode(ids_, /*skip_special=*/!special_ || no_special_);
  }

  bool special_ = false, no_special_ = false;
  std::vector<std::int32_t> ids_;
};

}  // namespace

extern const CommandEntry kDataEncode{
    "data encode",
    "Turns text into token ids",
    "Reads standard input: one text, or with --jsonl one text per line. Writes the ids separated by spaces, "
    "or JSON lines.",
    "echo 'In the beginning' | primus data encode --tokenizer tokenizer.json\n"
    R"(echo '{"text": "In the beginning"}' | primus data encode --tokenizer tokenizer.model --jsonl)",
    make_command<DataEncode>,
    {Section::kData, 7}};

extern const CommandEntry kDataDecode{
    "data decode",
    "Turns token ids into text",
    "Reads standard input: ids separated by spaces, or with --jsonl a list per line.",
    "echo 464 3726 | primus data decode --tokenizer tokenizer.json\n"
    R"(echo '{"ids": [464, 3726]}' | primus data decode --tokenizer tokenizer.json --jsonl)",
    make_command<DataDecode>,
    {Section::kData, 8}};

}  // namespace primus::cli
