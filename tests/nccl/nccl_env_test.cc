// The env plugin from within, where the sanitizers see it; env_plugin_test.py looks at the shared object.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "client-lib/nccl-env/interface.h"
#include "common/nccl/policy.h"

namespace tensorlane::nccl_env {
namespace {

using nccl::kDeepest, nccl::kMostBytes, nccl::kMostVariables, nccl::read_policy, nccl::Variables;

using testing::HasSubstr;
using testing::Pair;
using testing::UnorderedElementsAre;

// What headers_check.cc compares with NCCL's headers: four pointers.
static_assert(sizeof(NcclEnvPluginV1) == 4 * sizeof(void*) && sizeof(NcclEnvPluginV2) == 4 * sizeof(void*));
static_assert(offsetof(NcclEnvPluginV1, init) == sizeof(void*) && offsetof(NcclEnvPluginV2, init) == sizeof(void*));
static_assert(offsetof(NcclEnvPluginV1, finalize) == 2 * sizeof(void*));
static_assert(offsetof(NcclEnvPluginV2, finalize) == 2 * sizeof(void*));
static_assert(offsetof(NcclEnvPluginV1, get_env) == 3 * sizeof(void*));
static_assert(offsetof(NcclEnvPluginV2, get_env) == 3 * sizeof(void*));

constexpr char kPolicy[] =
    R"({"version": 1, "for": "nccl", "classes": [{"name": "a", "settings": {}}], "process": {"NCCL_IB_TC": null, "NCCL_IB_SL": "3"}})";

// A file with this text, which is gone after the test.
class File {
 public:
  explicit File(const std::string& text) {
    const int fd = mkstemp(path_.data());
    EXPECT_GE(fd, 0) << path_;
    close(fd);
    write(text);
  }
  void write(const std::string& text) const { std::ofstream(path_) << text; }
  ~File() { unlink(path_.c_str()); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_ = testing::TempDir() + "nccl-policy-XXXXXX";
};

Result<Variables> read_text(const std::string& text) {
  const File file(text);
  return read_policy(file.path());
}

std::string repeated(const std::string& part, std::size_t times) {
  std::string text;
  for (std::size_t i = 0; i < times; ++i) text += part;
  return text;
}

TEST(NcclPolicy, HasValuesAndWhatIsNotToBeSet) {
  const Result<Variables> variables = read_text(kPolicy);
  ASSERT_TRUE(variables.ok()) << variables.status().to_string();
  EXPECT_THAT(*variables, UnorderedElementsAre(Pair("NCCL_IB_TC", std::nullopt), Pair("NCCL_IB_SL", "3")));
}

TEST(NcclPolicy, TakesAllDepthsAndLengthsWithoutARecursion) {
  constexpr std::size_t kMany = 500'000;
  const std::string head = R"({"version": 1, "for": "nccl", "process": {}, "x": )";
  for (const std::string& text :
       {repeated("[", 2 * kMany), repeated("[", kMany) + repeated("]", kMany), repeated(R"({"a":)", kMany / 4),
        head + repeated("[", kMany) + repeated("]", kMany) + "}",
        head + repeated("[", kDeepest) + repeated("]", kDeepest) + "}"})
    EXPECT_THAT(read_text(text).status().what(), HasSubstr("levels"));
  EXPECT_TRUE(read_text(head + repeated("[", kDeepest - 1) + repeated("]", kDeepest - 1) + "}").ok());
  const std::string end = R"("NCCL_A": "1"}})", start = R"({"version": 1, "for": "nccl", "process": {)";
  const std::size_t most = static_cast<std::size_t>(kMostBytes.value) - start.size() - end.size();
  EXPECT_TRUE(read_text(start + std::string(most, ' ') + end).ok());
  EXPECT_EQ(read_text(start + std::string(most + 1, ' ') + end).status().code(), Code::kResourceExhausted);
}

TEST(NcclPolicy, HasNoMoreVariablesThanNcclCouldKnow) {
  const auto policy_of = [](std::size_t variables) {
    std::string list = R"("NCCL_0": null)";
    for (std::size_t i = 1; i < variables; ++i) list += ", \"NCCL_" + std::to_string(i) + R"(": "1")";
    return read_text(R"({"version": 1, "for": "nccl", "process": {)" + list + "}}");
  };
  EXPECT_TRUE(policy_of(kMostVariables).ok());
  EXPECT_THAT(policy_of(kMostVariables + 1).status().what(), HasSubstr("more than 1024 variables in 'process'"));
}

// Whatever a file has become, reading it ends with variables or with words.
TEST(NcclPolicy, SurvivesEveryCutAndEveryChangedByte) {
  const std::string good = kPolicy;
  for (std::size_t at = 0; at < good.size(); ++at) {
    EXPECT_THAT(read_text(good.substr(0, at)).status().what(), HasSubstr("is no JSON")) << at;
    for (const char changed : {'\0', '"', '{', '\xff', '9'}) {
      std::string text = good;
      text[at] = changed;
      const Result<Variables> variables = read_text(text);
      EXPECT_TRUE(variables.ok() || variables.status().what().starts_with("the NCCL policy ")) << text;
    }
  }
}

std::string level_policy(const std::string& level) {
  return R"({"version": 1, "for": "nccl", "process": {"NCCL_IB_SL": ")" + level + R"("}})";
}

// The file counts as it is when NCCL begins, and not while NCCL runs.
TEST(NcclEnvPlugin, ReadsThePolicyAtEachFirstInit) {
  const File file(level_policy("3"));
  setenv("TENSORLANE_NCCL_POLICY", file.path().c_str(), 1);
  setenv("NCCL_IB_SL", "9", 1);
  EXPECT_EQ(ncclEnvPlugin_v1.init(2, 28, 9, ""), kNcclSuccess);
  const char* first = ncclEnvPlugin_v1.get_env("NCCL_IB_SL");
  EXPECT_STREQ(first, "3");
  file.write(level_policy("4"));
  EXPECT_STREQ(ncclEnvPlugin_v1.get_env("NCCL_IB_SL"), "3");
  EXPECT_EQ(ncclEnvPlugin_v2.init(2, 28, 9, "", nullptr), kNcclSuccess);
  EXPECT_STREQ(ncclEnvPlugin_v2.get_env("NCCL_IB_SL"), "3") << "another NCCL of the process runs with it";
  ncclEnvPlugin_v2.finalize();
  ncclEnvPlugin_v1.finalize();
  EXPECT_EQ(ncclEnvPlugin_v1.init(2, 28, 9, ""), kNcclSuccess);
  EXPECT_STREQ(ncclEnvPlugin_v1.get_env("NCCL_IB_SL"), "4");
  ncclEnvPlugin_v1.finalize();
  file.write("no policy");
  EXPECT_EQ(ncclEnvPlugin_v1.init(2, 28, 9, ""), kNcclSuccess);
  EXPECT_STREQ(ncclEnvPlugin_v1.get_env("NCCL_IB_SL"), "9") << "the environment, not the policy of before";
  ncclEnvPlugin_v1.finalize();
  EXPECT_STREQ(first, "3") << "NCCL may still have it";
}

TEST(NcclEnvPlugin, LeavesErrnoAsItIs) {
  setenv("TENSORLANE_NCCL_POLICY", "/nowhere/policy.json", 1);
  errno = EXDEV;
  EXPECT_EQ(ncclEnvPlugin_v1.init(2, 28, 9, ""), kNcclSuccess);
  EXPECT_EQ(errno, EXDEV);
  ncclEnvPlugin_v1.finalize();
}

// Threads ask while others begin and end: each answer is the policy's or the environment's.
TEST(NcclEnvPlugin, AnswersManyThreadsWhileOthersBeginAndEnd) {
  const File file(kPolicy);
  setenv("TENSORLANE_NCCL_POLICY", file.path().c_str(), 1);
  setenv("NCCL_IB_SL", "9", 1);
  setenv("NCCL_DEBUG_OF_TEST", "text", 1);
  std::atomic<bool> done = false;
  std::atomic<int> forced = 0;
  std::vector<std::thread> threads;
  constexpr int kThreads = 4;
  threads.reserve(kThreads);
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      while (!done) {
        const std::string level = ncclEnvPlugin_v1.get_env("NCCL_IB_SL");
        EXPECT_TRUE(level == "3" || level == "9") << level;
        forced += level == "3" ? 1 : 0;
        EXPECT_STREQ(ncclEnvPlugin_v2.get_env("NCCL_DEBUG_OF_TEST"), "text");
      }
    });
  }
  for (int i = 0; i < 200 || forced == 0; ++i) {
    EXPECT_EQ(ncclEnvPlugin_v1.init(2, 28, 9, ""), kNcclSuccess);
    EXPECT_EQ(ncclEnvPlugin_v2.init(2, 32, 3, "", nullptr), kNcclSuccess);
    EXPECT_EQ(ncclEnvPlugin_v1.finalize(), kNcclSuccess);
    EXPECT_STREQ(ncclEnvPlugin_v1.get_env("NCCL_IB_SL"), "3") << "one of the two that began is still there";
    std::this_thread::yield();
    EXPECT_EQ(ncclEnvPlugin_v2.finalize(), kNcclSuccess);
    EXPECT_STREQ(ncclEnvPlugin_v2.get_env("NCCL_IB_SL"), "9");
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace tensorlane::nccl_env
