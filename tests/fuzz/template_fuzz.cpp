// Fuzzes chat templates: any bytes give valid UTF-8, or an error of the template.
#include <cstdint>
#include <string>

#include "base/text/utf8.h"
#include "lm/template/chat.h"
#include "lm/template/json.h"
#include "quick.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace primus::jinja;
  Budget budget(Limits{});
  static const Value messages = parse_json(
      budget,
      R"([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "a", "x": [1, {"y": 2.5}]}])",
      "messages");
  ChatRequest request;
  request.messages = messages;
  try {
    const Template chat_template(std::string_view(reinterpret_cast<const char*>(data), size));
    const Rendered rendered = render_chat(chat_template, request, std::tm{.tm_mday = 1},
                                          {.steps = 100'000, .bytes = 4 << 20, .nesting = 200});
    if (!primus::unicode::is_valid(rendered.text)) __builtin_trap();
    for (const Span& span : rendered.generated)
      if (span.begin < 0 || span.begin > span.end) __builtin_trap();
  } catch (const Failure&) {
  }
  return 0;
}
