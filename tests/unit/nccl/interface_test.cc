// tl_nccl_preflight(): what a framework sees of the preflight.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tensorlane/nccl.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

void keep(const char* rule, int severity, const char* place, const char* message, const char* fix, void* argument) {
  ASSERT_TRUE(message != nullptr && fix != nullptr);
  static_cast<std::vector<std::string>*>(argument)->push_back(std::string(rule) + " " + std::to_string(severity) + " " +
                                                              place);
}

TEST(NcclInterfaceTest, FindsWhatBeatsTheClasses) {
  const tl_nccl_class_t classes[] = {{"urgent", 174, 5}, {"bulk", 110, 3}};
  tl_nccl_subject_t subject{};
  subject.size = sizeof subject;
  subject.classes = classes;
  subject.class_count = 2;
  subject.service_level = -1;
  setenv("NCCL_IB_SL", "3", 1);
  setenv("NCCL_IB_TC", "106", 1);
  std::vector<std::string> found;
  EXPECT_EQ(tl_nccl_preflight(&subject, keep, &found), TL_OK);
  EXPECT_THAT(found, Contains("N1 0 NCCL_IB_TC in the environment"));
  unsetenv("NCCL_IB_TC");
  found.clear();
  EXPECT_EQ(tl_nccl_preflight(&subject, keep, &found), TL_OK);
  EXPECT_THAT(found, Not(Contains(HasSubstr("NCCL_IB_TC"))));
  subject.version = 22605;
  EXPECT_EQ(tl_nccl_preflight(&subject, keep, &found), TL_OK);
  EXPECT_THAT(found, Contains("N8 0 libnccl"));
}

TEST(NcclInterfaceTest, NeedsNoEnvironment) {
  tl_nccl_subject_t subject{};
  subject.size = sizeof subject;
  subject.service_level = -1;
  const auto ask = [&] {
    clearenv();
    std::vector<std::string> found;
    _exit(tl_nccl_preflight(&subject, keep, &found));
  };
  EXPECT_EXIT(ask(), ::testing::ExitedWithCode(TL_OK), "");
}

TEST(NcclInterfaceTest, RefusesWhatIsNoSubject) {
  tl_nccl_subject_t subject{};
  EXPECT_EQ(tl_nccl_preflight(nullptr, keep, nullptr), TL_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(tl_nccl_preflight(&subject, keep, nullptr), TL_ERROR_INVALID_ARGUMENT);
  subject.size = sizeof subject;
  EXPECT_EQ(tl_nccl_preflight(&subject, nullptr, nullptr), TL_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(tl_last_error(), HasSubstr("tl_nccl_preflight"));
}

}  // namespace
