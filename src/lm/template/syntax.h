// The syntax tree of a template.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lm/template/value.h"

namespace primus::jinja {

enum class ExpressionKind : std::uint8_t {
  kConstant,
  kName,
  kAttribute,  // children[0].name
  kItem,       // children[0][children[1]]
  kSlice,      // a subscript begin:end:step; absent parts are null
  kCall,       // children[0] called with `call`
  kFilter,     // children[0] | name; a null child means the text of a filter block
  kTest,       // children[0] is name
  kList,
  kTuple,
  kDict,  // children: key, value, key, value, ...
  kNot,
  kAnd,
  kOr,
  kCondition,  // children: condition, value, other value (null if absent)
  kCompare,    // children[0] signs[0] children[1] signs[1] children[2] ...
  kBinary,     // children[0] name children[1]
  kNegate,
  kPlus,
  kConcat,           // children joined as texts
  kNamespaceTarget,  // an assigned attribute of a namespace: name.attribute
};

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr list, mapping;  // *list and **mapping; may be null
};

struct Expression {
  ExpressionKind kind = ExpressionKind::kConstant;
  int line = 1;
  int depth = 1;  // levels of nesting
  std::string name, attribute;
  Value constant;
  std::vector<ExpressionPtr> children;
  std::vector<std::string> signs;
  std::unique_ptr<CallArguments> call;
};

enum class StatementKind : std::uint8_t {
  kText,
  kPrint,
  kIf,  // branches: (condition, body) ...; `otherwise`
  kFor,
  kSet,       // target = value
  kSetBlock,  // target = text of the body, through the filters of `value` if it is not null
  kMacro,
  kCall,  // the macro call `value` with the body as caller
  kFilterBlock,
  kWith,   // targets and values
  kScope,  // a body with its own variables
  kGeneration,
  kBreak,
  kContinue,
  kLoader,  // include, import, extends: an error at run time
};

struct Statement;
using Body = std::vector<std::unique_ptr<Statement>>;

// A macro or the caller of a call block.
struct MacroSyntax {
  std::string name;
  std::vector<std::string> parameters;
  std::vector<ExpressionPtr> defaults;  // default values of the last parameters
  bool uses_caller = false, uses_varargs = false, uses_kwargs = false;
};

struct Statement {
  StatementKind kind = StatementKind::kText;
  int line = 1;
  std::string text;
  ExpressionPtr target, value, condition;
  std::vector<std::pair<ExpressionPtr, Body>> branches;
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> assignments;
  Body body, otherwise;
  bool recursive = false;
  std::unique_ptr<MacroSyntax> macro;
};

}  // namespace primus::jinja
