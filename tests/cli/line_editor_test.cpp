// Tests of the line editor: keys as input, text and screen rows as output.
#include "cli/use/line_editor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace primus::cli {
namespace {

using ::testing::ElementsAre;
using Event = LineEditor::Event;

constexpr const char* kLeft = "\x1b[D";
constexpr const char* kUp = "\x1b[A";
constexpr const char* kDown = "\x1b[B";
constexpr const char* kHome = "\x1b[H";

// Returns the text after typing `keys` on an empty line, with the cursor as '|'.
std::string typed(const std::string& keys) {
  LineEditor editor;
  std::string input = keys;
  EXPECT_EQ(editor.feed(input), Event::kNone) << keys;
  EXPECT_EQ(input, "") << keys;
  std::string text = editor.text();
  return text.insert(editor.cursor(), "|");
}

void enter(LineEditor& editor, const std::string& text) {
  std::string input = text + "\r";
  EXPECT_EQ(editor.feed(input), Event::kLine);
  editor.take();
}

std::string after(LineEditor& editor, std::string keys) {
  editor.feed(keys);
  return editor.text();
}

TEST(LineEditor, MovesAndDeletes) {
  const std::string left = kLeft;
  EXPECT_EQ(typed("hello"), "hello|");
  EXPECT_EQ(typed("hello" + left + left + "X"), "helX|lo");
  EXPECT_EQ(typed("hello\x01X"), "X|hello");
  EXPECT_EQ(typed("hello" + std::string(kHome) + "\x1b[3~"), "|ello");
  EXPECT_EQ(typed("hello\x01\x05!"), "hello!|");
  EXPECT_EQ(typed("hello\x7f\x7f"), "hel|");
  EXPECT_EQ(typed("\x7fhi" + left + left + left + "\x02\x7f"), "|hi");
  EXPECT_EQ(typed("hello\x02\x04\x04"), "hell|");
  EXPECT_EQ(typed("one two\x1b[1;5D\x1b[1;5D\x1b[1;5D"), "|one two");
  EXPECT_EQ(typed("one two\x01\x1b"
                  "f!"),
            "one!| two");
}

TEST(LineEditor, CutsAndPutsBack) {
  EXPECT_EQ(typed("one two\x17"), "one |");
  EXPECT_EQ(typed("one, two  \x17\x17"), "|");
  EXPECT_EQ(typed("one two\x1b[D\x15"), "|o");
  EXPECT_EQ(typed("one two\x01\x0b\x19\x19"), "one twoone two|");
  EXPECT_EQ(typed("one two\x01\x1b"
                  "d"),
            "| two");
  EXPECT_EQ(typed("one-two\x1b\x7f"), "one-|");
}

TEST(LineEditor, DeletesWholeCharacters) {
  const std::string e_acute = "e\xCC\x81";                                    // e and a combining accent
  const std::string family = "\xF0\x9F\x91\xA8\xE2\x80\x8D\xF0\x9F\x91\xA7";  // two emoji, joined
  EXPECT_EQ(typed("\xC3\xBC\xE4\xBD\xA0"
                  "a\x7f\x7f"),
            "\xC3\xBC|");
  EXPECT_EQ(typed("a" + e_acute + "\x7f"), "a|");
  EXPECT_EQ(typed("a" + e_acute + kLeft), "a|" + e_acute);
  EXPECT_EQ(typed("a " + family + "\x7f"), "a |");
  EXPECT_EQ(typed("a " + family + kLeft + kLeft + "\x04"), "a|" + family);
}

TEST(LineEditor, InvalidBytesAreDropped) {
  EXPECT_EQ(typed("a\xFF\xC0"
                  "b\xC2\x9B"
                  "c"),
            "abc|");                                     // U+009B starts control sequences
  EXPECT_EQ(typed("a\x1b[99;99Xb\x1b\x1b[Dc"), "ac|b");  // keys without a function
}

TEST(LineEditor, KeysMayComeInPieces) {
  LineEditor editor;
  std::string input;
  for (const char c : std::string("\xE4\xBD\xA0\x1b[D!")) {
    input += c;
    EXPECT_EQ(editor.feed(input), Event::kNone);
  }
  EXPECT_EQ(editor.text(), "!\xE4\xBD\xA0");
}

TEST(LineEditor, Events) {
  LineEditor editor;
  std::string input = "one\rtwo\r\x03\x04";
  EXPECT_EQ(editor.feed(input), Event::kLine);
  EXPECT_EQ(editor.take(), "one");
  EXPECT_EQ(editor.feed(input), Event::kLine);
  EXPECT_EQ(editor.take(), "two");
  EXPECT_EQ(editor.feed(input), Event::kInterrupt);
  EXPECT_EQ(editor.feed(input), Event::kEnd);
  input = "x\x04";
  EXPECT_EQ(editor.feed(input), Event::kNone);  // Ctrl-D deletes forward; the cursor is at the end
  input = "\x1a";
  EXPECT_EQ(editor.feed(input), Event::kSuspend);
}

TEST(LineEditor, RemembersLines) {
  LineEditor editor;
  enter(editor, "one");
  enter(editor, "two");
  enter(editor, "two");  // an equal line is already in the history, so this one is not added
  enter(editor, "");     // an empty line is not added to the history
  EXPECT_EQ(after(editor, "draft"), "draft");
  EXPECT_EQ(after(editor, kUp), "two");
  EXPECT_EQ(after(editor, kUp), "one");
  EXPECT_EQ(after(editor, kUp), "one");
  EXPECT_EQ(after(editor, std::string("!") + kDown), "two");
  EXPECT_EQ(after(editor, kDown), "draft");
  EXPECT_EQ(after(editor, kDown), "draft");
}

TEST(LineEditor, PastedTextIsText) {
  // Line breaks in pasted text do not send it, and control keys have no effect.
  EXPECT_EQ(typed("\x1b[200~a\rb\r\nc\td\x03\x1b[Ae\x1b[201~f"), "a\nb\nc\tdef|");
  LineEditor editor;
  std::string input = "\x1b[200~" + std::string(2 * LineEditor::kMaxBytes, 'x') + "\x1b[201~";
  editor.feed(input);
  EXPECT_EQ(editor.text().size(), LineEditor::kMaxBytes);
}

TEST(LineEditor, RowsOfAScreen) {
  auto rows = [](const std::string& keys, std::size_t columns) {
    LineEditor editor;
    std::string input = keys;
    editor.feed(input);
    return editor.screen(2, columns);
  };
  EXPECT_THAT(rows("abc", 10).rows, ElementsAre("abc"));
  EXPECT_EQ(rows("abc", 10).column, 5U);
  // The prompt uses two of ten columns, and the cursor needs one after the last character.
  EXPECT_THAT(rows("abcdefg", 10).rows, ElementsAre("abcdefg"));
  EXPECT_THAT(rows("abcdefgh", 10).rows, ElementsAre("abcdefgh", ""));
  EXPECT_EQ(rows("abcdefgh", 10).row, 1U);
  EXPECT_EQ(rows("abcdefgh", 10).column, 0U);
  EXPECT_THAT(rows("abcdefghij", 10).rows, ElementsAre("abcdefgh", "ij"));
  // A double-width character is not split across rows.
  const std::string you = "\xE4\xBD\xA0";
  EXPECT_THAT(rows("abcdefg" + you, 10).rows, ElementsAre("abcdefg", you));
  EXPECT_EQ(rows(you + you, 10).column, 6U);
  EXPECT_EQ(rows("e\xCC\x81", 10).column, 3U);
  EXPECT_THAT(rows("\x1b[200~a\nb\x1b[201~", 10).rows, ElementsAre("a", "b"));
  EXPECT_EQ(rows("\x1b[200~a\nb\x1b[201~", 10).column, 1U);
}

TEST(LineEditor, AcceptsAnyBytes) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    LineEditor editor;
    std::string input;
    for (int i = 0; i < 200; ++i) {
      input += static_cast<char>(random() % (round % 2 ? 256 : 40));
      if (editor.feed(input) == Event::kLine) editor.take();
      ASSERT_LE(editor.cursor(), editor.text().size());
      const LineEditor::Screen screen = editor.screen(6, 1 + random() % 20);
      ASSERT_LT(screen.row, screen.rows.size());
    }
  }
}

}  // namespace
}  // namespace primus::cli
