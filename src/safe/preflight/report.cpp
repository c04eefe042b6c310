#include "safe/preflight/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/text/counted.h"

namespace primus::preflight {
namespace {

struct Place {
  const NodeReport* node;  // null: the finding comes from the comparison of nodes
  const Finding* finding;
};

std::vector<Place> places_of(const Report& report) {
  std::vector<Place> places;
  for (const NodeReport& node : report.nodes)
    for (const Finding& finding : node.findings) places.push_back({&node, &finding});
  for (const Finding& finding : report.cluster) places.push_back({nullptr, &finding});
  return places;
}

// Returns the name of the finding's machine if the report covers several machines.
std::string owner(const Report& report, const Place& place) {
  if (report.nodes.size() < 2 || !place.node) return {};
  return fmt::format("{}, rank {}: ", place.node->host, place.node->rank);
}

std::string in_capitals(Verdict verdict) {
  std::string name(name_of(verdict));
  for (char& c : name) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

Color color_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kPass:
      return Color::kGreen;
    case Verdict::kSkip:
      return Color::kDim;
    case Verdict::kWarn:
      return Color::kYellow;
    default:
      return Color::kRed;
  }
}

std::string asked(const Finding& finding) {
  if (finding.wanted.empty()) return {};
  return finding.source.empty() ? finding.wanted : fmt::format("{} ({})", finding.wanted, finding.source);
}

std::string value_of(const Measurement& m) { return fmt::format("{:.4g} {}", m.value, m.unit); }

std::string conclusion(const Report& report) {
  const Tally tally = tally_of(report);
  const std::string counts =
      fmt::format("{} passed, {} skipped", counted(tally.passed, "check"), tally.skipped);
  if (report.verdict() == Verdict::kFail)
    return fmt::format("NOT READY: {}, {} ({})", counted(tally.failed, "failure"),
                       counted(tally.warned, "warning"), counts);
  if (tally.warned > 0) return fmt::format("READY, with {} ({})", counted(tally.warned, "warning"), counts);
  return fmt::format("READY ({})", counts);
}

// Escapes a Markdown table cell: '|' would end the cell, and '<' would begin an HTML element.
std::string cell(const std::string& text) {
  std::string result;
  for (const char c : printable(text)) {
    if (c == '|' || c == '\\' || c == '<' || c == '`' || c == '*' || c == '_') result += '\\';
    result += c == '\n' ? ' ' : c;
  }
  return result;
}

}  // namespace

Verdict Report::verdict() const {
  if (nodes.empty()) return Verdict::kFail;
  Verdict worst = cluster.empty() ? Verdict::kPass : verdict_of(cluster);
  for (const NodeReport& node : nodes) worst = std::max(worst, verdict_of(node.findings));
  return worst;
}

bool Report::has_stuck_threads() const {
  return std::any_of(nodes.begin(), nodes.end(),
                     [](const NodeReport& node) { return node.has_stuck_threads; });
}

Tally tally_of(const Report& report) {
  Tally tally;
  for (const Place& place : places_of(report)) {
    switch (place.finding->verdict) {
      case Verdict::kPass:
        ++tally.passed;
        break;
      case Verdict::kSkip:
        ++tally.skipped;
        break;
      case Verdict::kWarn:
        ++tally.warned;
        break;
      case Verdict::kFail:
        ++tally.failed;
        break;
    }
  }
  return tally;
}

std::string to_text(const Report& report, const Terminal& terminal, bool all) {
  std::string text = paint(terminal, Color::kBold, report.title) + fmt::format("  {}\n\n", report.generated);
  for (const std::string& note : report.notes) text += "note: " + note + "\n";
  const std::vector<Place> places = places_of(report);
  for (const Place& place : places) {
    const Finding& f = *place.finding;
    const bool trouble = f.verdict >= Verdict::kWarn;
    if (!all && !trouble) continue;
    const std::string where = f.where.empty() ? "" : f.where + ": ";
    // Omits the place if the text `measured` already begins with it.
    const std::string prefix = f.measured.starts_with(f.where) ? "" : where;
    text += fmt::format("{}  {:<26} {}{}{}\n", paint(terminal, color_of(f.verdict), in_capitals(f.verdict)),
                        f.check, owner(report, place), prefix, printable(f.measured));
    if (!trouble) continue;
    if (!f.wanted.empty()) text += fmt::format("      wanted: {}\n", printable(asked(f)));
    if (!f.fix.empty()) text += fmt::format("      to do:  {}\n", printable(f.fix));
  }
  if (!all) {
    // Adds one line per category, with the numbers of passed and skipped checks.
    std::map<std::string, std::pair<int, int>> categories;
    for (const Place& place : places) {
      auto& [passed, skipped] = categories[place.finding->category];
      passed += place.finding->verdict == Verdict::kPass;
      skipped += place.finding->verdict == Verdict::kSkip;
    }
    text += "\n";
    for (const auto& [category, counts] : categories)
      text += fmt::format("{:<14} {} passed, {} skipped\n", category, counts.first, counts.second);
    if (tally_of(report).skipped > 0) text += "--all-checks shows them, and why checks were skipped\n";
  }
  bool any = false;
  for (const NodeReport& node : report.nodes) {
    for (const Measurement& m : node.measurements) {
      if (!any) text += "\n";
      any = true;
      const std::string place =
          report.nodes.size() > 1 ? fmt::format("{} rank {}, {}", node.host, node.rank, m.where) : m.where;
      text += fmt::format("{:<34} {:<24} {:>16}{}\n", m.name, place, value_of(m),
                          m.wanted > 0 ? fmt::format("  (at least {:.4g})", m.wanted) : "");
    }
  }
  text += fmt::format("\n{}  in {}\n", paint(terminal, color_of(report.verdict()), conclusion(report)),
                      human_duration(report.seconds));
  return text;
}

