// Logs as files.
#include "daemon/engine_log/file_sink.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

namespace tensorlane::engine_log {
namespace {

class FileSinkTest : public ::testing::Test {
 protected:
  FileSinkTest() : folder_(std::filesystem::temp_directory_path() / ("tl-engine-log-" + std::to_string(getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~FileSinkTest() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path folder_;
};

TEST_F(FileSinkTest, AFileOfItsOwnThatNobodyElseReads) {
  auto sink = open_file_sink(folder_, "../a job", Epoch(7), "h1", RailIndex(2));
  ASSERT_TRUE(sink.ok()) << sink.status().to_string();
  const std::filesystem::path path = folder_ / ".._a_job-7-h1-rail2.tllog";
  const std::array<std::byte, 3> bytes{};
  EXPECT_TRUE((*sink)->write(bytes).ok());
  struct stat about {};
  ASSERT_EQ(stat(path.c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777, 0600u);
  EXPECT_EQ(about.st_size, 3);
  // What is there is kept.
  const auto second = open_file_sink(folder_, "../a job", Epoch(7), "h1", RailIndex(2));
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), Code::kUnavailable);
  EXPECT_THAT(second.status().to_string(), ::testing::HasSubstr(path.string()));
}

TEST_F(FileSinkTest, AFolderThatIsNoneIsSaid) {
  EXPECT_TRUE(check_folder(folder_).ok());
  EXPECT_EQ(check_folder(folder_ / "missing").code(), Code::kUnavailable);
  EXPECT_EQ(check_folder("/dev/null").code(), Code::kUnavailable);
  chmod(folder_.c_str(), 0777);
  EXPECT_THAT(check_folder(folder_).to_string(), ::testing::HasSubstr("everybody can replace what is in the folder"));
  EXPECT_FALSE(open_file_sink(folder_ / "missing", "job", Epoch(1), "h0", RailIndex(0)).ok());
}

TEST_F(FileSinkTest, DoesNotFollowALink) {
  std::filesystem::create_symlink("elsewhere", folder_ / "job-1-h0-rail0.tllog");
  EXPECT_FALSE(open_file_sink(folder_, "job", Epoch(1), "h0", RailIndex(0)).ok());
}

}  // namespace
}  // namespace tensorlane::engine_log
