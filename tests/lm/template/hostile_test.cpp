// Tests that hostile templates end with text or with a Failure, in bounded time and memory.
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "lm/template/chat.h"
#include "lm/template/json.h"

namespace primus::jinja {
namespace {

constexpr Limits kSmall{.steps = 200'000, .bytes = 8 << 20};

ChatRequest conversation() {
  Budget budget(Limits{});
  ChatRequest request;
  request.messages = parse_json(budget, R"([{"role": "system", "content": "Be kind."},
      {"role": "user", "content": "Hi \u00e9"},
      {"role": "assistant", "content": "a", "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]},
      {"role": "tool", "content": "2"}])",
                                "x.json");
  return request;
}

// Returns the type of the failure, or "" if the template renders.
std::string failure_of(const std::string& source, const Limits& limits = kSmall) {
  try {
    render_chat(Template(source), conversation(), std::tm{.tm_mday = 1}, limits);
  } catch (const Failure& failure) {
    return failure.type();
  }
  return "";
}

std::string repeated(const std::string& text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

TEST(HostileTemplates, LimitsEndLongWork) {
  const std::string loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
  for (const std::string& source : {
           loops,
           std::string("{{ 'x' * 999999999999 }}"),
           std::string("{{ [0] * 999999999 }}"),
           std::string("{{ 'a'.ljust(999999999) }}{{ 'a' | center(99999999) }}"),
           std::string("{{ '%999999999d' % 1 }}"),
           std::string("{{ '{:999999999}'.format(1) }}"),
           std::string("{{ ('a' * 9999).replace('', 'b' * 9999) }}"),
           std::string("{{ ('b' * 99999).join(('c' * 9999) | list) }}"),
           std::string("{{ 'a' | indent(999999999) }}{{ [1] | tojson(indent=999999999) }}"),
           std::string("{{ [1] | batch(999999999, 0) | list }}"),
           std::string("{{ [1] | slice(999999999) | list }}"),
           std::string("{% set ns = namespace(s='ab') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s "
                       "%}{% endfor %}"),
           std::string("{% set ns = namespace(s=[1]) %}{% for i in range(99) %}{% set ns.s = [ns.s, ns.s] "
                       "%}{% endfor %}{{ ns.s }}"),
           std::string("{% set ns = namespace(s=(1,)) %}{% for i in range(99) %}{% set ns.s = (ns.s, ns.s) "
                       "%}{% endfor %}{{ {ns.s: 1} }}"),
       }) {
    EXPECT_EQ(failure_of(source), "LimitError") << source;
  }
}

TEST(HostileTemplates, NestingIsBounded) {
  const std::vector<std::string> sources = {
      "{{ " + repeated("(", 5000) + "1" + repeated(")", 5000) + " }}",
      "{{ " + repeated("[", 5000) + repeated("]", 5000) + " }}",
      "{{ " + repeated("-", 100000) + "1 }}",
      "{{ " + repeated("not ", 100000) + "1 }}",
      "{{ 1" + repeated(" + 1", 100000) + " }}",
      "{{ messages" + repeated("[0]", 100000) + " }}",
      "{{ 1" + repeated(" if 1 else 1", 100000) + " }}",
      "{{ 1" + repeated(" | string", 100000) + " }}",
      repeated("{% if true %}", 5000) + repeated("{% endif %}", 5000),
      repeated("{% macro m() %}", 5000),
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{% macro m() %}{% call m() %}{% endcall %}{{ caller() }}{% endmacro %}{% call m() %}{% endcall %}",
      "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
      "{% set ns = namespace(x=0) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}",
      "{% set ns = namespace(x=0) %}{% for i in range(9999) %}{% set ns.x = {'a': ns.x} %}{% endfor %}",
      "{% set ns = namespace(x=[]) %}{% for i in range(9999) %}{% set ns.x = [ns.x] | map('list') %}{% "
      "endfor %}",
      "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}",
  };
  for (const std::string& source : sources)
    EXPECT_EQ(failure_of(source), "RecursionError") << source.substr(0, 80);
}

// Values that refer to each other in long chains are released without recursion.
TEST(HostileTemplates, LongChainsAreReleased) {
  const Limits wide{.steps = 5'000'000, .bytes = 256 << 20};
  for (
      const char* const source : {
          "{% set ns = namespace(x=0) %}{% for i in range(50000) %}{% set ns.x = namespace(x=ns.x) %}{% "
          "endfor %}",
          "{% set ns = namespace(x=0) %}{% for i in range(50000) %}{% set y = ns.x %}{% macro m() %}{{ y }}"
          "{% endmacro %}{% set ns.x = m %}{% endfor %}",
          "{% set ns = namespace(x=0) %}{% for i in range(50000) %}{% for j in [ns.x] %}{% set ns.x = loop %}"
          "{% endfor %}{% endfor %}",
          "{% set ns = namespace(x=0) %}{% for i in range(50000) %}{% set ns.x = cycler(ns.x) %}{% endfor %}",
          "{% set ns = namespace(x=0) %}{% for i in range(50000) %}{% set ns.x = joiner(ns.x) %}{% endfor %}",
          "{% for i in range(50000) %}{% set c = loop.changed(loop) %}{% endfor %}",
      }) {
    EXPECT_EQ(failure_of(source, wide), "") << source;
  }
}

TEST(HostileTemplates, SandboxRefusesInternals) {
  for (const char* const source :
       {"{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ messages[0].update({}) }}",
        "{{ messages[0]['__class__']() }}", "{{ '{0.__class__.__mro__}'.format(1) }}",
        "{% set ns = namespace() %}{% set ns.__x = 1 %}", "{{ raise_exception.__globals__.x }}",
        "{{ messages | map(attribute='__class__.__mro__') | list }}",
        "{{ (messages | attr('__class__')).x }}"}) {
    EXPECT_EQ(failure_of(source), "SecurityError") << source;
  }
}

std::string golden(const std::string& name) {
  std::ifstream file(PRIMUS_SOURCE_DIR "/tests/golden/templates/" + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Returns templates to mutate: all programs and chat templates of the goldens.
std::vector<std::string> known_templates() {
  std::vector<std::string> sources;
  Budget budget(Limits{});
  const Value programs = parse_json(budget, golden("jinja.json"), "jinja.json");
  for (const Value& program : programs.items())
    sources.push_back(program.as<MappingObject>().find("stemplate")->text());
  const Value chats = parse_json(budget, golden("templates.json"), "templates.json");
  for (const auto& [name, entry] : chats.as<MappingObject>().find("stemplates")->as<MappingObject>().items)
    sources.push_back(entry.as<MappingObject>().find("stemplate")->text());
  return sources;
}

TEST(HostileTemplates, MutationsEndWithTextOrFailure) {
  const std::vector<std::string> sources = known_templates();
  ASSERT_GE(sources.size(), 60U);
  std::mt19937 random(20260203);
  const auto below = [&](std::size_t limit) { return static_cast<std::size_t>(random() % limit); };
  static constexpr const char* kPieces[] = {"{{",
                                            "}}",
                                            "{%",
                                            "%}",
                                            "{#",
                                            "-",
                                            "(",
                                            ")",
                                            "[",
                                            "]",
                                            "|",
                                            ".",
                                            "'",
                                            " for ",
                                            " in ",
                                            " if ",
                                            " else ",
                                            "{% endfor %}",
                                            " * 99999999 ",
                                            "**",
                                            " is ",
                                            "~",
                                            "range(99999)",
                                            "messages",
                                            "\xff",
                                            "\0x",
                                            "\n",
                                            "loop"};
  int rendered = 0, failed = 0;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 1000; ++i) {
    std::string source = sources[below(sources.size())];
    for (std::size_t change = 0; change <= below(6); ++change) {
      const std::size_t at = below(source.size() + 1), size = below(20);
      switch (below(4)) {
        case 0:
          source.erase(at, size);
          break;
        case 1:
          source.insert(at, kPieces[below(std::size(kPieces))]);
          break;
        case 2:
          source.insert(at, source.substr(below(source.size() + 1), size * 5));
          break;
        default:
          if (at < source.size()) source[at] = static_cast<char>(below(256));
      }
    }
    failure_of(source).empty() ? ++rendered : ++failed;
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  EXPECT_GT(rendered, 50);
  EXPECT_GT(failed, 300);
  EXPECT_LT(seconds.count(), 60);
}

}  // namespace
}  // namespace primus::jinja
