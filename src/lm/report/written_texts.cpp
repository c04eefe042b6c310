#include "lm/report/written_texts.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <system_error>

#include "base/error.h"
#include "base/text/json_reader.h"
#include "lm/events/line_file.h"

namespace primus {
namespace {

// Reads a string, and cuts a long one between two characters.
std::string read_text(JsonReader& json) {
  std::string text = json.read_string();
  if (text.size() <= kReportTextBytes) return text;
  std::size_t end = kReportTextBytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;
  text.resize(end);
  return text + " [...]";
}

std::optional<SampleRecord> read_record(std::string_view line) {
  SampleRecord record{.iteration = -1};
  using Kind = JsonReader::Kind;
  try {
    JsonReader json(line, "samples.jsonl");
    json.object([&](std::string_view key) {
      const Kind kind = json.peek();
      if (key == "iteration" && kind == Kind::kNumber) {
        record.iteration = json.read_int();
      } else if (key == "tokens" && kind == Kind::kNumber) {
        record.tokens = json.read_int();
      } else if (key == "prompt" && kind == Kind::kString) {
        record.prompt = read_text(json);
      } else if (key == "text" && kind == Kind::kString) {
        record.text = read_text(json);
      } else if (key == "finished" && kind == Kind::kBool) {
        record.finished = json.read_bool();
      } else if (key == "rewards" && kind == Kind::kObject) {
        json.object([&](std::string_view name) {
          std::optional<double> reward;
          const bool number = json.peek() == Kind::kNumber;
          if (number) {
            reward = json.read_double();
          } else {
            json.skip();
          }
          record.rewards.emplace_back(name, reward);
        });
      } else {
        json.skip();
      }
    });
  } catch (const Error&) {
    return std::nullopt;
  }
  return record.iteration < 0 ? std::nullopt : std::optional(std::move(record));
}

}  // namespace

std::vector<SampleRecord> newest_texts(const Path& file, std::int64_t& damaged, std::size_t count) {
  std::vector<SampleRecord> texts;
  std::error_code none;
  if (!std::filesystem::is_regular_file(file, none)) return texts;
  const std::unique_ptr<File> opened = Env::posix().open(file, OpenMode::kRead);
  LinesBackward lines(*opened);
  std::string_view line;
  std::uint64_t offset = 0;
  while (texts.size() < count && lines.previous(line, offset)) {
    std::optional<SampleRecord> record = read_record(line);
    if (record) {
      texts.push_back(std::move(*record));
    } else {
      ++damaged;
    }
  }
  std::ranges::reverse(texts);
  return texts;
}

}  // namespace primus
