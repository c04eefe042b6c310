// primus data conversations: shows conversations as fine-tuning reads them, and the trained tokens.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

#include "base/error.h"
#include "base/terminal/terminal.h"
#include "base/text/counted.h"
#include "base/text/json_text.h"
#include "cli/command.h"
#include "lm/data/chat_template.h"
#include "lm/data/conversation_files.h"
#include "lm/data/preference_dataset.h"
#include "lm/data/prompt_dataset.h"
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
    args.option("--stage", "STAGE", &stage_,
                "training that reads the file (auto: dpo for pairs, kto for answers with a label, else sft)")
        .choices = {"auto", "sft", "dpo", "kto", "orpo", "cpo", "reward", "distill", "grpo", "rloo", "ppo"};
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
    const data::ConversationFiles files = data::find_conversations(name_, split_);
    if (const std::string note = data::note_on_other_files(files, name_); !note.empty())
      console.note("note: " + note);
    if (stage_ == "grpo" || stage_ == "rloo" || stage_ == "ppo") return show_prompts(*tokenizer, console);
    data::ChosenStyle chosen = choose_style(*tokenizer);
    chosen.style.inline_bos = inline_bos_;
    const data::ConversationWriter writer(chosen.style, *tokenizer, "--format ");
    if (const auto kind = preference_kind(files))
      return show_preferences(files, *kind, writer, *tokenizer, chosen, console);
    data::TokenizedConversations all = data::read_conversations(
        files.train, writer, {.vocab_size = tokenizer->vocab_size(), .skip_bad = skip_bad_});
    report(all, console);
    const std::string_view format = data::name_of(chosen.style.format);
    if (json_) {
      console.write(as_json(all, *tokenizer, chosen.style));
      return 0;
    }
    console.print(fmt::format("format: {} ({})\n\n", format, chosen.why));
    for (std::size_t i = 0; i < shown(all); ++i) show(console, all, i, *tokenizer, i);
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

  // Prints notes on the records. Throws if there are none.
  void report(const data::TokenizedConversations& all, const Console& console) const {
    for (const std::string& note : {data::note_on_skipped(all, name_), data::note_on_unused(all, name_)}) {
      if (!note.empty()) console.note("note: " + note);
    }
    for (const std::string& note : data::notes_on_content(all, name_)) console.note("warning: " + note);
    if (all.size() == 0)
      throw invalid(fmt::format("'{}' has no conversation", name_), "a conversation is one line of JSON");
  }

  // Returns the kind of preference data to show, or nullopt for conversations.
  std::optional<data::PreferenceKind> preference_kind(const data::ConversationFiles& files) const {
    if (stage_ == "auto") return data::kind_of_first_record(files.train);
    constexpr auto kOfPairs = std::to_array<std::string_view>({"dpo", "orpo", "cpo", "reward"});
    if (std::ranges::find(kOfPairs, stage_) != kOfPairs.end()) return data::PreferenceKind::kPairs;
    if (stage_ == "kto") return data::PreferenceKind::kLabelled;
    return std::nullopt;
  }

  void refuse_seq_length() const {
    if (seq_length_ == 0) return;
    throw invalid("--seq-length cuts only conversations, but the file is shown with its whole answers",
                  "remove --seq-length; a training run reports how many records seq_length cuts");
  }

  int show_preferences(const data::ConversationFiles& files, data::PreferenceKind kind,
                       const data::ConversationWriter& writer, const Tokenizer& tokenizer,
                       const data::ChosenStyle& chosen, Console& console) const {
    refuse_seq_length();
    const bool pairs = kind == data::PreferenceKind::kPairs;
    const data::TokenizedPreferences all = data::read_preferences(
        files.train, kind, writer, {.vocab_size = tokenizer.vocab_size(), .skip_bad = skip_bad_});
    const data::TokenizedConversations& texts = all.texts;
    report(texts, console);
    if (const std::int64_t count = pairs ? data::contradicting_pairs(all) : 0; count > 0) {
      console.note(
          fmt::format("warning: {}: {} pairs contradict each other: the answer that one of them "
                      "chooses, another one rejects for the same prompt",
                      name_, count));
    }
    const std::size_t step = pairs ? 2 : 1, count = texts.size() / step;
    const auto title = [&](std::size_t i) -> std::string_view {
      if (pairs) return all.preferred[i] != 0 ? "chosen" : "rejected";
      return all.preferred[i] != 0 ? "good" : "bad";
    };
    const std::size_t most = std::min(count, static_cast<std::size_t>(show_));
    if (json_) {
      nlohmann::ordered_json json{
          {"stage", pairs ? "dpo" : "kto"},     {"format", data::name_of(chosen.style.format)},
          {pairs ? "pairs" : "answers", count}, {"skipped", texts.skipped},
          {"unused_keys", texts.unused},        {"shown", nlohmann::ordered_json::array()}};
      for (std::size_t i = 0; i < most; ++i) {
        nlohmann::ordered_json record;
        for (std::size_t t = step * i; t < step * (i + 1); ++t)
          record[title(t)] = text_json(texts, t, tokenizer);
        json["shown"].push_back(record);
      }
      console.write(json_text(json) + "\n");
      return 0;
    }
    console.print(fmt::format("shown as 'train {}' reads the file; format: {} ({})\n\n",
                              pairs ? "dpo" : "kto", data::name_of(chosen.style.format), chosen.why));
    for (std::size_t i = 0; i < most; ++i) {
      for (std::size_t t = step * i; t < step * (i + 1); ++t) show(console, texts, t, tokenizer, i, title(t));
    }
    console.print(summary_of_preferences(all, pairs));
    return 0;
  }

  std::string summary_of_preferences(const data::TokenizedPreferences& all, bool pairs) const {
    std::array<std::int64_t, 2> answers{}, learned{};  // rejected or bad, then chosen or good
    std::int64_t equal = 0;
    const data::TokenizedConversations& texts = all.texts;
    const auto ids = [&](std::size_t i) {
      return std::span(texts.ids).subspan(static_cast<std::size_t>(texts.begin(i)),
                                          static_cast<std::size_t>(texts.tokens(i)));
    };
    const std::size_t step = pairs ? 2 : 1;
    for (std::size_t first = 0; first < texts.size(); first += step) {
      if (pairs && std::ranges::equal(ids(first), ids(first + 1))) {
        ++equal;
        continue;
      }
      for (std::size_t i = first; i < first + step; ++i) {
        ++answers[all.preferred[i]];
        learned[all.preferred[i]] += learned_in(texts, i);
      }
    }
    std::string text = pairs ? counted(answers[1], "pair") + "; "
                             : fmt::format("labelled answers: {} good, {} bad; ", answers[1], answers[0]);
    text += fmt::format(
        "training makes {} tokens of {} answers more probable, and {} tokens of {} answers less probable ({} "
        "... {}), compared with the reference model\n",
        learned[1], pairs ? "chosen" : "good", learned[0], pairs ? "rejected" : "bad", kBegin, kEnd);
    if (equal > 0) text += fmt::format("left out: {} with two equal answers\n", counted(equal, "pair"));
    return text;
  }

  int show_prompts(const Tokenizer& tokenizer, Console& console) const {
    refuse_seq_length();
    if (inline_bos_) throw invalid("--inline-bos has no effect on prompts", "remove it");
    const auto prompts =
        data::prompt_samples_of_epochs({.dataset = name_,
                                        .train_split = split_,
                                        .format = format_,
                                        .skip_bad = skip_bad_,
                                        .max_prompt_length = std::numeric_limits<std::int32_t>::max()},
                                       tokenizer, 1)
            .prompts;
    for (const std::string& note : prompts->notes()) console.note("note: " + note);
    const std::int64_t most = std::min(prompts->size(), show_);
    if (json_) {
      nlohmann::ordered_json json{{"stage", stage_}, {"prompts", prompts->size()}};
      json["shown"] = nlohmann::ordered_json::array();
      for (std::int64_t i = 0; i < most; ++i) {
        const auto ids = prompts->prompt_ids(i);
        json["shown"].push_back(
            {{"text", prompts->prompt_text(i)}, {"ids", std::vector<std::int32_t>(ids.begin(), ids.end())}});
      }
      console.write(json_text(json) + "\n");
      return 0;
    }
    console.print(fmt::format("shown as 'train {}' reads the file: the model writes the answers\n", stage_));
    for (const std::string& fact : prompts->facts()) console.print(fact + "\n");
    std::int64_t tokens = 0;
    for (std::int64_t i = 0; i < prompts->size(); ++i) {
      const std::size_t length = prompts->prompt_ids(i).size();
      tokens += static_cast<std::int64_t>(length);
      if (i >= most) continue;
      console.print(Color::kBold, fmt::format("\n{}: {} tokens\n", i + 1, length));
      console.print(prompts->prompt_text(i) + "\n");
    }
    console.print(fmt::format("\n{}, {}\n", counted(prompts->size(), "prompt"), counted(tokens, "token")));
    return 0;
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

  // Prints text i. `number`: the index of its record; `title`: what the text is, or empty.
  void show(const Console& console, const data::TokenizedConversations& all, std::size_t i,
            const Tokenizer& tokenizer, std::size_t number, std::string_view title = {}) const {
    console.print(Color::kBold,
                  fmt::format("{}{}{}: {} tokens, {} learned\n", number + 1, title.empty() ? "" : ", ", title,
                              all.tokens(i), learned_in(all, i)));
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
        "{}, {} tokens, of which {} are learned ({} ... {})\nlengths: median {}, 90th percentile {}, longest "
        "{}\n",
        counted(std::ssize(all), "conversation"), t.tokens, t.learned, kBegin, kEnd, t.at(0.5), t.at(0.9),
        t.at(1));
    if (t.nothing > 0)
      text += fmt::format("left out: {} without an answer to learn\n", counted(t.nothing, "conversation"));
    if (seq_length_ == 0)
      text += "these counts are without the cut at seq_length: add --seq-length L to cut as training does\n";
    if (seq_length_ > 0)
      text += fmt::format("cut: {} longer than a sequence of {} tokens; the ends are not learned\n",
                          counted(t.longer, "conversation"), seq_length_);
    return text;
  }

  nlohmann::ordered_json text_json(const data::TokenizedConversations& all, std::size_t i,
                                   const Tokenizer& tokenizer) const {
    nlohmann::ordered_json parts = nlohmann::ordered_json::array();
    stretches(all, i, tokenizer, [&](const std::string& text, bool learned) {
      if (!text.empty()) parts.push_back({{"text", text}, {"learned", learned}});
    });
    const auto begin = all.begin(i), end = all.ends[i];
    std::vector<int> learned(all.learned.begin() + begin, all.learned.begin() + end);
    std::fill(learned.begin() + (static_cast<std::int64_t>(kept_end(all, i)) - begin), learned.end(), 0);
    return {{"ids", std::vector(all.ids.begin() + begin, all.ids.begin() + end)},
            {"learned", learned},
            {"parts", parts}};
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
    for (std::size_t i = 0; i < shown(all); ++i) json["shown"].push_back(text_json(all, i, tokenizer));
    return json_text(json) + "\n";
  }

  std::string name_, tokenizer_, type_, format_ = "auto", split_ = "train", stage_ = "auto";
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
    "tokenizer.\n\n"
    "Pairs of answers (chosen, rejected) are shown as 'train dpo' reads them, and answers with a label as "
    "'train "
    "kto' does. --stage grpo shows prompts whose answers the model writes.",
    "primus data conversations train.jsonl --tokenizer path/to/model\n"
    "primus data conversations data/ --tokenizer path/to/model --format chatml --seq-length 2048 --show 10\n"
    "primus data conversations train.jsonl --tokenizer-type ByteTokenizer --json\n"
    "primus data conversations pairs.jsonl --tokenizer path/to/model --stage dpo",
    make_command<DataConversations>,
    {Section::kData, 3}};

}  // namespace primus::cli
