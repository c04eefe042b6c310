// primus data conversations: shows conversations as fine-tuning reads them, and the trained tokens.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/terminal/terminal.h"
#include "base/text/json_text.h"
#include "cli/command.h"
#include "lm/data/chat_template.h"
#include "lm/data/conversation_files.h"
#include "lm/generate/model_folder.h"
#include "lm/tokenizer/huggingface/side_files.h"

namespace primus::cli {
namespace {

// Marks that surround trained text in files and in output without colors.
constexpr std::string_view kBegin = "\u27E6", kEnd = "\u27E7";

class DataConversations final : public Command {
 public:
  void declare(Arguments& args) override {
    args.positional("FILE", &name_, "JSON lines, a JSON list, or a folder with train.jsonl");
    args.option("--format,-f", "FORMAT", &format_,
                "format of conversations (sft_conversation_format; auto: the model's chat template)")
        .choices = {"auto",   "alpaca",  "squad", "bridge_squad", "chatml", "messages", "openai",
                    "llama3", "mistral", "gemma", "phi3",         "phi4",   "zephyr"};
    args.option("--tokenizer,-t", "FILE", &tokenizer_, "tokenizer file, or the folder of a model or a run");
    args.option("--tokenizer-type", "TYPE", &type_, "kind of tokenizer, as in experiments");
    args.option("--split", "NAME", &split_, "split to read from a folder (sft_dataset_split)");
    args.option("--seq-length", "L", &seq_length_,
                "cut conversations at L tokens, as training does; the cut part is not learned");
    args.flag("--skip-bad", skip_bad_, "leave broken records out and count them (sft_skip_bad)");
    args.option("--show", "N", &show_, "number of conversations to show");
    args.flag("--inline-bos", inline_bos_, "prepare data as with the key sft_bridge_compat_inline_bos");
    args.flag("--json", json_, "print as JSON, with token ids");
  }

  int run(Console& console) override {
    if (type_.empty() && tokenizer_.empty()) {
      throw invalid(
          "there is no tokenizer",
          "name its file or the model's folder with --tokenizer; --tokenizer-type ByteTokenizer needs none");
    }
    if (show_ < 0) throw invalid(fmt::format("--show is {}", show_), "give 0 or more");
    if (seq_length_ < 0) throw invalid(fmt::format("--seq-length is {}", seq_length_), "give 1 or more");
    const auto tokenizer = load_named_tokenizer({type_, tokenizer_, {}, {}});
    console.notes(tokenizer->notes());
    data::ChosenStyle chosen = choose_style(*tokenizer);
    chosen.style.inline_bos = inline_bos_;
    const data::ConversationWriter writer(chosen.style, *tokenizer, "--format ");
    const data::ConversationFiles files = data::find_conversations(name_, split_);
    data::TokenizedConversations all = data::read_conversations(
        files.train, writer, {.vocab_size = tokenizer->vocab_size(), .skip_bad = skip_bad_});
    for (const std::string& note : {data::note_on_other_files(files, name_),
                                    data::note_on_skipped(all, name_), data::note_on_unused(all, name_)}) {
      if (!note.empty()) console.note("note: " + note);
    }
    for (const std::string& note : data::notes_on_content(all, name_)) console.note("warning: " + note);
    if (all.size() == 0)
      throw invalid(fmt::format("'{}' has no conversation", name_), "a conversation is one line of JSON");
    const std::string_view format = data::name_of(chosen.style.format);
    if (json_) {
      console.write(as_json(all, *tokenizer, chosen.style));
      return 0;
    }
    console.print(fmt::format("format: {} ({})\n\n", format, chosen.why));
    for (std::size_t i = 0; i < shown(all); ++i) show(console, all, i, *tokenizer);
    console.print(summary(all));
    return 0;
  }

 private:
  data::ChosenStyle choose_style(const Tokenizer& tokenizer) const {
    try {
      return data::choose_style(format_, tokenizer);
    } catch (Error& error) {
      const Path named = tokenizer_;
      const auto file =
          chat_template_file(std::filesystem::is_directory(named) ? named : named.parent_path());
      throw Error(error.kind(), error.what(), error.hint() + " (--format NAME)")
          .at(file.value_or("").string());
    }
  }

  // Returns the end of the part of a conversation that training reads.
  std::size_t kept_end(const data::TokenizedConversations& all, std::size_t i) const {
    const std::int64_t end = all.ends[i];
    return static_cast<std::size_t>(seq_length_ > 0 ? std::min(end, all.begin(i) + seq_length_ + 1) : end);
  }

  std::size_t shown(const data::TokenizedConversations& all) const {
    return std::min(all.size(), static_cast<std::size_t>(show_));
  }

  // Calls visit(text, learned) for each maximal run of tokens with the same loss mask.
  template <class Visit>
  void stretches(const data::TokenizedConversations& all, std::size_t i, const Tokenizer& tokenizer,
                 Visit visit) const {
    StreamDecoder decoder(tokenizer, /*skip_special=*/false);
    std::string text;
    bool learned = false;
    const std::size_t kept = kept_end(all, i);
    for (auto t = static_cast<std::size_t>(all.begin(i)); t < static_cast<std::size_t>(all.ends[i]); ++t) {
      const bool is = t < kept && all.learned[t] != 0;
      if (is != learned) {
        // If a character's bytes are split between two runs of tokens, the second run shows the character.
        visit(text, learned);
        text.clear();
        learned = is;
      }
      text += decoder.push(all.ids[t]);
    }
    visit(text + decoder.finish(), learned);
  }

