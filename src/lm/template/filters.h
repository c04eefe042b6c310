// Tables of Jinja's filters, which filters_*.cpp define.
#pragma once

#include <map>
#include <string_view>

#include "lm/template/interpreter.h"

namespace primus::jinja {

using Filter = Value (*)(Interpreter& run, const Value& value, Args& args);
using FilterTable = std::map<std::string_view, Filter>;

const FilterTable& text_filters();
const FilterTable& sequence_filters();
// Filters that select, sort, group, map or add up elements, often by an attribute.
const FilterTable& selection_filters();

// Returns the attribute of `element` that `path` names, such as "function.name".
Value attribute_path(Interpreter& run, const Value& element, const Value& path);

}  // namespace primus::jinja
