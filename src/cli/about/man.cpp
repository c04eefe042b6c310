// primus man
#include <fmt/format.h>

#include "base/error.h"
#include "base/files/file.h"
#include "base/text/suggest.h"
#include "cli/command.h"
#include "cli/launch/mode.h"
#include "cli/manual.h"

namespace primus::cli {
namespace {

std::vector<Suggestion> command_words(std::string_view) {
  std::vector<Suggestion> words;
  for (const CommandEntry& entry : commands()) {
    words.push_back({manual_name(entry).substr(7), std::string(entry.summary)});
  }
  for (const ModeEntry& mode : modes()) {
    words.push_back({std::string(mode.about.name), std::string(mode.about.summary)});
  }
  return words;
}

class Man final : public Command {
 public:
  void declare(Arguments& args) override {
    Argument& command = args.positional("COMMAND", &command_,
                                        "command whose page is printed, e.g. train-pretrain or 'train "
                                        "pretrain' (default: the program itself)");
    command.required = false;
    command.suggest = command_words;
    args.option("--output,-o", "FOLDER", &output_, "write all pages to FOLDER, as primus.1 and so on");
    args.flag("--markdown", markdown_, "print the help of all commands as one Markdown document");
  }

  int run(Console& console) override {
    const int forms = int{!command_.empty()} + int{output_.has_value()} + int{markdown_};
    if (forms > 1) throw invalid("COMMAND, --output and --markdown exclude each other");
    if (output_) {
      write_all(*output_, console);
    } else {
      console.write(markdown_ ? commands_markdown() : page());
    }
    return 0;
  }

 private:
  static void write_all(const Path& folder, Console& console) {
    make_folders(folder);
    write_file_atomic(folder / "primus.1", program_manual());
    for (const CommandEntry& entry : commands()) {
      write_file_atomic(folder / (manual_name(entry) + ".1"), command_manual(entry));
    }
    for (const ModeEntry& mode : modes()) {
      write_file_atomic(folder / (manual_name(mode.about) + ".1"), mode_manual(mode));
    }
    console.print(fmt::format("{}: {} pages\n", folder.string(), commands().size() + modes().size() + 1));
  }

  std::string page() const {
    if (command_.empty()) return program_manual();
    std::string name;
    for (const std::string& word : command_) name += (name.empty() ? "" : "-") + word;
    std::vector<std::string> known;
    for (const CommandEntry& entry : commands()) {
      known.push_back(manual_name(entry).substr(7));
      if (known.back() == name) return command_manual(entry);
    }
    for (const ModeEntry& mode : modes()) {
      known.emplace_back(mode.about.name);
      if (known.back() == name) return mode_manual(mode);
    }
    const std::vector<std::string_view> names(known.begin(), known.end());
    const std::string near = did_you_mean(name, names);
    throw invalid(fmt::format("no manual page exists for '{}'", name),
                  near.empty() ? "'primus --help' lists the commands" : near);
  }

  std::vector<std::string> command_;
  std::optional<std::string> output_;
  bool markdown_ = false;
};

}  // namespace

extern const CommandEntry kMan{
    "man",
    "Prints manual pages, or writes them to a folder",
    "The pages have the same content as --help. 'man -l' shows one. 'man primus' finds pages in a folder "
    "named man1 below a folder of MANPATH. Existing files of the same names are replaced.",
    "primus man train-pretrain | man -l -\n"
    "primus man --output ~/.local/share/man/man1",
    make_command<Man>,
    {Section::kProgram, 2}};

}  // namespace primus::cli
