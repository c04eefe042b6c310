// primus data render: compares chat templates with the texts that transformers renders.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files/file.h"
#include "base/terminal/terminal.h"
#include "base/text/json_text.h"
#include "cli/command.h"
#include "lm/template/cases.h"

namespace primus::cli {
namespace {

class DataRender final : public Command {
 public:
  void declare(Arguments& args) override {
    args.option("--templates", "FILE", &file_, "JSON with templates and the expected texts or errors")
        .required = true;
    args.option("--show", "N", &show_, "number of failed cases to show").between(0, 1e9);
    args.flag("--json", json_, "print as JSON");
  }

  int run(Console& console) override {
    const jinja::CaseReport report = jinja::check_cases(read_file(file_), file_);
    const auto held = report.cases - static_cast<std::int64_t>(report.failed.size());
    const auto shown = std::min(report.failed.size(), static_cast<std::size_t>(show_));
    if (json_) {
      nlohmann::ordered_json json{{"cases", report.cases},
                                  {"held", held},
                                  {"other_errors", report.other_errors},
                                  {"failed", nlohmann::ordered_json::array()}};
      for (const jinja::FailedCase& failed : report.failed)
        json["failed"].push_back(
            {{"case", failed.name}, {"expected", failed.expected}, {"found", failed.found}});
      console.write(json_text(json) + "\n");
    } else {
      for (std::size_t i = 0; i < shown; ++i) {
        const jinja::FailedCase& failed = report.failed[i];
        console.print(
            fmt::format("{}\nexpected: {}\nfound: {}\n\n", failed.name, failed.expected, failed.found));
      }
      console.print(fmt::format("{} of {} cases hold\n", held, report.cases));
    }
    return report.failed.empty() && report.cases > 0 ? 0 : 1;
  }

 private:
  std::string file_;
  std::int64_t show_ = 3;
  bool json_ = false;
};

}  // namespace

extern const CommandEntry kDataRender{
    "data render",
    "Compares rendered chat templates with the results of transformers",
    "FILE is a JSON list of programs, each with 'template', 'data', and 'text' or 'error'; or an object with "
    "'conversations' and 'templates', as docs/formats/conversations.md describes. The exit code is 0 only if "
    "every case passes.",
    "primus data render --templates templates.json\nprimus data render --templates jinja.json --json",
    make_command<DataRender>,
    {Section::kData, 9}};

}  // namespace primus::cli
