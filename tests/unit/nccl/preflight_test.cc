// What NCCL's settings are read from may hold anything. tests/unit/cli/doctor_nccl_test.py has what each rule finds.
#include "common/nccl/preflight.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>

namespace tensorlane::nccl {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class PreflightTest : public ::testing::Test {
 protected:
  PreflightTest() : root_((fs::temp_directory_path() / ("tl-nccl-" + std::to_string(getpid()))).string()) {
    fs::create_directories(root_ + "/etc");
    subject_.sources.root = root_;
    subject_.sources.home = "/home/user";
    subject_.classes = {{"urgent", 174, 5}, {"bulk", 110, 3}};
    subject_.sources.environment = {{"NCCL_IB_SL", "3"}};
  }
  ~PreflightTest() override { fs::remove_all(root_); }

  std::string write(const std::string& name, const std::string& text) const {
    fs::create_directories(fs::path(root_ + name).parent_path());
    std::ofstream(root_ + name, std::ios::binary) << text;
    chmod((root_ + name).c_str(), 0644);
    return root_ + name;
  }

  static int version_of(const std::string& path) {
    Budget budget;
    return nccl::version_of({"", path}, budget);
  }

  std::string root_;
  Subject subject_;
};

TEST_F(PreflightTest, FindsNothingOnACleanHostAndOneFaultByItsPlace) {
  EXPECT_THAT(preflight(subject_), IsEmpty());
  write("/etc/nccl.conf", "# of the operator\nNCCL_IB_TC=106\n");
  const std::vector<Finding> found = preflight(subject_);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].rule, "N1");
  EXPECT_EQ(found[0].place, "NCCL_IB_TC in /etc/nccl.conf:2");
}

TEST_F(PreflightTest, ReadsWhateverBytesAFileHolds) {
  std::mt19937 random(7);
  const std::string words[] = {"NCCL_IB_TC=",
                               "NCCL_IB_SL=",
                               "\n",
                               "=",
                               "export NCCL_",
                               "0x",
                               "99999999999999999999",
                               "#",
                               std::string(1, '\0'),
                               "\xff\xfe",
                               "NCCL_NET=ofi,ucx"};
  for (int i = 0; i < 500; ++i) {
    std::string text;
    for (unsigned words_left = random() % 40; words_left > 0; --words_left)
      text += random() % 4 == 0 ? std::string(1, static_cast<char>(random())) : words[random() % std::size(words)];
    write("/etc/nccl.conf", text);
    write("/home/user/.nccl.conf", text + text);
    for (const Finding& finding : preflight(subject_)) {
      EXPECT_THAT(finding.rule, HasSubstr("N"));
      EXPECT_FALSE(finding.place.empty() || finding.message.empty() || finding.fix.empty()) << text;
    }
  }
}

TEST_F(PreflightTest, FindsAVersionWhereverItStandsInAFile) {
  for (const std::size_t at : {std::size_t{0}, std::size_t{1000}, (std::size_t{1} << 20) - 40,
                               (std::size_t{1} << 20) - 15, std::size_t{1} << 20, (std::size_t{2} << 20) + 3}) {
    const std::string text = std::string(at, 'x') + "NCCL version 2.28.9+cuda12.9";
    EXPECT_EQ(version_of(write("/libnccl.so.2", text)), 22809) << at;
    EXPECT_EQ(version_of(write("/libnccl.so.2", text + std::string(2 << 20, '\0'))), 22809) << at;
    EXPECT_EQ(version_of(write("/libnccl.so.2", text.substr(0, at + 14))), 0) << at;
  }
  EXPECT_EQ(version_of(write("/libnccl.so.2", "NCCL version %s, NCCL version 2.x, NCCL version 2.30.7+cuda13.0")),
            23007);
  EXPECT_EQ(version_text(23007), "2.30.7");
}

TEST_F(PreflightTest, SearchesManyAndLargeFilesWithinOneBudget) {
  const std::string path = write("/libnccl.so.2", std::string(100, 'x') + "NCCL version 2.28.9+cuda12.9");
  Budget one{.files = 1, .bytes = 1 << 20};
  EXPECT_EQ(nccl::version_of({"", path}, one), 22809);
  EXPECT_TRUE(one.is_spent());
  EXPECT_EQ(nccl::version_of({"", path}, one), 0);
  Budget small{.files = 9, .bytes = 110};
  EXPECT_EQ(nccl::version_of({"", path}, small), 0);
  EXPECT_TRUE(small.is_spent());
  // Of a sparse file only the data counts, wherever it is.
  constexpr off_t kFar = off_t{1} << 40;
  Budget sparse;
  fs::resize_file(path, kFar);
  EXPECT_EQ(nccl::version_of({"", path}, sparse), 22809) << "with the hole behind it";
  write("/libnccl.so.2", "NCCL version 2.28");
  fs::resize_file(path, kFar);
  std::ofstream(path, std::ios::app) << ".7 NCCL version 2.30.7+";
  EXPECT_EQ(nccl::version_of({"", path}, sparse), 23007) << "not what stands on both sides of a hole";
  EXPECT_GT(sparse.bytes, std::uint64_t{1} << 30);
}

TEST_F(PreflightTest, DoesNotWaitForWhatIsNoFile) {
  ASSERT_EQ(mkfifo((root_ + "/fifo").c_str(), 0644), 0);
  EXPECT_EQ(version_of(root_ + "/fifo"), 0);
  EXPECT_EQ(version_of(root_), 0);
  EXPECT_EQ(version_of(root_ + "/nothing"), 0);
  EXPECT_EQ(version_of("/dev/zero"), 0);
}

TEST_F(PreflightTest, ListsRdmaDevicesAndWhatTheyForce) {
  EXPECT_THAT(rdma_devices(root_), IsEmpty());
  write("/sys/class/infiniband/mlx5_1/tc/1/traffic_class", "Global tclass=106\n");
  write("/sys/class/infiniband/mlx5_0/tc/1/traffic_class", "\n");
  EXPECT_THAT(rdma_devices(root_), ::testing::ElementsAre("mlx5_0", "mlx5_1"));
  EXPECT_EQ(forced_traffic_class(root_, "mlx5_0"), 0U);
  EXPECT_EQ(forced_traffic_class(root_, "mlx5_1"), 106U);
  EXPECT_EQ(forced_traffic_class(root_, "none"), 0U);
  fs::create_directories(root_ + "/sys/class/infiniband/fifo/tc/1");
  ASSERT_EQ(mkfifo((root_ + "/sys/class/infiniband/fifo/tc/1/traffic_class").c_str(), 0644), 0);
  EXPECT_EQ(forced_traffic_class(root_, "fifo"), 0U);
  write("/sys/class/infiniband/long/tc/1/traffic_class", std::string(1 << 20, ' ') + "106");
  EXPECT_EQ(forced_traffic_class(root_, "long"), 0U);
}

}  // namespace
}  // namespace tensorlane::nccl