  std::int64_t learned_in(const data::TokenizedConversations& all, std::size_t i) const {
    return std::count(all.learned.begin() + all.begin(i),
                      all.learned.begin() + static_cast<std::ptrdiff_t>(kept_end(all, i)), std::uint8_t{1});
  }

  void show(const Console& console, const data::TokenizedConversations& all, std::size_t i,
            const Tokenizer& tokenizer) const {
    console.print(Color::kBold, fmt::format("{}: {} tokens, {} learned\n", i + 1, all.ends[i] - all.begin(i),
                                            learned_in(all, i)));
    stretches(all, i, tokenizer, [&](const std::string& text, bool learned) {
      if (text.empty()) return;
      learned ? console.print(Color::kGreen, fmt::format("{}{}{}", kBegin, text, kEnd)) : console.print(text);
    });
    console.print("\n\n");
  }

  struct Totals {
    std::int64_t tokens = 0, learned = 0, longer = 0, nothing = 0;
    std::vector<std::int64_t> lengths;  // sorted
    std::int64_t at(double share) const {
      if (lengths.empty()) return 0;
      return lengths[std::min(lengths.size() - 1,
                              static_cast<std::size_t>(share * static_cast<double>(lengths.size())))];
    }
  };
  Totals totals(const data::TokenizedConversations& all) const {
    Totals t;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::int64_t length = all.ends[i] - all.begin(i), learned = learned_in(all, i);
      t.lengths.push_back(length);
      t.tokens += length;
      t.learned += learned;
      t.nothing += learned == 0 ? 1 : 0;
      t.longer += seq_length_ > 0 && length > seq_length_ + 1 ? 1 : 0;
    }
    std::ranges::sort(t.lengths);
    return t;
  }

  std::string summary(const data::TokenizedConversations& all) const {
    const Totals t = totals(all);
    std::string text = fmt::format(
        "{} conversations, {} tokens, of which {} are learned ({} ... {})\nlengths: median {}, 90th "
        "percentile {}, longest {}\n",
        all.size(), t.tokens, t.learned, kBegin, kEnd, t.at(0.5), t.at(0.9), t.at(1));
    if (t.nothing > 0) text += fmt::format("{} have no answer to learn, and are left out\n", t.nothing);
    if (seq_length_ == 0)
      text += "these counts are without the cut at seq_length: add --seq-length L to cut as training does\n";
    if (seq_length_ > 0)
      text += fmt::format("{} are longer than a sequence of {} tokens: their end is cut, and not learned\n",
                          t.longer, seq_length_);
    return text;
  }

  std::string as_json(const data::TokenizedConversations& all, const Tokenizer& tokenizer,
                      const data::ConversationStyle& style) const {
    const Totals t = totals(all);
    nlohmann::ordered_json json{{"format", data::name_of(style.format)},
                                {"chat_template", data::template_of(style, tokenizer)},
                                {"conversations", all.size()},
                                {"tokens", t.tokens},
                                {"learned_tokens", t.learned},
                                {"nothing_to_learn", t.nothing},
                                {"median_tokens", t.at(0.5)},
                                {"longest", t.at(1)},
                                {"skipped", all.skipped},
                                {"unused_keys", all.unused},
                                {"replaced_keys", all.replaced},
                                {"unanswered", all.unanswered}};
    if (seq_length_ > 0) json["longer_than_seq_length"] = t.longer;
    json["shown"] = nlohmann::ordered_json::array();
    for (std::size_t i = 0; i < shown(all); ++i) {
      nlohmann::ordered_json parts = nlohmann::ordered_json::array();
      stretches(all, i, tokenizer, [&](const std::string& text, bool learned) {
        if (!text.empty()) parts.push_back({{"text", text}, {"learned", learned}});
      });
      const auto begin = all.begin(i), end = all.ends[i];
      std::vector<int> learned(all.learned.begin() + begin, all.learned.begin() + end);
      std::fill(learned.begin() + (static_cast<std::int64_t>(kept_end(all, i)) - begin), learned.end(), 0);
      json["shown"].push_back({{"ids", std::vector(all.ids.begin() + begin, all.ids.begin() + end)},
                               {"learned", learned},
                               {"parts", parts}});
    }
    return json_text(json) + "\n";
  }

  std::string name_, tokenizer_, type_, format_ = "auto", split_ = "train";
  std::int64_t show_ = 3, seq_length_ = 0;
  bool inline_bos_ = false, skip_bad_ = false, json_ = false;
};

}  // namespace

extern const CommandEntry kDataConversations{
    "data conversations",
    "Shows conversations as fine-tuning reads them, and marks the learned text",
    "Reads the whole file, and reports the place of its first error. In fine-tuning, the model "
    "learns the assistant's texts and the tokens that end them. docs/posttrain.md lists the formats; "
    "docs/formats/conversations.md "
    "describes the files. Without --format, the format is the one that 'train posttrain' chooses for this "
    "tokenizer.",
    "primus data conversations train.jsonl --tokenizer path/to/model\n"
    "primus data conversations data/ --tokenizer path/to/model --format chatml --seq-length 2048 --show 10\n"
    "primus data conversations train.jsonl --tokenizer-type ByteTokenizer --json",
    make_command<DataConversations>,
    {Section::kData, 3}};

}  // namespace primus::cli
