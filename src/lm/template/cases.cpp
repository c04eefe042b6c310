#include "lm/template/cases.h"

#include <fmt/format.h>

#include <array>
#include <ctime>
#include <limits>
#include <optional>

#include "lm/template/chat.h"
#include "lm/template/json.h"

namespace primus::jinja {
namespace {

// The time that strftime_now reads in files without "now".
constexpr std::string_view kDefaultNow = "2026-02-03T04:05:06";

struct Outcome {
  bool failed = false;
  std::string text;           // if not failed
  std::string type, message;  // if failed
  std::optional<std::string> spans;

  std::string shown() const { return failed ? fmt::format("error {}: {}", type, message) : text; }
};

std::string shown_spans(const std::vector<Span>& spans) {
  std::string text;
  for (const Span& span : spans) text += fmt::format("[{}, {})", span.begin, span.end);
  return text;
}

class Checker {
 public:
  Checker(std::string_view json, std::string_view name, const Limits& limits)
      : name_(name),
        limits_(limits),
        budget_({.steps = std::numeric_limits<std::int64_t>::max(),
                 .bytes = std::numeric_limits<std::int64_t>::max()}),
        root_(parse_json(budget_, json, name)) {}

  CaseReport run() {
    if (root_.is(Type::kList))
      programs();
    else
      chats();
    return std::move(report_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw invalid(what, "docs/formats/conversations.md describes the forms of such files")
        .at(std::string(name_));
  }
  const Value* optional(const Value& object, std::string_view key) const {
    if (!object.is(Type::kDict))
      refuse(fmt::format("the object around '{}' is a {}", key, type_name(object)));
    const Value* const found = object.as<MappingObject>().find("s" + std::string(key));
    return found == nullptr || found->is(Type::kNone) ? nullptr : found;
  }
  const Value& required(const Value& object, std::string_view key, Type type) const {
    const Value* const found = optional(object, key);
    if (found == nullptr || !found->is(type))
      refuse(fmt::format("'{}' is missing, or has a wrong type", key));
    return *found;
  }

  Outcome expected(const Value& entry) const {
    Outcome outcome;
    if (const Value* const error = optional(entry, "error")) {
      outcome.failed = true;
      outcome.type = required(*error, "type", Type::kString).text();
      outcome.message = required(*error, "message", Type::kString).text();
      return outcome;
    }
    outcome.text = required(entry, "text", Type::kString).text();
    if (const Value* const spans = optional(entry, "generation_spans")) {
      std::vector<Span> all;
      if (!spans->is(Type::kList)) refuse("'generation_spans' is no list");
      for (const Value& span : spans->items()) {
        if (!span.is(Type::kList) || span.items().size() != 2 || !span.items()[0].is(Type::kInt) ||
            !span.items()[1].is(Type::kInt))
          refuse("'generation_spans' does not contain pairs of integers");
        all.push_back({span.items()[0].int_value(), span.items()[1].int_value()});
      }
      outcome.spans = shown_spans(all);
    }
    return outcome;
  }

  // Compares a case with its expected outcome. render(false) renders its text, render(true) its generation
  // spans.
  template <typename Render>
  void check(const std::string& name, const Outcome& wanted, Render render) {
    ++report_.cases;
    Outcome found;
    try {
      found.text = render(false).text;
      if (wanted.spans) found.spans = shown_spans(render(true).generated);
    } catch (const Failure& failure) {
      found.failed = true;
      found.type = failure.type();
      found.message = failure.message();
    }
    const bool same_error = found.type == wanted.type && found.message == wanted.message;
    const bool holds = found.failed == wanted.failed && found.text == wanted.text &&
                       found.spans == wanted.spans && (wanted.type != "TemplateError" || same_error);
    if (holds && !same_error) ++report_.other_errors;
    if (holds) return;
    FailedCase failed{name, wanted.shown(), found.shown()};
    if (found.spans != wanted.spans && found.failed == wanted.failed) {
      failed.expected += "\ngeneration spans " + wanted.spans.value_or("");
      failed.found += "\ngeneration spans " + found.spans.value_or("");
    }
    report_.failed.push_back(std::move(failed));
  }

  void programs() {
    const std::tm now = time_of(kDefaultNow);
    std::size_t index = 0;
    for (const Value& entry : root_.items()) {
      const std::string source = required(entry, "template", Type::kString).text();
      check(fmt::format("program {}", ++index), expected(entry), [&](bool) {
        const Template program(source);
        Variables variables;
        if (const Value* const data = optional(entry, "data")) {
          for (const auto& [key, value] : data->as<MappingObject>().items)
            variables.emplace_back(key.text(), value);
        }
        return program.render(std::move(variables), now, limits_);
      });
    }
  }

  std::tm time_of(std::string_view text) const {
    std::tm time{};
    const char* const end = strptime(std::string(text).c_str(), "%Y-%m-%dT%H:%M:%S", &time);
    if (end == nullptr) refuse(fmt::format("'now' is '{}', not a time like {}", text, kDefaultNow));
    time.tm_isdst = -1;
    std::tm complete = time;
    timegm(&complete);  // sets the days of the week and of the year
    return complete;
  }

  void chats() {
    const Value* const stated = optional(root_, "now");
    const std::tm now =
        time_of(stated && stated->is(Type::kString) ? stated->text() : std::string(kDefaultNow));
    const Value& conversations = required(root_, "conversations", Type::kDict);
    for (const auto& [name, entry] : required(root_, "templates", Type::kDict).as<MappingObject>().items) {
      const std::string source = required(entry, "template", Type::kString).text();
      for (const Value& wanted : required(entry, "renders", Type::kList).items()) {
        const std::string chosen = required(wanted, "conversation", Type::kString).text();
        const Value& conversation = required(conversations, chosen, Type::kDict);
        const bool prompts = flag(wanted, "add_generation_prompt");
        check(fmt::format("{}, conversation {}{}", name.text(), chosen,
                          prompts ? ", with a generation prompt" : ""),
              expected(wanted), [&](bool spans) {
                ChatRequest request = request_of(conversation, entry);
                request.add_generation_prompt = prompts;
                request.keep_null = spans;
                return render_chat(Template(source), request, now, limits_);
              });
      }
    }
  }

  bool flag(const Value& object, std::string_view key) const {
    const Value* const found = optional(object, key);
    return found != nullptr && is_true(*found);
  }

  ChatRequest request_of(const Value& conversation, const Value& entry) const {
    ChatRequest request;
    request.messages = required(conversation, "messages", Type::kList);
    if (const Value* const tools = optional(conversation, "tools")) request.tools = *tools;
    if (const Value* const documents = optional(conversation, "documents")) request.documents = *documents;
    request.continue_final_message = flag(conversation, "continue_final_message");
    for (const std::string_view token : {"bos_token", "eos_token", "pad_token"})
      if (const Value* const text = optional(entry, token)) request.variables.emplace_back(token, *text);
    if (const Value* const further = optional(conversation, "kwargs")) {
      if (!further->is(Type::kDict)) refuse("'kwargs' is no object");
      for (const auto& [key, value] : further->as<MappingObject>().items)
        request.variables.emplace_back(key.text(), value);
    }
    return request;
  }

  std::string_view name_;
  Limits limits_;
  Budget budget_;
  Value root_;
  CaseReport report_;
};

}  // namespace

CaseReport check_cases(std::string_view json, std::string_view name, const Limits& limits) {
  return Checker(json, name, limits).run();
}

}  // namespace primus::jinja
