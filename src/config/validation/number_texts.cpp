#include "config/validation/number_texts.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <system_error>

namespace primus::config {

bool is_split(std::string_view text) {
  double sum = 0;
  int shares = 0;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    std::string_view share = text.substr(begin, end - begin);
    while (!share.empty() && share.front() == ' ') share.remove_prefix(1);
    while (!share.empty() && share.back() == ' ') share.remove_suffix(1);
    double x = 0;
    const auto [stop, error] = std::from_chars(share.data(), share.data() + share.size(), x);
    if (share.empty() || error != std::errc() || stop != share.data() + share.size()) return false;
    if (!std::isfinite(x) || x < 0 || ++shares > 3) return false;
    sum += x;
    begin = end + 1;
  }
  return sum > 0;
}

bool is_range(const std::vector<std::string>& texts) {
  std::vector<double> numbers;
  for (const std::string& text : texts) {
    double number = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || stop != text.data() + text.size()) return false;
    numbers.push_back(number);
  }
  return numbers.size() == 2 && numbers[0] < numbers[1];
}

}  // namespace primus::config
