// What is read and written with care: every file that others might have placed is refused, and nothing waits.
#include "common/files/careful.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace tensorlane::files {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class CarefulTest : public ::testing::Test {
 protected:
  CarefulTest() : folder_(fs::temp_directory_path() / ("tl-files-" + std::to_string(getpid()))) {
    fs::create_directories(folder_);
    chmod(folder_.c_str(), 0755);
  }
  ~CarefulTest() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string file(const std::string& name, mode_t mode) {
    std::ofstream(path(name)) << "text\n";
    chmod(path(name).c_str(), mode);
    return path(name);
  }
  static std::string outcome(const std::string& path, Care care) {
    const Result<std::string> text = read(path, "the file", care);
    return text.ok() ? *text : text.status().to_string();
  }
  static std::string outcome(const Result<int>& created) {
    if (!created.ok()) return created.status().to_string();
    close(*created);
    return "created";
  }

  fs::path folder_;
};

TEST_F(CarefulTest, PermissionsThatEachKindOfFileMayHave) {
  EXPECT_EQ(outcome(file("a", 0600), Care::kKey), "text\n");
  EXPECT_EQ(outcome(file("b", 0640), Care::kKey),
            "the file can be read by other users: " + path("b") + ": chmod 600 " + path("b"));
  EXPECT_EQ(outcome(path("b"), Care::kSharedSecret), "text\n");
  EXPECT_EQ(outcome(file("c", 0644), Care::kSharedSecret),
            "the file can be read by everybody: " + path("c") + ": chmod o-rwx " + path("c"));
  EXPECT_EQ(outcome(path("c"), Care::kConfiguration), "text\n");
  EXPECT_EQ(outcome(file("d", 0666), Care::kConfiguration),
            "the file can be changed by everybody: " + path("d") + ": chmod o-w " + path("d"));
  EXPECT_THAT(outcome(file("e", 0602), Care::kSharedSecret), StartsWith("the file can be changed by everybody"))
      << "a secret of somebody else's choice";
  for (const mode_t more : {0610, 0620, 0601, 0602})
    EXPECT_THAT(outcome(file("f", more), Care::kKey), HasSubstr("chmod 600")) << std::oct << more;
}

TEST_F(CarefulTest, NobodyElseMayReplaceTheFile) {
  file("a", 0600);
  chmod(folder_.c_str(), 0777);
  EXPECT_EQ(outcome(path("a"), Care::kConfiguration),
            "everybody can replace the file, because everybody may write its folder: " + path("a") + ": chmod o-w " +
                folder_.string());
  chmod(folder_.c_str(), 01777);
  EXPECT_EQ(outcome(path("a"), Care::kConfiguration), "text\n");
}

