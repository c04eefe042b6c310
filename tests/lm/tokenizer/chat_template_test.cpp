// Tests of chat templates in separate files, next to tokenizer files that cannot contain a template.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "base/error.h"
#include "base/files/file.h"
#include "base/temporary_folder.h"
#include "lm/tokenizer/tokenizer.h"

namespace primus {
namespace {

TEST(ChatTemplateBeside, TheTemplateNextToASentencePieceModelIsRead) {
  const test::TemporaryFolder folder;
  std::filesystem::copy_file(PRIMUS_SOURCE_DIR "/tests/golden/tokenizers/sp_bpe.model",
                             folder.path() / "tokenizer.model");
  const auto found = [&] { return std::string(load_tokenizer("", folder.path().string())->chat_template()); };
  EXPECT_EQ(found(), "");
  write_file(folder.path() / "tokenizer_config.json", R"({"chat_template": "{{ a }}"})");
  EXPECT_EQ(found(), "{{ a }}");
  write_file(
      folder.path() / "tokenizer_config.json",
      R"({"chat_template": [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "{{ b }}"}]})");
  EXPECT_EQ(found(), "{{ b }}");
  write_file(folder.path() / "chat_template.jinja", "{{ c }}");
  EXPECT_EQ(found(), "{{ c }}");
  write_file(folder.path() / "chat_template.jinja", std::string((1 << 20) + 1, 'x'));
  EXPECT_THROW(found(), Error);
  write_file(folder.path() / "tokenizer_config.json", "[");
  std::filesystem::remove(folder.path() / "chat_template.jinja");
  EXPECT_THROW(found(), Error);
}

// Templates and special tokens as transformers finds them: files replace the templates of
// tokenizer_config.json.
TEST(ChatTemplateBeside, NamedTemplatesComeFromFilesOrTheConfig) {
  const test::TemporaryFolder folder;
  const auto put = [&](const char* name, const std::string& text) {
    std::filesystem::create_directories((folder.path() / name).parent_path());
    write_file(folder.path() / name, text);
  };
  std::filesystem::copy_file(PRIMUS_SOURCE_DIR "/tests/golden/tokenizers/sp_bpe.model",
                             folder.path() / "tokenizer.model");
  const auto load = [](const std::filesystem::path& from) {
    ChatTemplates found = load_tokenizer("", from.string())->chat_templates();
    std::string all = std::filesystem::path(found.file).filename().string();
    for (const ChatTemplates::Named& one : found.all) all += " " + one.name + "=" + one.source;
    return all;
  };
  put("chat_template.json", R"({"chat_template": "p"})");
  EXPECT_EQ(load(folder.path()), "chat_template.json default=p");
  put("tokenizer_config.json",
      R"({"chat_template": [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "d"}],
          "pad_token": {"content": "<pad>"}, "image_token": "<image>", "legacy": false})");
  EXPECT_EQ(load(folder.path()), "tokenizer_config.json tool_use=x default=d");
  put("additional_chat_templates/rag.jinja", "r");
  put("additional_chat_templates/notes.txt", "n");
  EXPECT_EQ(load(folder.path()), " rag=r");
  put("chat_template.jinja", "c");
  EXPECT_EQ(load(folder.path()), "chat_template.jinja default=c rag=r");
  const auto tokenizer = load_tokenizer("", folder.path().string());
  const auto& tokens = tokenizer->chat_templates().tokens;
  const std::map<std::string, std::string> texts(tokens.begin(), tokens.end());
  EXPECT_EQ(texts.at("pad_token"), "<pad>");
  EXPECT_EQ(texts.at("image_token"), "<image>");
  EXPECT_EQ(texts.at("bos_token"), "<s>");

  // A checkpoint has no folder of templates, so the templates are saved as a list.
  tokenizer->save(folder.path() / "saved");
  EXPECT_EQ(load(folder.path() / "saved"), "tokenizer_config.json default=c rag=r");
  std::filesystem::remove_all(folder.path() / "additional_chat_templates");
  std::filesystem::remove_all(folder.path() / "saved");
  load_tokenizer("", folder.path().string())->save(folder.path() / "saved");
  EXPECT_EQ(read_file(folder.path() / "saved/chat_template.jinja"), "c");
  EXPECT_EQ(read_file(folder.path() / "saved/tokenizer_config.json"),
            read_file(folder.path() / "tokenizer_config.json"));
  EXPECT_EQ(read_file(folder.path() / "saved/chat_template.json"), R"({"chat_template": "p"})");
}

}  // namespace
}  // namespace primus
