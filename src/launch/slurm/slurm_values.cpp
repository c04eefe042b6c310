#include "launch/slurm/slurm_values.h"

#include <algorithm>

#include "launch/node/node.h"

namespace primus::launch::forms {

bool is_node_range(View text) {
  const std::size_t step = text.find(':');
  if (step != View::npos && !within(text.substr(step + 1), 1, kMaxInt)) return false;
  const View range = text.substr(0, step);
  const std::size_t dash = range.find('-');
  const auto minimum = counted(range.substr(0, dash));
  if (dash == View::npos) return minimum && step == View::npos;
  const auto maximum = counted(range.substr(dash + 1));
  return minimum && maximum && *minimum <= *maximum;
}

bool is_slurm_time(View text) {
  if (text == "-1" || is_listed(text, "infinite|unlimited")) return true;
  int numbers = 0, dashes = 0, colons = 0;
  bool in_number = false;
  for (const char c : text) {
    if (is_digit(c)) {
      numbers += !in_number;
      in_number = true;
      continue;
    }
    in_number = false;
    if (c == '-' && colons == 0) {
      ++dashes;
    } else if (c == ':') {
      ++colons;
    } else {
      return false;
    }
  }
  // The number after '-' may be missing: "2-" means two days.
  return numbers > 0 && dashes <= 1 && colons <= 2 && (colons == 0 || numbers == dashes + colons + 1);
}

bool is_megabytes(View text) {
  std::size_t at = 0;
  while (at < text.size() && is_digit(text[at])) ++at;
  const std::string unit = lower(text.substr(at));
  return at > 0 && (unit.empty() || is_one_of(unit, {"k", "m", "g", "t", "kb", "mb", "gb", "tb"}));
}

namespace {

bool is_clock(View text) {
  const auto parts = split(text, ":");
  constexpr std::int64_t kMax[] = {24, 59, 59};
  if (parts.size() < 2 || parts.size() > 3) return false;
  for (std::size_t i = 0; i < parts.size(); ++i)
    if (parts[i].size() > 2 || !within(parts[i], 0, kMax[i]) || !all_digits(parts[i])) return false;
  return true;
}

}  // namespace

namespace {

bool is_date(View text) {
  if (all_digits(text)) return text.size() == 4 || text.size() == 6;  // MMDD, MMDDYY
  const char separator = text.find('-') != View::npos ? '-' : text.find('/') != View::npos ? '/' : '.';
  const auto parts = split(text, View(&separator, 1));
  return std::ranges::all_of(parts, all_digits) &&
         (separator == '-' ? parts.size() == 3 && parts[0].size() == 4
                           : parts.size() == 2 || parts.size() == 3);
}

}  // namespace

bool is_moment(View given) {
  std::string text = lower(given);
  if (text.starts_with("now")) {
    View more = View(text).substr(3);
    if (more.empty()) return true;
    if (more[0] != '+' && more[0] != '-') return false;
    more.remove_prefix(1);
    std::size_t digits = 0;
    while (digits < more.size() && is_digit(more[digits])) ++digits;
    const View unit = more.substr(digits);
    return digits > 0 && (unit.empty() || View("smhdw").find(unit[0]) != View::npos) &&
           std::ranges::all_of(unit, is_letter);
  }
  if (text.starts_with("uts")) return all_digits(View(text).substr(3));
  for (const View word : {"today", "tomorrow", "midnight", "noon", "fika", "teatime", "elevenses"})
    if (text.starts_with(word)) return true;
  if (text.ends_with("am") || text.ends_with("pm")) {
    text.resize(text.size() - 2);
    if (text.ends_with(' ')) text.pop_back();
    if (text.find(':') == std::string::npos) return false;
  }
  int clocks = 0, dates = 0;
  for (const View part : split(text, "t ")) {
    if (is_clock(part)) {
      ++clocks;
    } else if (is_date(part)) {
      ++dates;
    } else {
      return false;
    }
  }
  return clocks <= 1 && dates <= 1;
}

namespace {

// Returns whether `text` is "[name:]...[count]" with at most `maximum` parts; the last of `maximum` parts
// must be a count. Types may begin with a digit ("1g.10gb").
bool is_resource(View text, std::size_t maximum) {
  const auto parts = split(text, ":");
  if (parts.size() > maximum) return false;
  if (std::ranges::any_of(parts, [](View part) { return part.empty() || part[0] == '-' || part[0] == '+'; }))
    return false;
  View count = parts.back();
  if (View("kmgtp").find(lower(count.back())) != View::npos) count.remove_suffix(1);
  return parts.size() < maximum || maximum == 1 || all_digits(count);
}

}  // namespace

bool is_gpu_count(View text) {
  return all_parts(text, ",", [](View part) { return is_resource(part, 2); });
}
bool is_resources(View text) {
  return all_parts(text, ",", [](View part) {
    const bool named = part.starts_with("gres:") || part.starts_with("gres/");
    const View name = named ? part.substr(5) : part;
    return !name.empty() && !is_digit(name[0]) && is_resource(name, 3);
  });
}

bool is_warning(View text, View letters) {
  if (const std::size_t colon = text.find(':'); colon != View::npos) {
    const View which = text.substr(0, colon);
    if (which.empty() || which.find_first_not_of(letters) != View::npos) return false;
    text.remove_prefix(colon + 1);
  }
  const std::size_t at = text.find('@');
  return is_signal(text.substr(0, at)) &&
         (at == View::npos || at + 1 == text.size() || within(text.substr(at + 1), 0, 65535));
}

bool is_distribution(View text) {
  const auto parts = split(text, ",");
  if (parts.size() > 2 || (parts.size() == 2 && !is_listed(parts[1], "pack|nopack"))) return false;
  const auto levels = split(parts[0], ":");
  if (levels.size() > 3) return false;
  if (levels.size() == 1 && is_listed(levels[0], "pack|nopack")) return true;
  for (std::size_t i = 0; i < levels.size(); ++i) {
    const View level = levels[i];
    if (i == 0 && lower(level).starts_with("plane=")) {
      if (!within(level.substr(6), 1, kMaxInt)) return false;
    } else if (!is_listed(level, i == 0 ? "block|cyclic|arbitrary|plane|*" : "block|cyclic|fcyclic|*")) {
      return false;
    }
  }
  return true;
}

namespace {

bool is_job_number(View text) {
  const std::size_t delay = text.find('+');
  if (delay != View::npos && !all_digits(text.substr(delay + 1))) return false;
  text = text.substr(0, delay);
  const std::size_t task = text.find('_');
  if (task != View::npos && text.substr(task + 1) != "*" && !all_digits(text.substr(task + 1))) return false;
  return all_digits(text.substr(0, task));
}

}  // namespace

bool is_dependency(View text) {
  return all_parts(text, ",?", [](View part) {
    if (is_listed(part, "singleton")) return true;
    auto words = split(part, ":");
    if (!all_digits(words[0])) {
      if (!is_listed(words[0], "after|afterany|afterburstbuffer|aftercorr|afternotok|afterok|expand"))
        return false;
      words.erase(words.begin());
    }
    return !words.empty() && std::ranges::all_of(words, is_job_number);
  });
}

bool is_array(View text) {
  text = text.substr(0, text.find('%'));  // after '%' comes a limit of concurrent tasks, for which Slurm
                                          // accepts any text
  return all_parts(text, ",", [](View part) {
    const std::size_t step = part.find(':');
    if (step != View::npos && !within(part.substr(step + 1), 1, kMaxInt)) return false;
    const View range = part.substr(0, step);
    const std::size_t dash = range.find('-');
    if (!all_digits(range.substr(0, dash))) return false;
    if (dash == View::npos) return step == View::npos;
    return all_digits(range.substr(dash + 1)) &&
           *whole(range.substr(0, dash)) <= *whole(range.substr(dash + 1));
  });
}

bool is_cores(View text) {
  return all_parts(text, ":", [](View part) { return part == "*" || is_node_range(part); });
}

bool is_frequency(View text) {
  return all_parts(text, "-:", [](View part) {
    return (!part.empty() && is_digit(part[0])) ||
           is_listed(
               part,
               "low|medium|high|highm1|conservative|ondemand|performance|powersave|schedutil|userspace");
  });
}

bool is_sampling(View text) {
  return all_parts(text, ",", [](View part) {
    const std::size_t equals = part.find('=');
    if (equals == View::npos) return all_digits(part);
    return is_listed(part.substr(0, equals), "task|energy|network|filesystem") &&
           all_digits(part.substr(equals + 1));
  });
}

bool is_binding(View text, View types) {
  for (const View part : split(text, ","))
    if (!is_listed(part, "verbose|v|quiet|q")) return is_listed(part.substr(0, part.find(':')), types);
  return true;
}

bool is_node_list(View text) {
  if (text.find('/') != View::npos) return is_file(text);
  try {
    expand_nodes(text);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace primus::launch::forms
