#include "launch/kubernetes/kubernetes_values.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "launch/options/assignment.h"

namespace primus::launch::forms {

bool is_quantity(View text) {
  std::size_t number = 0;
  while (number < text.size() && (is_digit(text[number]) || text[number] == '.')) ++number;
  const View unit = text.substr(number);
  if (number == 0 || decimal(text.substr(0, number)) != number) return false;
  if (is_one_of(unit, {"", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"}))
    return true;
  return lower(unit[0]) == 'e' && decimal(text) == text.size();
}

double value_of_quantity(View text) {
  std::size_t used = 0;
  const double number = std::stod(std::string(text), &used);  // also reads exponents
  const View unit = text.substr(used);
  if (unit.empty()) return number;
  constexpr View kSmall = "num", kLarge = "kMGTPE";
  if (const std::size_t place = kSmall.find(unit); place != View::npos)
    return number * std::pow(1e3, static_cast<double>(place) - 3);
  const bool binary = unit.ends_with('i');
  const std::size_t place = unit[0] == 'K' ? 0 : kLarge.find(unit[0]);
  return number * std::pow(binary ? 1024.0 : 1e3, static_cast<double>(place) + 1);
}

bool is_dns_name(View text) {
  return text.size() <= 253 && all_parts(text, ".", [](View part) {
           const auto fits = [](char c) { return (c >= 'a' && c <= 'z') || is_digit(c); };
           return !part.empty() && part.size() <= 63 && fits(part.front()) && fits(part.back()) &&
                  std::ranges::all_of(part, [&](char c) { return fits(c) || c == '-'; });
         });
}
bool is_label_name(View text) {
  const std::size_t slash = text.find('/');
  if (slash != View::npos && !is_dns_name(text.substr(0, slash))) return false;
  const View name = slash == View::npos ? text : text.substr(slash + 1);
  const auto fits = [](char c) { return is_letter(c) || is_digit(c); };
  return !name.empty() && name.size() <= 63 && fits(name.front()) && fits(name.back()) &&
         std::ranges::all_of(name, [&](char c) { return fits(c) || c == '-' || c == '_' || c == '.'; });
}

bool is_resource_name(View text) {
  const std::size_t slash = text.find('/');
  return slash != View::npos && slash > 0 && is_label_name(text);
}
bool is_pod_volume(View text) {
  const std::size_t colon = text.find(':');
  const View from = text.substr(0, colon);
  View inside = colon == View::npos ? from : text.substr(colon + 1);
  if (inside.ends_with(":ro")) inside.remove_suffix(3);
  const bool is_claim = from.starts_with("pvc/") && is_dns_name(from.substr(4));
  return (is_claim || from.starts_with('/')) && inside.starts_with('/') && inside.find(':') == View::npos;
}
bool is_secret_ref(View text) {
  const std::size_t equals = text.find('='), slash = text.find('/', equals);
  if (equals == View::npos) return is_dns_name(text);
  return is_variable_name(text.substr(0, equals)) && slash != View::npos && slash + 1 < text.size() &&
         is_dns_name(text.substr(equals + 1, slash - equals - 1));
}

}  // namespace primus::launch::forms
