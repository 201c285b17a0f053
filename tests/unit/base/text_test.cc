#include "common/base/text.h"

#include <gtest/gtest.h>

namespace tensorlane {
namespace {

TEST(Text, names_of_every_language_are_printable) {
  for (const char* name : {"", "layer.0.weight", "größe", "重み", "вес", "🙂 😀", "a~ b", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_TRUE(is_printable(name)) << name;
    EXPECT_EQ(printable(name), name);
  }
}

TEST(Text, what_steers_a_terminal_or_a_line_is_not) {
  const std::string_view zero("\0", 1);
  EXPECT_FALSE(is_printable(zero));
  // Escape, DEL, the control sequence introducer of C1 (a terminal obeys it as it does "ESC ["), next line, line
  // separator, right-to-left override.
  for (const char* steering : {"\x1b[2J", "\x7f",
                               "\xc2\x9b"
                               "31m",
                               "\xc2\x85", "\xe2\x80\xa8", "\xe2\x80\xae"}) {
    EXPECT_FALSE(is_printable(steering));
    EXPECT_FALSE(is_printable(std::string("before ") + steering + " after"));
  }
  EXPECT_TRUE(is_printable("\xc2\xa0"));  // the first character after C1
  EXPECT_EQ(printable("a\nb\xc2\x9b"
                      "31m"),
            "a?b??31m");
  EXPECT_EQ(printable("\xe2\x80\xae"
                      "gnp"),
            "???gnp");
}

TEST(Text, what_is_no_utf8_is_not) {
  // A lone continuation, bytes that never occur, a cut character, "/" written too long in two and three bytes, a
  // surrogate, beyond the last character.
  for (const char* broken :
       {"\x80", "\xff\xfe\xfd", "\xe9\x87", "\xc0\xaf", "\xe0\x80\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80"}) {
    EXPECT_FALSE(is_printable(broken));
    EXPECT_EQ(printable(broken), std::string(std::string_view(broken).size(), '?'));
  }
  EXPECT_EQ(printable("\xe9\x87"
                      "a"),
            "??a");  // and what follows a cut character stays
}

TEST(Text, a_word_for_the_shell_is_one_word_that_runs_nothing) {
  EXPECT_EQ(for_shell("/etc/nccl-2.28_a+b.conf"), "/etc/nccl-2.28_a+b.conf");
  EXPECT_EQ(for_shell("/a b"), "'/a b'");
  EXPECT_EQ(for_shell("/it's"), R"('/it'\''s')");
  EXPECT_EQ(for_shell("$(id)"), "'$(id)'");
  EXPECT_EQ(for_shell(""), R"('')");
}

}  // namespace
}  // namespace tensorlane
