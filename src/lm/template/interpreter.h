// Executes a parsed template. Used by template.h and by the files of this folder that define filters, tests,
// methods and functions.
//
// One Interpreter renders once, on one thread. Errors: Failure.
#pragma once

#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lm/template/budget.h"
#include "lm/template/syntax.h"
#include "lm/template/value.h"

namespace primus::jinja {

// Variables of a template, a loop's iteration or a macro's call.
struct Scope {
  Value* find(std::string_view name);
  void set(std::string_view name, Value value);

  std::shared_ptr<Scope> parent;
  std::vector<std::pair<std::string, Value>> variables;
};

struct MacroObject : Object {
  const MacroSyntax* syntax = nullptr;
  const Body* body = nullptr;
  std::shared_ptr<Scope> scope;
};

// The variable `loop`.
struct LoopObject : Object {
  std::vector<Value> source;  // all elements; the loop's condition is not yet applied to those from `read` on
  std::size_t read = 0;
  std::vector<Value> accepted;  // elements for which the condition was true so far
  std::size_t index = 0;        // index of the current element in `accepted`
  int depth = 1;
  const Statement* statement = nullptr;
  std::shared_ptr<Scope> scope;  // the scope that contains the loop
  Value last_changed;
  bool has_changed = false;
};

struct Span {
  std::int64_t begin = 0, end = 0;  // positions in characters
};

class Interpreter {
 public:
  Interpreter(const Limits& limits, const std::tm& now) : budget_(limits), now_(now) {}
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  // Returns the text; `spans` receives the ranges of generation blocks.
  std::string render(const Body& body, std::vector<std::pair<std::string, Value>> variables,
                     std::vector<Span>& spans);

  Budget& budget() { return budget_; }
  const std::tm& now() const { return now_; }
  Value text(std::string value) { return make_text(budget_, std::move(value)); }
  std::string str(const Value& value) { return str_of(budget_, value); }
  std::vector<Value> elements(const Value& value);

  // Return object.name and object[key] as Jinja's sandbox allows them; undefined if absent.
  Value attribute(const Value& object, const std::string& name);
  Value item(const Value& object, const Value& key);
  Value call(const Value& callee, Args& args);
  Value method(const Value& self, const std::string& name, Args& args);
  Value filter(const std::string& name, const Value& input, Args& args);
  bool test(const std::string& name, const Value& input, Args& args);

  // Keeps a namespace until the rendering ends. The destructor then releases cycles through the namespace.
  Value keep(std::shared_ptr<NamespaceObject> made);

 private:
  enum class Flow : std::uint8_t { kNormal, kBreak, kContinue };

  // Execute statements, or parts of statements (interpreter.cpp).
  Flow run(const Body& body);
  Flow run(const Statement& statement);
  Flow run_if(const Statement& statement);
  Flow run_loop(const Statement& statement);
  Flow iterate(const Statement& statement, std::vector<Value> source, const std::shared_ptr<Scope>& scope,
               int depth);
  void run_scoped(const Statement& statement);
  void run_with(const Statement& statement);
  void run_call(const Statement& statement);
  void run_generation(const Statement& statement);
  Value define(const Statement& statement);
  std::string capture(const Body& body);
  void assign(const Expression& target, const Value& value);
  void write(std::string_view text);

  // Implement the variable `loop`, and calls of macros (loop.cpp).
  bool accept(LoopObject& loop, std::size_t count);
  Value loop_attribute(const Value& self, const std::string& name);
  Value call_loop(LoopObject& loop, Args& args);
  Value call_macro(const Value& callee, Args& args);

  // Evaluate expressions (evaluate.cpp).
  Value evaluate(const Expression& node);
  Value evaluate_plain(const Expression& node);
  Value evaluate_logic(const Expression& node);
  Value evaluate_container(const Expression& node);
  Value evaluate_call(const Expression& node, const Value* caller);
  Value evaluate_filter(const Expression& node, const Value* block);
  Value slice(const Value& object, const Expression& node);
  bool compare(const Expression& node);
  Value lookup(const std::string& name);
  Args arguments_of(const CallArguments& call);

  Budget budget_;
  std::tm now_;
  std::shared_ptr<Scope> scope_;
  std::string* out_ = nullptr;
  std::string* root_ = nullptr;  // the rendered text, which spans refer to
  std::vector<Span>* spans_ = nullptr;
  std::vector<std::shared_ptr<NamespaceObject>> namespaces_;
  std::vector<std::shared_ptr<Scope>> captured_;  // scopes of macros
};

// Names for the parser, and the functions that every template can call (globals.cpp).
bool is_filter(std::string_view name);
bool is_test(std::string_view name);
const Value* global(std::string_view name);

// Apply Python's operators (operators.cpp).
Value binary(Interpreter& run, const std::string& sign, const Value& a, const Value& b);
Value negate(const Value& value);
bool contains(Interpreter& run, const Value& container, const Value& value);
// Returns the positions that Python's slice selects from `size` elements. `step` must not be 0.
std::vector<std::int64_t> slice_positions(Interpreter& run, std::int64_t size, const Value& begin,
                                          const Value& end, const Value& step);

// Return `text % value` and text.format(...) (formatting.cpp).
Value format_percent(Interpreter& run, const Value& text, const Value& value);
Value format_braces(Interpreter& run, const Value& text, Args& args);
// Returns Python's format(value, specification).
std::string format_value(Interpreter& run, const Value& value, std::string_view specification);

}  // namespace primus::jinja
