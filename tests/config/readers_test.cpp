// Tests of the YAML and TOML readers: the places of values, and the errors for refused files.
#include "config/readers.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "support.h"

namespace primus::config {
namespace {

Value read(const std::string& text, const std::string& name = "f.yaml") {
  return read_document(make_source(name, text));
}

std::string refusal(const std::string& text, const std::string& name = "f.yaml") {
  try {
    read(text, name);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
    return error.render();
  }
}

std::string toml_refusal(const std::string& text) { return refusal(text, "f.toml"); }

TEST(Yaml, KeepsPlacesAndOrder) {
  const Value root = read("b: 1\na:\n  - x\n  - {k: 'v'}\nc:\n");
  ASSERT_EQ(root.members.size(), 3u);
  EXPECT_EQ(root.members[0].key, "b");
  EXPECT_EQ(root.members[0].origin.describe(), "f.yaml:1:1");
  EXPECT_EQ(root.members[0].value.origin.describe(), "f.yaml:1:4");
  EXPECT_EQ(root.find("a")->items[1].find("k")->origin.describe(), "f.yaml:4:9");
  EXPECT_TRUE(root.find("a")->items[1].find("k")->quoted);
  // A missing value has the place of its key.
  EXPECT_EQ(root.find("c")->origin.describe(), "f.yaml:5:1");
}

TEST(Yaml, AcceptsAByteOrderMarkAndCarriageReturns) {
  const Value root = read(
      "\xEF\xBB\xBF"
      "a: 1\r\nb: 2\r\n");
  EXPECT_EQ(root.find("a")->integer, 1);
  EXPECT_EQ(root.find("b")->origin.describe(), "f.yaml:2:4");
}

TEST(Yaml, RefusesDuplicateKeys) {
  EXPECT_EQ(refusal("lr: 1\nseed: 2\nlr: 3\n"),
            "f.yaml:3:1: error: key 'lr' is given twice, first on line 1\n"
            " 3 | lr: 3\n"
            "   | ^^\n"
            "  hint: keep one of the two");
  EXPECT_EQ(refusal("m: {a: 1, b: 2, a: 3}\n"),
            "f.yaml:1:17: error: key 'a' is given twice, first on line 1\n"
            " 1 | m: {a: 1, b: 2, a: 3}\n"
            "   |                 ^\n"
            "  hint: keep one of the two");
}

TEST(Yaml, AliasesRepeatAnchors) {
  const Value root = read(
      "name: &name ${NAME:run}\nlist: &list [1, {k: 2}]\ncopies: [*name, *list]\nmap: &map {a: 1, b: 2}\n"
      "other: {*name : 3}\nnone: &nothing\nagain: *nothing\nname2: &name x\nlast: *name\n",
      "f.yaml");
  EXPECT_EQ(root.find("copies")->items[0].text, "${NAME:run}");
  EXPECT_EQ(root.find("copies")->items[1].items[1].find("k")->integer, 2);
  // An alias's value has the place where the value is written.
  EXPECT_EQ(root.find("copies")->items[0].origin.describe(), "f.yaml:1:7");
  EXPECT_EQ(root.find("other")->members[0].key, "${NAME:run}");
  EXPECT_TRUE(root.find("again")->is_null());
  EXPECT_EQ(root.find("last")->text, "x");
}

TEST(Yaml, MergeKeysFillInAbsentKeys) {
  const Value root = read(
      "base: &base {a: 1, b: 2}\nmore: &more {b: 3, c: 4}\n"
      "one:\n  b: 5\n  <<: *base\ntwo:\n  <<: [*base, *more]\n  d: 6\nquoted: {\"<<\": 7}\n",
      "f.yaml");
  EXPECT_EQ(root.find("one")->find("a")->integer, 1);
  EXPECT_EQ(root.find("one")->find("b")->integer, 5);
  EXPECT_EQ(root.find("one")->members.size(), 2u);
  EXPECT_EQ(root.find("two")->find("b")->integer, 2);
  EXPECT_EQ(root.find("two")->find("c")->integer, 4);
  EXPECT_EQ(root.find("two")->find("d")->integer, 6);
  EXPECT_EQ(root.find("quoted")->find("<<")->integer, 7);
  EXPECT_NE(refusal("a: &a {x: 1}\nb:\n  <<: *a\n  <<: *a\n").find("<< is given twice"), std::string::npos);
  EXPECT_NE(refusal("a: &a {x: 1}\nb: {<<: [*a, 5]}\n").find("<< takes a map, or a list of maps"),
            std::string::npos);
}

TEST(Yaml, RefusesAliasesWithoutAnchorsAndInsideThem) {
  EXPECT_EQ(refusal("a: *x\n"),
            "f.yaml:1:4: error: this alias has no anchor above it\n"
            " 1 | a: *x\n"
            "   |    ^\n"
            "  hint: an alias *NAME repeats the value that follows &NAME earlier in the same file");
  EXPECT_NE(refusal("a: &x [1, *x]\n").find("f.yaml:1:11: error: this alias is inside the value"),
            std::string::npos);
  EXPECT_NE(refusal("a: &x [1]\n*x : 2\n").find("f.yaml:2:1: error: this alias is a list, but a key"),
            std::string::npos);
}

TEST(Yaml, RefusesTheBillionLaughs) {
  std::string bomb = "a0: &a0 [lol, lol]\n";
  for (int i = 1; i < 40; ++i) {
    bomb += fmt::format("a{0}: &a{0} [*a{1}, *a{1}]\n", i, i - 1);
  }
  EXPECT_NE(refusal(bomb).find("error: the aliases make too many values for a settings file"),
            std::string::npos);
  // One large value is repeated too often.
  std::string wide = "a: &a [" + std::string(1000, ',') + "x]\nb: [*a";
  for (int i = 0; i < 100; ++i) wide += ", *a";
  EXPECT_NE(refusal(wide + "]\n").find("too many values"), std::string::npos);
  // The total size of text is limited, too.
  std::string text = "a: &a " + std::string(100000, 'x') + "\nb: [*a";
  for (int i = 0; i < 20; ++i) text += ", *a";
  EXPECT_NE(refusal(text + "]\n").find("the aliases make too many values"), std::string::npos);
  // The depth of nested aliases is limited, too.
  std::string deep = "a0: &a0 [x]\n";
  for (int i = 1; i < 80; ++i) deep += fmt::format("a{0}: &a{0} [*a{1}]\n", i, i - 1);
  EXPECT_NE(refusal(deep).find("nested more than 64 levels deep"), std::string::npos);
}

TEST(Yaml, RefusesTags) {
  EXPECT_NE(refusal("a: !!python/object:os.system 5\n").find("('tag:yaml.org,2002:python/object:os.system')"),
            std::string::npos);
  EXPECT_EQ(refusal("a: !!str 5\n"),
            "f.yaml:1:4: error: YAML tags ('tag:yaml.org,2002:str') are not allowed in settings files\n"
            " 1 | a: !!str 5\n"
            "   |    ^\n"
            "  hint: remove the tag, and put text in quotes; the key decides the type");
}

TEST(Yaml, RefusesBrokenSyntax) {
  EXPECT_EQ(refusal("a: 1\n b: 2\n"),
            "f.yaml:2:2: error: this is not valid YAML: the line is indented deeper than line 1, which "
            "already has a value\n"
            " 2 |  b: 2\n"
            "   |  ^\n"
            "  hint: indent it by 0 spaces, as line 1");
  EXPECT_EQ(refusal("a: [1, 2\n"),
            "f.yaml:1:4: error: this is not valid YAML: this [ is not closed\n"
            " 1 | a: [1, 2\n"
            "   |    ^\n"
            "  hint: put commas between the values, and ] after the last");
  EXPECT_EQ(refusal("a: {b: 1\nc: [2, \n"),
            "f.yaml:1:4: error: this is not valid YAML: this { is not closed\n"
            " 1 | a: {b: 1\n"
            "   |    ^\n"
            "  hint: put commas between the values, and } after the last");
  EXPECT_EQ(refusal("a: ['x' 'y']\n"),
            "f.yaml:1:9: error: this is not valid YAML: a comma or ] is missing here\n"
            " 1 | a: ['x' 'y']\n"
            "   |         ^\n"
            "  hint: put commas between the values, and ] after the last");
  EXPECT_EQ(refusal("a: [${X}]\n"),
            "f.yaml:1:6: error: this is not valid YAML: end of sequence flow not found\n"
            " 1 | a: [${X}]\n"
            "   |      ^\n"
            "  hint: between [ ] or { }, write a variable in quotes: \"${NAME}\"");
  EXPECT_EQ(refusal("a: \"x\nb: c\n"),
            "f.yaml:1:4: error: this quote is never closed\n"
            " 1 | a: \"x\n"
            "   |    ^\n"
            "  hint: close it; a quote inside of the text is written twice ('') or as \\\"");
  EXPECT_EQ(refusal("a: b\n\tc: d\n"),
            "f.yaml:2:1: error: this is not valid YAML: the line is indented with a tab\n"
            " 2 |  c: d\n"
            "   | ^\n"
            "  hint: indent with spaces, two for each level");
}

// The YAML library reports an error some lines later; the reader finds the line that caused it.
TEST(Yaml, PointsAtTheLineWithTheWrongIndentation) {
  EXPECT_NE(refusal("a:\n  b: 1\n    c: 2\n  d: 3\n")
                .find("f.yaml:3:5: error: this is not valid YAML: the line is "
                      "indented deeper than line 2"),
            std::string::npos);
  EXPECT_NE(refusal("a:\n    b: 1\n  c: 2\n    d: 3\n")
                .find("f.yaml:3:3: error: this is not valid YAML: the indentation of this line does not "
                      "match any line above it"),
            std::string::npos);
  EXPECT_NE(refusal("a:\n  - b: 1\n    c: 2\n   d: 3\n")
                .find("f.yaml:4:4: error: this is not valid YAML: the indentation of this line"),
            std::string::npos);
  // Text over several lines is not taken for wrong indentation.
  EXPECT_NE(refusal("a: some\n    text\n  on lines\nb: [1\n")
                .find("f.yaml:4:4: error: this is not valid YAML: this [ is not closed"),
            std::string::npos);
  EXPECT_NE(refusal("a: |\n    text: x\n      more: y\nb: [1\n")
                .find("f.yaml:4:4: error: this is not valid YAML: this [ is not closed"),
            std::string::npos);
}

// The reader also finds a line without a colon.
TEST(Yaml, PointsAtTheLineWithoutAKey) {
  EXPECT_EQ(refusal("a: 1\nuser_name  u v\nb: 2\n"),
            "f.yaml:2:1: error: this is not valid YAML: the line is not 'key: value'\n"
            " 2 | user_name  u v\n"
            "   | ^\n"
            "  hint: put a colon after the key: user_name: u v");
  EXPECT_NE(refusal("a:\n  lr:1e-4\n  b: 2\n").find("f.yaml:"), std::string::npos);
  EXPECT_NE(refusal("a:\n  b: 1\n  lr:1e-4\n  c: 2\n")
                .find("f.yaml:3:3: error: this is not valid YAML: the line is not 'key: value'"),
            std::string::npos);
  EXPECT_NE(refusal("a:\n  b: 1\n  lr:1e-4\n  c: 2\n").find("put a space after the colon: lr: 1e-4"),
            std::string::npos);
  EXPECT_NE(refusal("a: 1\nlr\nb: 2\n").find("f.yaml:2:1"), std::string::npos);
  EXPECT_NE(refusal("a: 1\nlr\nb: 2\n").find("give it a value: lr: VALUE"), std::string::npos);
  // Quoted text may continue at any indentation.
  EXPECT_NE(refusal("a: \"some\ntext\"\nb: [1\n").find("f.yaml:3:4"), std::string::npos);
}

TEST(Yaml, RefusesOtherFiles) {
  const std::string hint = std::string("\n  hint: ") + kNoSettingsHint;
  EXPECT_EQ(refusal(""), "f.yaml: error: the file holds no settings" + hint);
  EXPECT_EQ(refusal("# nothing\n"), "f.yaml: error: the file holds no settings" + hint);
  EXPECT_EQ(refusal("hello\n"),
            "f.yaml:1:1: error: settings are 'key: value' lines, but this is a string\n"
            " 1 | hello\n"
            "   | ^^^^^" +
                hint);
  EXPECT_NE(refusal("- a\n- b\n").find("but this is a list"), std::string::npos);
  EXPECT_EQ(refusal("a: 1\n---\nb: 2\n"),
            "f.yaml:2:1: error: a settings file has one YAML document, but a second begins here\n"
            " 2 | ---\n"
            "   | ^\n"
            "  hint: keep one of them, or put them into separate files");
  EXPECT_NE(refusal("? [a, b]\n: 1\n").find("f.yaml:1:3: error: a key must be plain text"),
            std::string::npos);
}

TEST(Yaml, BoundsDepth) {
  const auto nested = [](int depth) {
    return "a: " + std::string(depth, '[') + std::string(depth, ']') + "\n";
  };
  EXPECT_EQ(refusal(nested(kMaxDepth - 1)), "");
  EXPECT_NE(refusal(nested(kMaxDepth)).find("f.yaml:1:67: error: nested more than 64 levels deep"),
            std::string::npos);
  EXPECT_NE(refusal(nested(100000)), "");
  std::string indented;
  for (int i = 0; i < 1000; ++i) indented += std::string(i, ' ') + "a:\n";
  EXPECT_NE(refusal(indented).find("nested more than 64 levels deep"), std::string::npos);
}

TEST(Text, BoundsSizeAndValues) {
  EXPECT_EQ(refusal("a: " + std::string(kMaxDocumentBytes, 'x')),
            "f.yaml: error: settings files of more than 1 MB are refused\n"
            "  hint: is it an experiment? data belongs in other files");
  EXPECT_NE(refusal("a: [" + std::string(500000, ',') + "]").find("too many values"), std::string::npos);
  std::string keys;
  for (int i = 0; i < 5000; ++i) keys += fmt::format("k{}: 1\n", i);
  EXPECT_NE(refusal(keys).find("f.yaml:4097:1: error: too many keys in one map"), std::string::npos);
}

TEST(Text, IsUtf8WithoutControlCharacters) {
  EXPECT_EQ(refusal("a: 1\nb: \xFF\n"),
            "f.yaml:2:4: error: this byte is not UTF-8, as settings files must be\n"
            " 2 | b: \xFF\n"
            "   |    ^\n"
            "  hint: save the file as UTF-8");
  EXPECT_NE(refusal("a: \xC0\x80").find("UTF-8"), std::string::npos);      // overlong encoding
  EXPECT_NE(refusal("a: \xED\xA0\x80").find("UTF-8"), std::string::npos);  // surrogate
  EXPECT_NE(refusal(std::string("a: \0b", 5)).find("control character 0x00"), std::string::npos);
  EXPECT_EQ(refusal("a: \xF0\x9F\x98\x80\n"), "");
}

// yaml-cpp decodes these two escapes to invalid UTF-8, which cannot be written again.
TEST(Yaml, RefusesEscapesOfInvalidText) {
  for (const std::string escape : {"\\N", "\\_"}) {
    EXPECT_EQ(refusal("a: 1\nb: [x, \"y" + escape + "\"]\n"),
              "f.yaml:2:8: error: settings files do not support the escapes \\N and \\_\n"
              " 2 | b: [x, \"y" +
                  escape +
                  "\"]\n"
                  "   |        ^\n"
                  "  hint: write \\u0085 and \\u00a0 for them");
    EXPECT_NE(refusal("\"k" + escape + "\": 1\n")
                  .find("f.yaml:1:1: error: settings files do not support the escapes"),
              std::string::npos);
  }
  EXPECT_EQ(refusal("a: \"\\u0085\\u00a0\\L\\P\\x85\""), "");
}

TEST(Toml, KeepsPlacesAndOrder) {
  const Value root = read("z = 1\na = [1.5, \"x\"]\n[m]\nk = true\n[m.n]\nj = \"null\"\n", "f.toml");
  ASSERT_EQ(root.members.size(), 3u);
  EXPECT_EQ(root.members[0].key, "z");
  EXPECT_EQ(root.members[0].origin.describe(), "f.toml:1:1");
  EXPECT_EQ(root.find("a")->items[0].origin.describe(), "f.toml:2:6");
  EXPECT_TRUE(root.find("m")->find("k")->boolean);
  EXPECT_TRUE(root.find("m")->find("n")->find("j")->is_null());
}

TEST(Toml, RefusesTheMistakesThatYamlRefuses) {
  EXPECT_EQ(toml_refusal("lr = 1\nlr = 2\n"),
            "f.toml:2:6: error: this is not valid TOML: Error while parsing key-value pair: cannot redefine "
            "existing integer 'lr'\n"
            " 2 | lr = 2\n"
            "   |      ^\n"
            "  hint: settings are KEY = VALUE lines, with text in quotes");
  EXPECT_EQ(toml_refusal(""),
            std::string("f.toml: error: the file holds no settings\n  hint: ") + kNoSettingsHint);
  EXPECT_NE(toml_refusal("a = 1979-05-27\n").find("f.toml:1:5: error: settings cannot be dates or times"),
            std::string::npos);
  EXPECT_NE(toml_refusal("a = \n"), "");
  EXPECT_NE(toml_refusal("a = \xFF\n").find("UTF-8"), std::string::npos);
}

TEST(Toml, BoundsDepth) {
  std::string dotted = "a";
  for (int i = 0; i < 100000; ++i) dotted += ".a";
  EXPECT_NE(toml_refusal(dotted + " = 1\n").find("nested more than 64 levels deep"), std::string::npos);
  EXPECT_NE(toml_refusal("[" + dotted + "]\n").find("nested more than 64 levels deep"), std::string::npos);
  EXPECT_NE(toml_refusal("a = " + std::string(100000, '[')), "");
  // Dots in strings and comments do not count as nesting.
  EXPECT_EQ(toml_refusal("a = \"" + dotted + "\" # " + dotted + "\nb = '''\n" + dotted + "'''\n"), "");
}

// toml++ has only assertions against these inputs.
TEST(Toml, RefusesTextThatWouldFailTheLibrarysAssertions) {
  EXPECT_EQ(toml_refusal("a = 1\n[[[b]]\nc = 2\n").rfind("f.toml:2:1: error: this line is not valid TOML", 0),
            0u);
  EXPECT_EQ(toml_refusal("[a[b]\n").rfind("f.toml:1:", 0), 0u);
}

TEST(Toml, KeepsNonAsciiStringsAndComments) {
  const Value root = read(
      "a = \"\xC3\xBC\" # \xC3\xBC\nb = '\xC3\xBC'\nc = '''\n\xC3\xBC'''\n\"\xC3\xBC\" = "
      "\"\"\"x\"\"\"\"\"\nd = 1\n",
      "f.toml");
  EXPECT_EQ(root.find("a")->text, "\xC3\xBC");
  EXPECT_EQ(root.find("c")->text, "\xC3\xBC");
  EXPECT_EQ(root.find("\xC3\xBC")->text, "x\"\"");
  EXPECT_EQ(root.find("d")->origin.describe(), "f.toml:6:5");
  EXPECT_EQ(toml_refusal("[m]\na = '\xC3\xBC' \xC3\xBC\n"),
            "f.toml:2:9: error: this is not valid TOML: only strings and comments may have characters beyond "
            "ASCII\n"
            " 2 | a = '\xC3\xBC' \xC3\xBC\n"
            "   |         ^\n"
            "  hint: put it in quotes");
  EXPECT_NE(toml_refusal("a = \"\"\"x\"\"\"\"\xC3\xBC\n"), "");
  EXPECT_NE(toml_refusal("a = \"\"\"\\\n  \xC3\xBC\"\"\"\n"), "");
  EXPECT_NE(toml_refusal("a = \"\\\xC3\xBC\"\n"), "");
  // A quote in the middle of a number does not start a string, so toml++ gets the rest unchanged.
  EXPECT_NE(toml_refusal("a= 1a.b.\"^mes\xD2\x9C\xD1\x9Dp"), "");
}

TEST(Yaml, RefusesTokensThatCannotBeginAValue) {
  EXPECT_NE(refusal(","), "");
  EXPECT_NE(refusal("]"), "");
}

TEST(Files, MissingOrNoFile) {
  const TemporaryFolder folder;
  const auto message = [](const std::filesystem::path& path) {
    try {
      read_document(path);
      return std::string();
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 2);
      return error.render();
    }
  };
  const std::string missing = (folder.path() / "no.yaml").string();
  EXPECT_EQ(message(missing),
            "error: cannot read '" + missing +
                "': No such file or directory\n"
                "  hint: --config FILE names the experiment; examples/native/configs has some to copy");
  EXPECT_EQ(message(folder.path()),
            "error: '" + folder.path().string() +
                "' is a folder, not a file\n  hint: name the experiment file in that folder");
}

}  // namespace
}  // namespace primus::config
