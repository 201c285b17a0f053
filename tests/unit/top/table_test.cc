#include "monitor/top/table.h"

#include <gtest/gtest.h>

#include "tests/unit/top/reports.h"

namespace tensorlane::top {
namespace {

Table fruits() {
  return {{{"name", "NAME", Unit::kText, 100, ""},
           {"weight", "WEIGHT", Unit::kCount, 50, ""},
           {"rate_bits_per_second", "RATE", Unit::kBitsPerSecond, 70, "", 1e9},
           {"empty", "EMPTY", Unit::kText, 90, ""}},
          {{"a", {std::string("apple"), 3.0, 2e9, {}}, ""},
           {"b", {std::string("banana"), 1.0, {}, {}}, ""},
           {"c", {std::string("cherry"), 2.0, 5e6, {}}, ""}}};
}

TEST(Figures, HaveThreeDigitsAndFitTheirColumns) {
  EXPECT_EQ(figure(Cell(1234.0), Unit::kCount), "1.23k");
  EXPECT_EQ(figure(Cell(999.9), Unit::kCount), "1.00k");
  EXPECT_EQ(figure(Cell(12.0), Unit::kCount), "12");
  EXPECT_EQ(figure(Cell(123.4e9), Unit::kBitsPerSecond), "123G");
  EXPECT_EQ(figure(Cell(0.0421), Unit::kSeconds), "42ms");
  EXPECT_EQ(figure(Cell(3.2e-6), Unit::kSeconds), "3.2us");
  EXPECT_EQ(figure(Cell(0.0), Unit::kSeconds), "0");
  EXPECT_EQ(figure(Cell(0.5), Unit::kShare), "50%");
  EXPECT_EQ(figure(Cell(0.0001), Unit::kShare), "<0.1%");
  EXPECT_EQ(figure(Cell(), Unit::kShare), "-");
  for (const Unit unit : {Unit::kCount, Unit::kBitsPerSecond, Unit::kSeconds, Unit::kShare, Unit::kPerSecond}) {
    for (double value = 1e-12; value < 1e300; value *= 1.37)
      EXPECT_LE(figure(Cell(value), unit).size(), kFigureColumns) << value;
  }
}

TEST(Texts, AreCutByTheColumnsThatTheyTake) {
  EXPECT_EQ(fit("gpu", 5), "gpu  ");
  EXPECT_EQ(fit("gpu", 5, true), "  gpu");
  EXPECT_EQ(fit("gpu01234", 5), "gpu0~");
  EXPECT_EQ(fit("日本語", 6), "日本語");
  EXPECT_EQ(fit("日本語", 5), "日本~");
  EXPECT_EQ(fit("日本語", 4), "日~ ");
  EXPECT_EQ(fit("x", 0), "");
  EXPECT_EQ(clean("日本", false), "??");
  EXPECT_EQ(clean("a\x1b[2Jb\nc\xff", true), "a?[2Jb?c?");
  EXPECT_EQ(clean("e\xcc\x81", true), "e?") << "a character that joins another one takes no column";
}

TEST(Tables, DropWhatMattersLeastWhereTheTerminalIsNarrow) {
  const Sorting sorting{"name", false};
  const auto heads = [&](std::size_t width, const Sorting& by) {
    const Table table = fruits();
    return text_of(head_line(table, lay_out(table, width, false, by), false, by));
  };
  EXPECT_EQ(heads(30, sorting), "^NAME   WEIGHT    RATE        ");
  EXPECT_EQ(heads(20, sorting), "^NAME     RATE      ");
  EXPECT_EQ(heads(20, {"weight", true}), "NAME   vWEIGHT      ") << "what is sorted by stays";
  EXPECT_EQ(heads(4, sorting), "^NA~");
}

TEST(Tables, SortByAnyColumnAndPutNotesFirstAndUnknownFiguresLast) {
  Table table = fruits();
  table.rows.push_back({"d", {std::string("durian"), {}, {}, {}}, "no answer"});
  const auto order = [&](const Sorting& sorting) {
    sort_rows(&table, sorting);
    std::string keys;
    for (const Row& row : table.rows) keys += row.key;
    return keys;
  };
  EXPECT_EQ(order({"weight", true}), "dacb");
  EXPECT_EQ(order({"weight", false}), "dbca");
  EXPECT_EQ(order({"rate_bits_per_second", true}), "dacb");
  EXPECT_EQ(order({"rate_bits_per_second", false}), "dcab");
  EXPECT_EQ(order({"no such column", true}), "dabc");
}

TEST(Tables, MarkWhatIsTooMuchAndSayWhyThereIsNothing) {
  Table table = fruits();
  table.rows.push_back({"d", {std::string("durian"), {}, {}, {}}, "no answer"});
  const Sorting sorting{"name", false};
  const Layout layout = lay_out(table, 30, false, sorting);
  const Line apple = row_line(table, table.rows[0], layout, false, false);
  EXPECT_EQ(text_of(apple), "apple        3   2.00G        ");
  EXPECT_EQ(apple[4].tone, Tone::kWarn);
  EXPECT_EQ(text_of(row_line(table, table.rows[3], layout, false, false)), "durian no answer              ");
  EXPECT_EQ(row_line(table, table.rows[0], layout, false, true).front().tone, Tone::kSelected);
}

TEST(Tables, AreObjectsForMachines) {
  const nlohmann::json rows = to_json(fruits());
  EXPECT_EQ(rows[0],
            nlohmann::json({{"name", "apple"}, {"weight", 3.0}, {"rate_bits_per_second", 2e9}, {"empty", nullptr}}));
}

}  // namespace
}  // namespace tensorlane::top
