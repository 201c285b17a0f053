#include "common/base/status.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>

#include "common/base/error_line.h"

namespace tensorlane {
namespace {

TEST(Status, DefaultIsOk) {
  const Status status;
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.code(), Code::kOk);
  EXPECT_EQ(status.to_string(), "ok");
  EXPECT_EQ(status, Status::ok_status());
}

TEST(Status, SaysWhatWhereAndWhatToDo) {
  const Status status(Code::kInvalidArgument, "unknown key 'dcsp'", "fabric.yaml:12", "expected one of name, dscp");
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.to_string(), "unknown key 'dcsp': fabric.yaml:12: expected one of name, dscp");
  EXPECT_EQ(status.error_line(), "tensorlane: error: unknown key 'dcsp': fabric.yaml:12: expected one of name, dscp");
  EXPECT_EQ(error_line("tensorlane-switch", status), "tensorlane-switch: error: " + status.to_string());
}

TEST(Status, AnErrorLineIsOneLineAndKeepsControlCharactersFromTheTerminal) {
  const Status status(Code::kInvalidArgument, "no switch 'a\nb\x1b[2Jc\x7f'", "fabric.yaml:1", "\xc3\xa9");
  EXPECT_EQ(status.error_line(), "tensorlane: error: no switch 'a b?[2Jc?': fabric.yaml:1: \xc3\xa9");
}

TEST(Status, LeavesOutEmptyTexts) {
  EXPECT_EQ(Status(Code::kTimedOut, "no answer", "", "try again").to_string(), "no answer: try again");
  EXPECT_EQ(Status(Code::kTimedOut, "no answer", "h0").to_string(), "no answer: h0");
  EXPECT_EQ(Status(Code::kTimedOut, "").to_string(), "timed out");
}

TEST(Status, EveryCodeHasItsOwnName) {
  std::set<std::string> names;
  for (int code = 0; code <= static_cast<int>(Code::kInternal); ++code)
    names.insert(code_name(static_cast<Code>(code)));
  EXPECT_EQ(names.size(), static_cast<std::size_t>(Code::kInternal) + 1);
  EXPECT_FALSE(names.contains("unknown"));
  EXPECT_STREQ(code_name(static_cast<Code>(99)), "unknown");
}

// They travel in the session protocol and in the C ABI.
TEST(Status, CodesAreStable) {
  EXPECT_EQ(static_cast<int>(Code::kOk), 0);
  EXPECT_EQ(static_cast<int>(Code::kResourceExhausted), 5);
  EXPECT_EQ(static_cast<int>(Code::kAborted), 8);
  EXPECT_EQ(static_cast<int>(Code::kInternal), 13);
}

Result<int> half(int n) {
  if (n % 2 != 0) return Status(Code::kInvalidArgument, "odd number");
  return n / 2;
}

Status check_even(int n) {
  TL_RETURN_IF_ERROR(half(n).status());
  return Status::ok_status();
}

Result<int> quarter(int n) {
  TL_ASSIGN_OR_RETURN(const int once, half(n));
  TL_ASSIGN_OR_RETURN(const int twice, half(once));
  return twice;
}

TEST(Result, HoldsAValueOrAStatus) {
  EXPECT_TRUE(half(4).ok());
  EXPECT_EQ(*half(4), 2);
  EXPECT_TRUE(half(4).status().ok());
  EXPECT_FALSE(half(3).ok());
  EXPECT_EQ(half(3).status().what(), "odd number");
}

TEST(Result, MacrosPassTheStatusOn) {
  EXPECT_TRUE(check_even(2).ok());
  EXPECT_EQ(check_even(3).code(), Code::kInvalidArgument);
  EXPECT_EQ(*quarter(8), 2);
  EXPECT_EQ(quarter(6).status().what(), "odd number");
  EXPECT_EQ(quarter(5).status().what(), "odd number");
}

TEST(Result, HoldsWhatCanOnlyMove) {
  Result<std::unique_ptr<int>> result(std::make_unique<int>(7));
  const std::unique_ptr<int> taken = std::move(result).value();
  EXPECT_EQ(*taken, 7);
}

TEST(ResultDeathTest, AValueThatIsNotThereIsABrokenInvariant) {
  EXPECT_DEATH(static_cast<void>(half(3).value()), "tensorlane: internal error: ok\\(\\): .*status.h");
  EXPECT_DEATH(static_cast<void>(Result<int>(Status::ok_status())), "internal error");
}

}  // namespace
}  // namespace tensorlane