TEST_F(CarefulTest, AKeyIsNeitherALinkNorAnotherUsers) {
  file("a", 0600);
  fs::create_symlink(path("a"), path("link"));
  EXPECT_EQ(outcome(path("link"), Care::kKey),
            "the file is a symbolic link, whose target others may choose: " + path("link") + ": name the file itself");
  EXPECT_EQ(outcome(path("link"), Care::kConfiguration), "text\n");
  if (geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  ASSERT_EQ(chown(path("a").c_str(), 12345, 12345), 0);
  EXPECT_EQ(outcome(path("a"), Care::kKey),
            "the file belongs to user 12345, who can change it, and this process runs as user 0: " + path("a") +
                ": run this process as that user, or chown 0 " + path("a"));
  EXPECT_THAT(outcome(path("a"), Care::kSharedSecret), StartsWith("the file belongs to user 12345"));
}

TEST_F(CarefulTest, NothingWaitsForAFifo) {
  ASSERT_EQ(mkfifo(path("fifo").c_str(), 0600), 0);
  for (const Care care : {Care::kConfiguration, Care::kSharedSecret, Care::kKey})
    EXPECT_THAT(outcome(path("fifo"), care), StartsWith("the file is no regular file"));
  EXPECT_THAT(outcome(create(path("fifo"), "the file")), HasSubstr("it is no regular file"));
  EXPECT_THAT(outcome(folder_.string(), Care::kConfiguration), StartsWith("the file is no regular file"));
}

TEST_F(CarefulTest, AFileThatIsTooLongIsNotReadToItsEnd) {
  EXPECT_THAT(outcome("/dev/zero", Care::kConfiguration), StartsWith("the file is no regular file"));
  const Result<std::string> text = read(file("a", 0600), "the file", Care::kKey, Bytes(4));
  ASSERT_FALSE(text.ok());
  EXPECT_EQ(text.status().code(), Code::kResourceExhausted);
  const Result<std::string> whole = read(path("a"), "the file", Care::kKey, Bytes(5));
  EXPECT_TRUE(whole.ok()) << "the limit is what a file may have: " << whole.status().to_string();
}

TEST_F(CarefulTest, WhatIsCreatedIsReadByItsOwnerAlone) {
  const mode_t before = umask(0);
  EXPECT_EQ(outcome(create(path("new"), "the file")), "created");
  umask(before);
  struct stat info {};
  ASSERT_EQ(stat(path("new").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, mode_t{0600});
  EXPECT_EQ(outcome(create(file("old", 0644), "the file")), "created");
  ASSERT_EQ(stat(path("old").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, mode_t{0600});
  EXPECT_EQ(info.st_size, 0);
}

TEST_F(CarefulTest, WhatIsForOthersIsMadeAsFilesAre) {
  const mode_t before = umask(022);
  EXPECT_EQ(outcome(create(path("new"), "the file", Readers::kByUmask)), "created");
  umask(before);
  struct stat info {};
  ASSERT_EQ(stat(path("new").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, mode_t{0644});
  EXPECT_EQ(outcome(create(file("old", 0640), "the file", Readers::kByUmask)), "created");
  ASSERT_EQ(stat(path("old").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, mode_t{0640});
  EXPECT_EQ(info.st_size, 0);
  fs::create_symlink(path("old"), path("link"));
  EXPECT_THAT(outcome(create(path("link"), "the file", Readers::kByUmask)), HasSubstr("symbolic link"));
}

TEST_F(CarefulTest, WhatCannotBeWrittenWholeIsAnError) {
  const Result<int> made = create(path("new"), "the file");
  ASSERT_TRUE(made.ok());
  EXPECT_TRUE(write_all(*made, std::string(100000, 'x'), path("new"), "the file").ok());
  close(*made);
  EXPECT_EQ(fs::file_size(path("new")), 100000u);
  const int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
  EXPECT_THAT(write_all(full, "x", "/dev/full", "the file").to_string(),
              HasSubstr("cannot write the file: No space left on device: /dev/full"));
  close(full);
}

TEST_F(CarefulTest, WhatBelongsToSomebodyElseIsNotOverwritten) {
  file("victim", 0600);
  fs::create_symlink(path("victim"), path("link"));
  fs::create_symlink(path("nowhere"), path("dangling"));
  EXPECT_EQ(outcome(create(path("link"), "the file")), "cannot write the file: it is a symbolic link: " + path("link") +
                                                           ": choose a path that this process may write");
  EXPECT_THAT(outcome(create(path("dangling"), "the file")), HasSubstr("symbolic link"));
  EXPECT_FALSE(fs::exists(path("nowhere")));
  fs::create_hard_link(path("victim"), path("hard"));
  EXPECT_THAT(outcome(create(path("hard"), "the file")), HasSubstr("another name"));
  std::ifstream victim(path("victim"));
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(victim), {}), "text\n");
}

// Who made the file keeps it open, and reads what is written to it.
TEST_F(CarefulTest, AFileOfAnotherUserIsNotWritten) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  ASSERT_EQ(chown(file("theirs", 0666).c_str(), 12345, 12345), 0);
  const std::string refused = "cannot write the file: it belongs to user 12345, not to 0: " + path("theirs") +
                              ": choose a path that this process may write";
  EXPECT_EQ(outcome(create(path("theirs"), "the file")), refused);
  EXPECT_EQ(check_creatable(path("theirs"), "the file").to_string(), refused);
  EXPECT_EQ(fs::file_size(path("theirs")), 5u);
}

// check_creatable() says what create() would, and leaves everything as it is.
TEST_F(CarefulTest, TryingChangesNothing) {
  EXPECT_TRUE(check_creatable(path("new"), "the file").ok());
  EXPECT_FALSE(fs::exists(path("new")));
  EXPECT_TRUE(check_creatable(file("old", 0600), "the file").ok());
  EXPECT_EQ(fs::file_size(path("old")), 5u);
  fs::create_symlink(path("old"), path("link"));
  EXPECT_THAT(check_creatable(path("link"), "the file").to_string(), HasSubstr("symbolic link"));
  EXPECT_THAT(check_creatable(path("no/such"), "the file").to_string(), HasSubstr("No such file"));
}

// A folder that stands for /, with a file, links to it and links out, and a file outside that these name.
class PlaceTest : public CarefulTest {
 protected:
  PlaceTest() : root_(path("root")) {
    fs::create_directories(root_ + "/a/b");
    std::ofstream(root_ + "/a/inside") << "inside";
    std::ofstream(path("outside")) << "outside";
    for (const auto& [target, name] :
         {std::pair("/a/inside", "absolute"), std::pair("../../../../../a/inside", "up"), std::pair("b", "a/folder"),
          std::pair("../outside", "out"), std::pair("/proc/self/root/etc/passwd", "magic"), std::pair("loop", "loop")})
      fs::create_symlink(target, root_ + "/" + name);
    fs::create_symlink(path("outside"), root_ + "/out_by_name");
  }

  std::string text(const std::string& name) const {
    return read_beginning({root_, name}, kib(1)).value_or(std::strerror(errno));
  }

  std::string root_;
};

TEST_F(PlaceTest, NothingOutsideTheRootIsReached) {
  EXPECT_EQ(text("/a/inside"), "inside");
  EXPECT_EQ(text("/absolute"), "inside");
  EXPECT_EQ(text("/up"), "inside");
  EXPECT_EQ(text("/a/folder/../inside"), "inside");
  for (const char* name : {"/out", "/out_by_name", "/../outside", "/magic", "/nothing"})
    EXPECT_EQ(text(name), "No such file or directory") << name;
  EXPECT_EQ(text("/loop"), "Too many levels of symbolic links");
  EXPECT_EQ(read_beginning({"", root_ + "/out_by_name"}, kib(1)), "outside") << "of this process's own /";
  EXPECT_EQ(read_beginning({root_, "/a/inside"}, Bytes(2)), "in");
  EXPECT_FALSE(exists({path("outside"), "/"})) << "a root that is no folder";
  EXPECT_TRUE(is_folder({root_, "/a/folder"}));
  EXPECT_EQ(link_target({root_, "/absolute"}), "/a/inside");
  EXPECT_EQ(link_target({root_, "/a/inside"}), "");
  EXPECT_THAT(names_in({root_, "/a"}), ::testing::ElementsAre("b", "folder", "inside"));
  EXPECT_THAT(names_in({root_, "/a/inside"}), ::testing::IsEmpty());
}

TEST_F(PlaceTest, ReadingWithCareLooksAtTheFolderBelowTheRoot) {
  EXPECT_EQ(read(Place{root_, "/absolute"}, "the file", Care::kConfiguration).value(), "inside");
  chmod((root_ + "/a").c_str(), 0777);
  EXPECT_EQ(read(Place{root_, "/a/inside"}, "the file", Care::kConfiguration).status().to_string(),
            "everybody can replace the file, because everybody may write its folder: /a/inside: chmod o-w /a");
}

// As before Linux 5.6: the system call does not exist.
TEST_F(PlaceTest, WithoutHelpOfTheKernelLinksAreRefused) {
  const auto forbid = [] {
    sock_filter filter[] = {{BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)},
                            {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 437},
                            {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | ENOSYS},
                            {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW}};
    const sock_fprog program{std::size(filter), filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
  };
  const auto look = [&] {
    if (!forbid()) _exit(2);
    bool right = text("/a/inside") == "inside" && text("//a/./inside") == "inside" && link_target({root_, "/up"}) != "";
    for (const char* name :
         {"/absolute", "/up", "/a/folder/../inside", "/out", "/out_by_name", "/../outside", "/magic"})
      right = right && text(name) == "Too many levels of symbolic links";
    right = right && text("/nothing") == "No such file or directory" && is_folder({root_, "/"});
    _exit(right ? 0 : 1);
  };
  EXPECT_EXIT(look(), ::testing::ExitedWithCode(0), "");
}

// The writer of a FIFO waits until somebody opens it, and some devices begin to act then.
TEST_F(PlaceTest, WhatIsNoFileIsNotOpened) {
  ASSERT_EQ(mkfifo((root_ + "/fifo").c_str(), 0600), 0);
  const Opened watch(inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  ASSERT_GE(inotify_add_watch(watch.get(), (root_ + "/fifo").c_str(), IN_OPEN), 0);
  EXPECT_EQ(text("/fifo"), "No such device or address");
  EXPECT_FALSE(read(Place{root_, "/fifo"}, "the file", Care::kConfiguration).ok());
  EXPECT_FALSE(read(root_ + "/fifo", "the file", Care::kKey).ok());
  EXPECT_FALSE(open_regular({"", root_ + "/fifo"}).ok());
  char event[4096];
  EXPECT_EQ(::read(watch.get(), event, sizeof event), -1) << "it was opened";
  close(open((root_ + "/fifo").c_str(), O_RDONLY | O_NONBLOCK));
  EXPECT_GT(::read(watch.get(), event, sizeof event), 0) << "the watch sees nothing";
}

}  // namespace
}  // namespace tensorlane::files