std::string to_markdown(const Report& report) {
  std::string text =
      fmt::format("# {}\n\n{}, primus {}\n\n**{}** in {}\n", cell(report.title), report.generated,
                  report.version, conclusion(report), human_duration(report.seconds));
  for (const std::string& note : report.notes) text += fmt::format("\n> Note: {}\n", cell(note));
  text += "\n## Nodes\n\n| rank | node | verdict | checks failed | time |\n|---|---|---|---|---|\n";
  for (const NodeReport& node : report.nodes) {
    std::string failed;
    for (const Finding& f : node.findings)
      if (f.verdict == Verdict::kFail && failed.find(f.check) == std::string::npos)
        failed += (failed.empty() ? "" : ", ") + f.check;
    text += fmt::format("| {} | {} | {} | {} | {} |\n", node.rank, cell(node.host),
                        in_capitals(verdict_of(node.findings)), failed, human_duration(node.seconds));
  }
  text +=
      "\n## Findings\n\n| verdict | node | check | where | found | wanted | to do "
      "|\n|---|---|---|---|---|---|---|\n";
  std::vector<Place> places = places_of(report);
  std::stable_sort(places.begin(), places.end(),
                   [](const Place& a, const Place& b) { return a.finding->verdict > b.finding->verdict; });
  for (const Place& place : places) {
    const Finding& f = *place.finding;
    text += fmt::format("| {} | {} | {} | {} | {} | {} | {} |\n", in_capitals(f.verdict),
                        place.node ? cell(place.node->host) : "all", f.check, cell(f.where), cell(f.measured),
                        cell(asked(f)), cell(f.fix));
  }
  bool any = false;
  for (const NodeReport& node : report.nodes) {
    for (const Measurement& m : node.measurements) {
      if (!any)
        text +=
            "\n## Measurements\n\n| node | rank | what | where | measured | at least "
            "|\n|---|---|---|---|---|---|\n";
      any = true;
      text += fmt::format("| {} | {} | {} | {} | {} | {} |\n", cell(node.host), node.rank, cell(m.name),
                          cell(m.where), value_of(m), m.wanted > 0 ? fmt::format("{:.4g}", m.wanted) : "");
    }
  }
  text += "\n## Inventory\n\n| node | section | what | value |\n|---|---|---|---|\n";
  for (const NodeReport& node : report.nodes)
    for (const Fact& fact : node.facts)
      text += fmt::format("| {} | {} | {} | {} |\n", cell(node.host), fact.category, cell(fact.name),
                          cell(fact.value));
  return text;
}

nlohmann::ordered_json to_json(const Report& report) {
  const Tally tally = tally_of(report);
  nlohmann::ordered_json json{{"title", report.title},
                              {"generated", report.generated},
                              {"version", report.version},
                              {"verdict", name_of(report.verdict())},
                              {"passed", tally.passed},
                              {"skipped", tally.skipped},
                              {"warnings", tally.warned},
                              {"failures", tally.failed},
                              {"seconds", report.seconds},
                              {"notes", report.notes},
                              {"nodes", nlohmann::ordered_json::array()}};
  for (const NodeReport& node : report.nodes) json["nodes"].push_back(to_json(node));
  // Converts the findings of the comparison with the function for a node's findings.
  json["cluster"] = to_json(NodeReport{.host = "all", .findings = report.cluster})["findings"];
  return json;
}

}  // namespace primus::preflight
